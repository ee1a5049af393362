"""Every limit in one place, with its reason and what happens at it."""

from msgspec import Struct

MIB = 1024 * 1024


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of one run. Pass your own to `Agent(limits=Limits(...))`; units are in the names."""

    max_event_bytes: int = 64 * MIB
    """One event of a stream. A 4K image in base64 is near 30 MiB. Above it: `error(protocol)`, connection closed."""

    max_response_bytes: int = 1024 * MIB
    """All bytes of one response. Guards against a stream without end. Above it: `error(limit)`, connection closed."""

    max_error_body_bytes: int = 64 * 1024
    """How much of an HTTP error's body is read; the first 500 characters reach the message."""

    max_download_bytes: int = 512 * MIB
    """One downloaded deliverable. Above it the file is left out and an `error(tool)` says so."""

    max_parallel_downloads: int = 4
    """Downloads of one step that run at once."""

    connect_timeout_s: float = 10.0
    """Opening the connection, per try."""

    first_byte_timeout_s: float = 600.0
    """From the request to the first event (or the whole body). Models may think for minutes."""

    idle_timeout_s: float = 600.0
    """Between two data events of a stream; comments and keep-alives do not count. At it: `error(timeout)`."""

    max_retries: int = 2
    """Tries of an opening request after the first."""

    max_resumptions: int = 5
    """How often a broken stream is taken up again, where the provider goes on without us. Also how many times in a row
    asking for an answer in the background may fail before the run does."""

    poll_interval_s: float = 1.0
    """The wait before an answer in the background is asked for again. Short ones are done in seconds, so it begins
    small and grows by half each time."""

    max_poll_interval_s: float = 15.0
    """Up to here that wait grows. To an answer that takes minutes a few seconds make no difference; requests do."""

    max_background_s: float = 7200.0
    """How long a run asks for an answer in the background. Research takes up to an hour. At it: `finish(limit)`; the
    provider goes on, and `run.cancel()` stops it there."""

    max_retry_wait_s: float = 120.0
    """A server that asks for a longer wait than this fails the request at once."""

    max_steps: int = 32
    """Model calls of one run. At it: `finish(limit)`."""

    max_tool_calls: int = 256
    """Client tool calls of one run. At it: `finish(limit)`."""

    max_tokens: int | None = None
    """Tokens in and out of one run, all steps. Once reached, no further step is made: `finish(limit)`."""

    max_run_s: float | None = None
    """Wall time of one run. At it whatever is under way is stopped: `finish(limit)`."""

    max_output_retries: int = 2
    """How often typed output that does not fit its schema is asked for again."""

    max_parallel_tools: int = 16
    """Client tools of one round that run at once; the rest wait their turn."""

    tool_timeout_s: float = 300.0
    """One client tool call. At it the model gets an error result."""

    max_tool_result_bytes: int = 1 * MIB
    """One client tool result as JSON. Longer ones are cut, with a note that the model can read."""


DEFAULT_LIMITS = Limits()
