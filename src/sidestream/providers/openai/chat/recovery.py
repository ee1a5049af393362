"""Parameters that compatible servers refuse, and the retry without them."""

import re

from sidestream.errors import RunError
from sidestream.providers.protocol import Recovery, Refusal
from sidestream.stream.parts import Custom

DROPPED = "sidestream.parameter-dropped"
"""The kind of the custom part that reports it."""


def _refusal(parameter: str, pattern: str, consequence: str) -> Refusal:
    message = f"The server refused {parameter}, so {consequence}."
    notice = Custom(DROPPED, {"parameter": parameter, "reason": "refused", "message": message})
    return Refusal(re.compile(pattern, re.IGNORECASE), Recovery(parameter, notice))


REFUSALS = (
    _refusal("stream_options", r"stream_options|include_usage", "the usage of this stream may be unknown"),
    _refusal("max_tokens", r"max_tokens\W.*max_completion_tokens", "max_completion_tokens was sent instead"),
    _refusal("max_completion_tokens", r"max_completion_tokens", "max_tokens was sent instead"),
    _refusal("parallel_tool_calls", r"parallel_tool_calls", "the model may call one tool or several at once"),
    _refusal("response_format", r"response_format|json_schema", "the schema was put into the instructions"),
    _refusal("strict", r"\bstrict\b", "tool input and answers may not follow their schemas"),
)
"""Parameter in the message of a refusal → how to recover. The first that matches counts."""

_UNSUPPORTED = re.compile(
    r"not (be )?(supported|permitted|allowed|available|recogni[sz]ed|implemented)|does not support|unsupported|"
    r"unavailable|unknown|unrecogni[sz]ed|unexpected|extra[_ ](inputs|fields|forbidden)|invalid (parameter|argument)",
    re.IGNORECASE,
)
"""Messages about an unsupported parameter, as opposed to an invalid value."""

_REFUSED = frozenset({400, 404, 422, 501, None})  # None: the error came in the stream


def recovery_of(error: RunError) -> Recovery | None:
    """What to leave out of the retry; None for any other error."""
    if error.status not in _REFUSED or not _UNSUPPORTED.search(f"{error.code or ''} {error.message}"):
        return None
    return next((refusal.recovery for refusal in REFUSALS if refusal.pattern.search(error.message)), None)
