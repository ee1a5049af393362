"""Summaries that the server made of a conversation: which messages they stand for."""

from collections.abc import Sequence

from sidestream.messages.message import ChatMessage
from sidestream.messages.replays import Replays
from sidestream.providers.anthropic.encode.replay import layout_of, session_of

SUMMARY = "summary"
"""The field of a session that says what a summary in its answer stands for."""
WHOLE = "whole"
"""All messages before it, which must not be sent with it."""
TURN = "turn"
"""What came before it in a longer answer; the server leaves that out itself."""


def first_after_summary(messages: Sequence[ChatMessage], model: str, base_url: str, replays: Replays) -> int:
    """The place of the newest summary of the whole conversation; 0 if there is none, or its block is not available."""
    for place in range(len(messages) - 1, -1, -1):
        session = session_of(messages[place], base_url) if messages[place].role == "model" else None
        if session is not None and session.get(SUMMARY) == WHOLE:
            return place if layout_of(messages[place], model, base_url, replays) is not None else 0
    return 0
