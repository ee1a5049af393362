"""What continues a recorded conversation is pinned: the bodies of all requests, for every way to continue it.

`tests/golden/follow_ups.json` holds their digests, as they were when messages still held whole items. After an
intended change of requests, `PYTHONPATH=tests python -m support.followups` writes it again.
"""

import json
import statistics
from functools import partial
from pathlib import Path

import pytest

from conftest import RECORDINGS
from requirements import requirement
from sidestream import jsontext
from sidestream.messages.fold import MessageFold
from sidestream.messages.sessions import is_session_key
from support.followups import GOLDEN, LoggedFolds, digest, follow_ups, history_of, recordings_of

FILES = recordings_of(RECORDINGS)
HELD = ("openai-responses", "open-responses", "google-interactions")
"""Folders whose provider keeps the answers."""
OF_HOSTED = {
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "compaction",
    "program",
    "google_search_call",
    "code_execution_call",
}
FALLS_BACK = ("refused", "other-model", "edited", "stored-then-unstored")
"""Ways in which a conversation continues without the session that the server holds."""


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, str]]:
    return json.loads(GOLDEN.read_text())


@requirement("R42", "R43")
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_logged_conversation_encodes_same_requests(path: Path, golden: dict[str, dict[str, str]]) -> None:
    log = LoggedFolds()
    assert {way: digest(encoded) for way, encoded in follow_ups(path, log.fold, log.encode)} == golden[name_of(path)]
    assert not log.is_reduced


@requirement("R42", "R43")
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_unlogged_conversation_falls_back_only_when_refused(path: Path, golden: dict[str, dict[str, str]]) -> None:
    for way, encoded in follow_ups(path, MessageFold, lambda model, request: model.encode(request)):
        assert encoded.needs == ()
        if not (path.parent.name in HELD and way in FALLS_BACK):
            assert digest(encoded) == golden[name_of(path)][way], way
            continue
        sent = jsontext.loads(encoded.call.body or b"")["input"]
        assert OF_HOSTED.isdisjoint(item.get("type") for item in sent), way


@requirement("R42")
@pytest.mark.parametrize(("is_logged", "store", "limit"), [(False, True, 2.0), (True, True, 2.6), (True, False, 1.4)])
def test_session_size_is_close_to_text_size(recordings: Path, is_logged: bool, store: bool, limit: float) -> None:
    """With whole items in the message, the median was 14 times the text."""
    sizes = [
        (len(jsontext.dumps(session)), len(message.text.encode()))
        for path in recordings_of(recordings / "openai-responses")
        for message in history_of(path, store=store, fold=partial(MessageFold, is_logged=is_logged))
        for key, session in message.metadata.items()
        if is_session_key(key)
    ]
    median = statistics.median(size / text for size, text in sizes if text)
    print(f"session / text: median {median:.2f}, largest session {max(sizes)[0]} bytes")
    assert median < limit
    assert max(sizes)[0] < 1500, "the largest was 41,000 bytes"
