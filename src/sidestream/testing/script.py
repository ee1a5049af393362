"""Former home of the replies and of `ResponsesScript`; delete it once nothing imports it."""

from sidestream.testing.replies import (
    Event as Event,
    Keepalives as Keepalives,
    Reply as Reply,
    dropped as dropped,
    encode_event as encode_event,
    encode_events as encode_events,
    error_reply as error_reply,
    html_page as html_page,
    json_reply as json_reply,
    pixel_png as pixel_png,
    recorded as recorded,
    sse as sse,
)
from sidestream.testing.responses_script import (
    ResponsesScript as ResponsesScript,
    responses_function_call as responses_function_call,
    responses_text as responses_text,
)
