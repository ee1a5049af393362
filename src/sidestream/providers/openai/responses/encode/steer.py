"""A message of the user to a response in progress, over WebSocket: `response.steer`. Pure."""

from typing import Any

from sidestream import jsontext
from sidestream.messages.message import ChatMessage
from sidestream.messages.replays import Replays
from sidestream.providers.openai.responses.encode.input import InputTarget, encode_input
from sidestream.providers.openai.responses.encode.request import DISPLAY_NAME
from sidestream.providers.openai.responses.options import OpenAIResponsesOptions
from sidestream.providers.shared.encoding import checked_options


def steer_event(response_id: str, message: ChatMessage, options: Any) -> bytes:
    """The event. It names no lane: that of the response is meant."""
    detail = checked_options(options, OpenAIResponsesOptions(), DISPLAY_NAME).image_detail
    target = InputTarget(model="", base_url="", session_keys=(), replays=Replays({}), image_detail=detail)
    items = [{"type": "message", **item} for item in encode_input((message,), (), target)[0]]
    return jsontext.dumps({"type": "response.steer", "previous_response_id": response_id, "input": items})
