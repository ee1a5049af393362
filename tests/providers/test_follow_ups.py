"""What continues a recorded conversation is pinned: the bodies of all requests, for every way to continue it.

`tests/golden/follow_ups.json` holds their digests, as they were when messages still held whole items. After an
intended change of requests, `PYTHONPATH=tests python -m followups` writes it again.
"""

import json
from pathlib import Path

import pytest

from conftest import RECORDINGS
from followups import GOLDEN, LoggedFolds, digest, follow_ups, recordings_of
from requirements import requirement
from sidestream.messages.fold import MessageFold

FILES = recordings_of(RECORDINGS)
HELD = ("_responses_session", "_google_interactions_session")
FALLS_BACK = ("refused", "other-model", "edited", "stored-then-unstored")
"""Ways in which a conversation continues without the session that the server holds."""


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, str]]:
    return json.loads(GOLDEN.read_text())


@requirement("R42", "R43")
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_conversation_with_a_log_continues_as_if_messages_held_whole_items(
    path: Path, golden: dict[str, dict[str, str]]
) -> None:
    log = LoggedFolds()
    assert {way: digest(encoded) for way, encoded in follow_ups(path, log.fold, log.encode)} == golden[name_of(path)]
    assert not log.is_reduced


@requirement("R42", "R43")
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_conversation_without_a_log_does_too_unless_the_server_refuses_what_only_it_holds(
    path: Path, golden: dict[str, dict[str, str]]
) -> None:
    for way, encoded in follow_ups(path, MessageFold, lambda model, request: model.encode(request)):
        assert encoded.needs == ()
        is_held = path.parent.name in ("openai-responses", "open-responses", "google-interactions")
        if not (is_held and way in FALLS_BACK):
            assert digest(encoded) == golden[name_of(path)][way], way
