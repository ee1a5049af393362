"""`make live`: the provider suite against the real APIs, for each provider whose key is set.

It sends some fifty short requests per provider to a small model, which costs a few cents each. Another model is named
by a variable, e.g. `SIDESTREAM_LIVE_ANTHROPIC=claude-sonnet-5-5`. Arguments go to pytest: `make live ARGS="-k tools"`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from conformance.suite import subjects  # noqa: E402

SPENDING = "Each is sent some fifty short requests, on your account: a few cents with these models."


class RealApis:
    """That this plugin is there tells the suite to test the real APIs. No variable can do that."""

    __name__ = subjects.LIVE_PLUGIN


def main(arguments: Sequence[str]) -> int:
    """Says whom it tests and whom not, and why; then tests. 0 where there is nobody to test."""
    found, left_out = subjects.live(os.environ)
    for subject in found:
        print(f"testing {subject.id}: {subject.model}")
    for name, reason in left_out.items():
        print(f"leaving out {name}: {reason}")
    if not found:
        print("No key is set, so there is nothing to test here.")
        return 0
    print(SPENDING, flush=True)
    # The package is imported already, so pytest cannot rewrite the asserts of its own plugin, which has none.
    options = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    return int(pytest.main([str(HERE), *options, *arguments], plugins=[RealApis()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
