"""All limits, each with its reason and what happens when it is reached."""

from msgspec import Struct

MIB = 1024 * 1024

MAX_ATTRIBUTE_CHARS = 1000
"""Maximum characters of a telemetry attribute that came from a server, such as an id or an error. The rest is cut."""

MAX_UNPARSED_BYTES = 4096
"""Maximum bytes of an event that is not JSON, as a `raw` part. It may be a web page or half an image."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of one run. Units are in the names.

    ```python
    agent = Agent("openai-responses", limits=Limits(max_steps=5, max_run_s=60, max_cost=0.10))
    ```
    """

    max_event_bytes: int = 64 * MIB
    """Maximum size of one stream event; a 4K image in base64 has about 30 MiB. Beyond it: `error(protocol)`, and the
    connection is closed."""

    max_response_bytes: int = 1024 * MIB
    """Maximum size of one response, in case a stream never ends. Beyond it: `error(limit)`, connection closed."""

    max_error_body_bytes: int = 64 * 1024
    """Maximum bytes of an HTTP error's body to read. Its first 500 characters appear in the message."""

    max_download_bytes: int = 512 * MIB
    """Maximum size of a downloaded deliverable. A larger file is skipped, and an `error(tool)` reports it."""

    max_upload_bytes: int = 512 * MIB
    """Maximum size of an uploaded file; OpenAI and Anthropic accept no larger ones. Beyond it, `LimitError` is raised
    and nothing is sent."""

    max_processing_s: float = 600.0
    """Maximum time that an upload waits for the provider to process the file, e.g. to index it for search. Videos and
    large documents take minutes. After it, `LimitError` is raised; the file is stored, and the provider continues."""

    max_parallel_downloads: int = 4
    """Concurrent downloads of one step."""

    connect_timeout_s: float = 10.0
    """Time to open the connection, per try."""

    first_byte_timeout_s: float = 600.0
    """Time from the request to the first event (or the whole body). Models may reason for minutes."""

    idle_timeout_s: float = 600.0
    """Time between two stream events with content; comments, pings and other keep-alives do not count. After it:
    `error(timeout)`."""

    max_retries: int = 2
    """Maximum retries of an opening request."""

    max_retrying_s: float = 1200.0
    """Maximum time from the first try of a request to the start of the last. A retry that would start later is not
    made, and the error is final. Each try has its own timeouts."""

    max_resumptions: int = 5
    """Maximum reconnections to a broken stream, if the provider continues the response without us. Also the maximum
    consecutive failures of polling a background response before the run fails."""

    poll_interval_s: float = 1.0
    """Initial wait between two polls of a background response, which grows by half each time. It is short because some
    responses complete within seconds."""

    max_poll_interval_s: float = 15.0
    """Maximum of that wait. For a response that takes minutes, fewer requests matter more than a few seconds."""

    max_background_s: float = 7200.0
    """Maximum time that a run polls a background response. Research takes up to an hour. After it: `finish(limit)`; the
    provider continues, and `run.cancel()` cancels the response there."""

    max_retry_wait_s: float = 120.0
    """Longest wait that a server may request with Retry-After. If it requests more, the request fails at once."""

    max_steps: int = 32
    """Maximum model calls of one run. After them: `finish(limit)`."""

    max_tool_calls: int = 256
    """Maximum client tool calls of one run. After them: `finish(limit)`."""

    max_total_tokens: int | None = None
    """Maximum input and output tokens of one run, all steps. Once reached, no step begins: `finish(limit)`."""

    max_cost: float | None = None
    """Maximum US dollars of one run, all steps, at the prices of `usage.cost`. Once reached, no step begins:
    `finish(limit)`. A model without a known price is refused before anything is sent: `ConfigurationError`. If a later
    step uses something without one, the run stops there, and `metadata["unpriced"]` names it."""

    max_run_s: float | None = None
    """Maximum wall time of one run. After it, everything in progress is cancelled: `finish(limit)`."""

    max_output_retries: int = 2
    """Maximum retries of typed output that does not fit its schema."""

    max_parallel_tools: int = 16
    """Concurrent client tools of one round; the others wait."""

    tool_timeout_s: float = 300.0
    """Maximum time of one client tool call. After it, the model gets an error result."""

    max_tool_result_bytes: int = 1 * MIB
    """Maximum size of one client tool result as JSON. Longer ones are truncated, with a note for the model."""


DEFAULT_LIMITS = Limits()


class SandboxLimits(Struct, frozen=True, kw_only=True):
    """Limits of one container in which code runs locally."""

    memory_bytes: int = 1536 * MIB
    """Address space of each process, and of the whole container where a cgroup is available. pandas needs 400 MiB.
    Beyond it: MemoryError inside, or the container ends."""

    cpu_s: int = 600
    """CPU time of each process, over all its cells. After it, the process is killed."""

    processes: int = 64
    """Processes and threads. Beyond it, fork fails inside."""

    open_files: int = 256
    """File descriptors of each process."""

    disk_bytes: int = 64 * MIB
    """Size of the working folder and of /tmp, each. They are kept in memory. Beyond it, no space is left inside."""

    cell_s: float = 120.0
    """Wall time of one cell or command. After it, the container is killed; the next call gets a new one."""

    start_s: float = 30.0
    """Maximum time until a container is ready. It takes some 20 ms when idle, and seconds under load."""

    log_bytes: int = 256 * 1024
    """Maximum output of a cell to keep. The rest is dropped, with a note for the model."""

    output_bytes: int = 64 * MIB
    """Maximum output of one cell, kept or dropped. Beyond it, the container is killed, as the code only prints."""

    files: int = 64
    """Maximum deliverables (images and files) of one cell. More are named in a note."""

    file_bytes: int = 32 * MIB
    """Maximum size of one deliverable. A larger one is named in a note."""

    delivered_bytes: int = 64 * MIB
    """Maximum size of all deliverables of one cell, which are in memory at once. It equals the working folder's, but a
    sparse file takes no space there. Deliverables beyond it are named in a note."""

    calls: int = 10_000
    """Maximum tool calls of one program, including refused ones, as each is remembered until the program ends.
    `Limits.max_tool_calls` is usually reached long before. Beyond it, the container is killed."""

    pending_calls: int = 64
    """Maximum tool calls of one program whose answers it has not read. A program that starts more at once waits inside
    for half of these. Beyond it, the container is killed, as the code does not read its answers."""

    argument_bytes: int = 2 * MIB
    """Maximum size of the arguments of all pending tool calls as JSON, which take some 30 times as much memory when
    parsed. One call may have half of it; more is an error inside. Beyond it, the container is killed."""


DEFAULT_SANDBOX_LIMITS = SandboxLimits()

CODE_LIMITS = SandboxLimits(
    memory_bytes=4096 * MIB,
    cpu_s=3600,
    disk_bytes=1024 * MIB,
    cell_s=300.0,
    log_bytes=64 * 1024,
    file_bytes=128 * MIB,
    delivered_bytes=256 * MIB,
)
"""Defaults of a code interpreter: enough to analyse some hundred MB of data. The working folder uses memory only for
what is in it. The output goes to a model, which reads a token per 4 bytes."""

MAX_PATCHED_BYTES = 16 * MIB
"""Maximum size of a workspace file to patch; source code is smaller. Beyond it: an error result, nothing changes."""

MAX_CONTAINERS = 16
"""Maximum containers that one process keeps for the next call. Each has about 15 MiB before its imports. Beyond it,
the one idle longest ends; if all are busy, a call gets an error."""

MAX_CONTAINER_IDLE_S = 1200.0
"""Maximum time that a container waits for the next call, as at OpenAI. After it, the container ends, and the next call
gets a new one, with a note for the model."""

MAX_UNSTORED_BYTES = 64 * MIB
"""Maximum size of a chat's records that wait in memory for a failed store. Beyond it they are dropped: the chat
continues, but is no longer stored, even if the store recovers."""

MAX_DATA_SESSIONS = 8
"""Maximum connection pools for hosts from data, one per address policy. Beyond it, an unused one is closed."""

MAX_ENTRIES = 10_000
"""Maximum blocks, items, calls, sources and files of one answer. Long research has some hundreds, and far more would
keep the client busy. Beyond it: `error(limit)`, connection closed."""

MAX_TOOL_ATTEMPTS = 5
"""Maximum starts of a tool with `on_interruption="retry"` for one call. A call that crashes its process each time,
e.g. for lack of memory, must not do so indefinitely. Beyond it, the user decides."""

MAX_PENDING_STEERS = 64
"""Maximum messages of `run.steer` that no request has taken yet. A user sends a few; a loop that sends more is a bug.
Beyond it: `SteerError`."""

MAX_STEER_ANSWER_S = 10.0
"""Maximum time that a finished response waits for the server to accept or refuse a message sent to it. A server
without support for such messages may not answer. After it, the next request takes the message."""

MAX_UNREAD_BYTES = 64 * MIB
"""Maximum size of unread events of a response over WebSocket. Responses share the connection, so it cannot wait for
one reader. Beyond it: `error(limit)` for that response; the others continue."""

MAX_SOURCES = 1000
"""Maximum untrusted sources that a conversation records for approvers, who will not read a longer list. Beyond it, no
more are recorded, and the conversation stays untrusted."""

MAX_FOUND_URLS = 500
"""Maximum URLs of one message that searches found and that may be fetched without approval; a search has 10 to 20
hits. Beyond it, the user is asked."""

MAX_MEMORY_FILES = 1000
"""Maximum files of one memory. A model would not find more. Beyond it: an error result, nothing changes."""

MAX_MEMORY_BYTES = 1 * MIB
"""Maximum size of one memory, which is for notes rather than data. Beyond it: an error result, nothing changes."""

MAX_PARSED_DOCUMENTS = 4
"""Maximum pages and files parsed concurrently per event loop, each in a process with up to 1 GiB. The others wait."""

MIN_TOKEN_CHARS = 22
"""Minimum length of a server token: 128 bits in base64. A shorter one could be guessed: `ConfigurationError`."""

MAX_TOKEN_GUESSES = 10
"""Maximum wrong tokens that one address may send at once; then one per second. A browser tab with an old token sends a
few. Beyond it: status 429. A valid token of full length is never slowed, so that users behind one proxy do not lock
each other out."""

MAX_TOTAL_TOKEN_GUESSES = 100
"""Maximum for all addresses together, because a client behind a trusted proxy can claim any address."""

MAX_GUESSING_ADDRESSES = 1024
"""Maximum addresses whose wrong tokens are counted. Beyond it, the one quiet longest is forgotten."""

MAX_OWNER_BODY_BYTES = 128 * MIB
"""Maximum size of one tenant's request bodies being read: two of the largest. Beyond it: status 429, before reading."""

MAX_TOTAL_BODY_BYTES = 512 * MIB
"""Maximum for all tenants together."""

SMALL_BODY_BYTES = 64 * 1024
"""Size of bodies that are not counted. uvicorn buffers as much anyway, and decisions must not wait for uploads."""

MAX_HEADER_S = 30.0
"""Maximum time to receive a request's headers, which need no token. After it: status 408, and the connection ends."""

MAX_HEADER_BYTES = 64 * 1024
"""Maximum size of a request's headers while they arrive. Above it: status 400 or 431, and the connection ends."""

MAX_BODY_S = 300.0
"""Maximum time to receive a body; 64 MiB take that long at 2 Mbit/s. After it: status 408."""
