"""The statuses of a turn: one table, which docs and output use."""

import re
from typing import get_args

from sidestream.cli.chat.session import EXIT_CODES
from sidestream.turn import TURN_STATUSES, TurnStatus
from sidestream.turn.state import status_after
from support.places import ROOT

DOCS = ROOT / "docs" / "store.md"


def test_every_status_has_meaning_exit_code_and_docs_row() -> None:
    names = set(get_args(TurnStatus))
    assert set(TURN_STATUSES) == set(EXIT_CODES) == names
    table = DOCS.read_text("utf-8").partition("| status | meaning |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == names


def test_finish_reason_determines_turn_status() -> None:
    reasons = ["stop", "length", "content-filter", "approval", "error", None]
    assert [status_after(reason) for reason in reasons] == [
        *["complete", "complete", "complete"],
        *["waiting", "failed", "failed"],
    ]
