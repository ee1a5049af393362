"""Every limit in one place, with its reason and what happens when it is reached."""

from msgspec import Struct

MIB = 1024 * 1024

MAX_ATTRIBUTE_CHARS = 1000
"""Of an attribute in telemetry whose text came from a server: ids, names, errors. The rest is cut off."""

MAX_UNPARSED_BYTES = 4096
"""Of an event that is not JSON, as a `raw` part: enough to see what it was. It may be a page, or half an image."""


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of one run. Pass your own; units are in the names.

    ```python
    agent = Agent("openai-responses", limits=Limits(max_steps=5, max_run_s=60, max_cost=0.10))
    ```
    """

    max_event_bytes: int = 64 * MIB
    """One event of a stream. A 4K image in base64 has about 30 MiB. Above it: `error(protocol)`, connection closed."""

    max_response_bytes: int = 1024 * MIB
    """All bytes of one response, in case a stream never ends. Above it: `error(limit)`, connection closed."""

    max_error_body_bytes: int = 64 * 1024
    """How much of an HTTP error's body is read; its first 500 characters appear in the message."""

    max_download_bytes: int = 512 * MIB
    """One downloaded deliverable. Above it the file is skipped, and an `error(tool)` reports it."""

    max_upload_bytes: int = 512 * MIB
    """One uploaded file; OpenAI and Anthropic accept no larger ones. Above it nothing is sent: `LimitError`."""

    max_processing_s: float = 600.0
    """How long an upload waits until the provider has processed the file, e.g. indexed it for search. Videos and large
    documents take minutes. After it: `LimitError`; the file is stored, and the provider continues."""

    max_parallel_downloads: int = 4
    """Concurrent downloads of one step."""

    connect_timeout_s: float = 10.0
    """Opening the connection, per try."""

    first_byte_timeout_s: float = 600.0
    """From the request to the first event (or the whole body). Models may reason for minutes."""

    idle_timeout_s: float = 600.0
    """Between two events of a stream that say something; comments, pings and other keep-alives do not count. After it:
    `error(timeout)`."""

    max_retries: int = 2
    """Retries of an opening request."""

    max_retrying_s: float = 1200.0
    """From the first try of a request to the beginning of the last. A retry that would begin later is not made, and the
    error is final; each try has its own timeouts."""

    max_resumptions: int = 5
    """Reconnections to a broken stream, if the provider continues the response without us. Also the failures in a row
    of polling a background response before the run fails."""

    poll_interval_s: float = 1.0
    """The wait between two polls of a background response. Short ones complete within seconds, so it begins small and
    grows by half each time."""

    max_poll_interval_s: float = 15.0
    """The maximum of that wait. For a response that takes minutes, fewer requests matter more than a few seconds."""

    max_background_s: float = 7200.0
    """How long a run polls a background response. Research takes up to an hour. After it: `finish(limit)`; the provider
    continues, and `run.cancel()` cancels the response there."""

    max_retry_wait_s: float = 120.0
    """The longest wait that a server may request with Retry-After. Above it the request fails at once."""

    max_steps: int = 32
    """Model calls of one run. After them: `finish(limit)`."""

    max_tool_calls: int = 256
    """Client tool calls of one run. After them: `finish(limit)`."""

    max_total_tokens: int | None = None
    """Input and output tokens of one run, all steps. Once reached, no further step begins: `finish(limit)`."""

    max_cost: float | None = None
    """US dollars of one run, all steps, at the prices of `usage.cost`. Once reached, no further step begins:
    `finish(limit)`. A model without a known price is refused before anything is sent: `ConfigurationError`. If a later
    step uses something without one, the run stops there, and `metadata["unpriced"]` names it."""

    max_run_s: float | None = None
    """Wall time of one run. After it everything in progress is cancelled: `finish(limit)`."""

    max_output_retries: int = 2
    """Retries of typed output that does not fit its schema."""

    max_parallel_tools: int = 16
    """Concurrent client tools of one round; the others wait."""

    tool_timeout_s: float = 300.0
    """One client tool call. After it the model gets an error result."""

    max_tool_result_bytes: int = 1 * MIB
    """One client tool result as JSON. Longer ones are truncated, with a note for the model."""


DEFAULT_LIMITS = Limits()


class SandboxLimits(Struct, frozen=True, kw_only=True):
    """Bounds of one container in which code runs on this machine."""

    memory_bytes: int = 1536 * MIB
    """Address space of each process; of the container as a whole where a cgroup may be had. pandas needs 400 MiB. Above
    it: MemoryError inside, or the container ends."""

    cpu_s: int = 600
    """CPU time of each process, over all its cells. After it the process is killed."""

    processes: int = 64
    """Processes and threads. Above it: fork fails inside."""

    open_files: int = 256
    """File descriptors of each process."""

    disk_bytes: int = 64 * MIB
    """The working folder, and /tmp, each. They are kept in memory. Above it: no space left on device, inside."""

    cell_s: float = 120.0
    """Wall time of one cell or command. After it the container is killed; the next call gets a new one."""

    start_s: float = 30.0
    """Until a container is ready. Some 20 ms when idle; a machine under load may need seconds."""

    log_bytes: int = 256 * 1024
    """What is kept of a cell's output. The rest is dropped, with a note for the model."""

    output_bytes: int = 64 * MIB
    """Output of one cell, kept or dropped. Above it the container is killed: the code does nothing but print."""

    files: int = 64
    """Deliverables of one cell: images and files. More are named in a note."""

    file_bytes: int = 32 * MIB
    """One deliverable. A larger one is named in a note."""

    delivered_bytes: int = 64 * MIB
    """All deliverables of one cell, which are in memory at once: as much as the working folder holds, since a sparse
    file takes no space there. What is beyond it is named in a note."""

    calls: int = 10_000
    """Tool calls of one program, refused ones too: each is remembered until the program ends. `Limits.max_tool_calls`
    is usually reached long before. Above it the container is killed."""

    pending_calls: int = 64
    """Tool calls of one program without an answer that it has read. A program that starts more at once waits inside for
    half of these. Above it the container is killed: the code does not read its answers."""

    argument_bytes: int = 2 * MIB
    """Arguments of all pending tool calls as JSON, which take some 30 times as much memory as values. One call may have
    half of it: more is an error inside. Above it the container is killed."""


DEFAULT_SANDBOX_LIMITS = SandboxLimits()

MAX_PATCHED_BYTES = 16 * MIB
"""A file of a workspace that a patch changes. Source code is smaller. Above it: an error result; nothing changes."""

MAX_CONTAINERS = 16
"""Containers of one process that are kept for the next call. Each has about 15 MiB before its imports. Above it, the
one that was idle longest ends; if all are busy, a call gets an error."""

MAX_CONTAINER_IDLE_S = 1200.0
"""How long a container waits for the next call, as at OpenAI. After it the container ends, and the next call gets a new
one, with a note for the model."""

MAX_UNSTORED_BYTES = 64 * MIB
"""Records of a chat that wait in memory for a store that failed. Above it they are dropped: the chat continues, but is
not stored any more, even if the store works again."""

MAX_DATA_SESSIONS = 8
"""Connection pools for hosts that came from data, one per address policy. Above it, one that nothing uses is closed."""

MAX_ENTRIES = 10_000
"""Blocks, items, calls, sources and files of one answer. Long research has some hundreds; a server that sends far more
keeps its reader busy. Above it: `error(limit)`, connection closed."""

MAX_TOOL_ATTEMPTS = 5
"""How often a tool with `on_interruption="retry"` is started for one call. A call that ends its process each time, for
lack of memory say, must not do so for ever. Above it: a person decides."""

MAX_PENDING_STEERS = 64
"""Messages of `run.steer` that no request has taken yet. A person sends a few; a loop that sends more is a mistake.
Above it: `SteerError`."""

MAX_STEER_ANSWER_S = 10.0
"""How long a response that has ended waits for the server to accept or refuse a message that was sent to it. A server
that knows no such messages may say nothing. After it: the next request takes the message."""

MAX_UNREAD_BYTES = 64 * MIB
"""Events of a response over WebSocket that have arrived and were not read. Responses share the connection, so it cannot
wait for one reader. Above it: `error(limit)` for that response; the others continue."""

MAX_SOURCES = 1000
"""Untrusted sources that a conversation remembers, for whoever decides about a call: nobody reads further than that.
Above it: no more are noted, and the conversation stays untrusted."""

MAX_FOUND_URLS = 500
"""URLs of one message that searches found and that may be fetched unasked; a search has 10 to 20 hits. Above it: a
person is asked."""

MAX_MEMORY_FILES = 1000
"""Files of one memory. A model that makes more does not find them again. Above it: an error result; nothing changes."""

MAX_MEMORY_BYTES = 1 * MIB
"""All files of one memory: notes, not a place for data. Above it: an error result; nothing changes."""

MAX_PARSED_DOCUMENTS = 4
"""Pages and files that are parsed at the same time for one event loop, each in a process with up to 1 GiB. The others
wait."""

MIN_TOKEN_CHARS = 22
"""A token of the server: 128 bits in base64. A shorter one could be guessed. Below it: `ConfigurationError`."""

MAX_TOKEN_GUESSES = 10
"""Wrong tokens that one address may send at once; then one per second. A page with an old token sends a few. Above it:
status 429. A right token of full length is never slowed, so users behind one proxy do not lock each other out."""

MAX_TOTAL_TOKEN_GUESSES = 100
"""The same for all addresses together: a client that others forward for can name any address as its own."""

MAX_GUESSING_ADDRESSES = 1024
"""Addresses whose wrong tokens are counted. Above it, the one that was quiet longest is forgotten."""

MAX_OWNER_BODY_BYTES = 128 * MIB
"""Bodies of one owner's requests that are being read: two of the largest. Above it: status 429, before reading."""

MAX_TOTAL_BODY_BYTES = 512 * MIB
"""The same for all owners together."""

SMALL_BODY_BYTES = 64 * 1024
"""Bodies that are not counted: uvicorn buffers as much of any request, and a decision must not wait for an upload."""

MAX_BODY_S = 300.0
"""How long a body may take. 64 MiB need that at 2 Mbit/s. After it: status 408."""
