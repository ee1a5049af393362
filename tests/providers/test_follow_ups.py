"""What continues a recorded conversation is pinned: the bodies of all requests, for every way to continue it.

`tests/golden/follow_ups.json` holds their digests, as they were when messages still held whole items.
"""

import json
from pathlib import Path

import pytest

from conftest import RECORDINGS
from followups import digest, follow_ups
from requirements import requirement
from sidestream.messages.fold import MessageFold

GOLDEN: dict[str, dict[str, str]] = json.loads((Path(__file__).parents[1] / "golden" / "follow_ups.json").read_text())
FILES = sorted(RECORDINGS.rglob("*.json"))


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@requirement("R42", "R43")
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_conversation_without_a_log_continues_as_before(path: Path) -> None:
    bodies = {way: digest(encoded) for way, encoded in follow_ups(path, MessageFold, lambda m, r: m.encode(r))}
    assert bodies == GOLDEN[name_of(path)]
