"""The folders that tests read from."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SHARED = ROOT.parent / "shared"
"""Material beside the repository. Tests that need it are skipped where it is missing."""
RECORDINGS = SHARED / "recordings"
"""Recorded traffic of real providers."""
