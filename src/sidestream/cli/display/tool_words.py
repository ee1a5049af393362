"""What tools are doing, did or failed at, in words: the same table as the page's (`page/src/tools/words.ts`).

A test compares the two, function by function.
"""


def things(count: int, one: str, many: str | None = None) -> str:
    """A number of things: `3 pages`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """A time: `1.4 s`, `42 s`, `3 min 5 s`, `1 h 2 min`."""
    if seconds < 10:
        tenths = f"{seconds:.1f}".removesuffix(".0")
        return f"{tenths} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def size(count: int) -> str:
    """A number of bytes: `812 B`, `14 kB`, `1.2 MB`."""
    if count < 1000:
        return f"{count} B"
    if count < 1_000_000:
        return f"{count / 1000:.0f} kB"
    return f"{count / 1_000_000:.1f}".removesuffix(".0") + " MB"


def quoted(text: str) -> str:
    return f"“{text}”"


def searching(query: str | None) -> str:
    return f"Searching {quoted(query)}…" if query else "Searching…"


def searched(query: str | None, pages: int) -> str:
    found = f" · {things(pages, 'page')}" if pages > 0 else ""
    return f"Searched {quoted(query) if query else 'the web'}{found}"


def opening(host: str) -> str:
    return f"Opening {host}…"


def opened(host: str) -> str:
    return f"Opened {host}"


def looked_for(text: str, host: str) -> str:
    return f"Looked for {quoted(text)} in {host}"


def search_failed(message: str) -> str:
    return f"Search failed: {message}"


def fetching(address: str) -> str:
    return f"Fetching {address}…"


def fetched(title: str, count: int | None) -> str:
    return f"Fetched {title}{f' · {size(count)}' if count else ''}"


def not_fetched(message: str) -> str:
    return f"Not fetched: {message}"


def searching_index() -> str:
    return "Searching index…"


def passages(count: int, files: int) -> str:
    return f"{things(count, 'passage')} in {things(files, 'file')}"


def writing_code() -> str:
    return "Writing code…"


def running_code() -> str:
    return "Running…"


def ran_code(language: str) -> str:
    return f"Ran {language}"


def raised(error: str) -> str:
    return f"Raised {error}"


def exit(code: int) -> str:
    return f"Exit {code}"


def ran_shell() -> str:
    return "Ran"


def making_image() -> str:
    return "Making an image…"


def preview(index: int) -> str:
    return f"Preview {index}"


def made_image() -> str:
    return "Made an image"


def image_failed() -> str:
    return "Preview only: not finished"


def patching() -> str:
    return "Editing files…"


def patched(files: int, plus: int, minus: int) -> str:
    return f"Edited {things(files, 'file')}, +{plus} \N{MINUS SIGN}{minus}"


def patch_failed(message: str) -> str:
    return f"Patch did not apply: {message}"


def action(name: str, what: str) -> str:
    text = f"{name[:1].upper()}{name[1:].replace('_', ' ')}"
    return f"{text} {what}" if what else text


def actions(count: int) -> str:
    return things(count, "action")


def listing(server: str) -> str:
    return f"Asking {server} for its tools…"


def listed(server: str, tools: int) -> str:
    return f"{server} offers {things(tools, 'tool')}"


def list_failed(server: str, message: str) -> str:
    return f"{server} did not answer: {message}"


def calling(tool: str, server: str) -> str:
    return f"Calling {tool} on {server}…"


def asked_to_call(tool: str, server: str) -> str:
    return f"Asked to call {tool} on {server}"


def called(tool: str, server: str) -> str:
    return f"{server}: {tool}"


def answered_error(tool: str) -> str:
    return f"{tool} answered with an error"


def function_running(title: str) -> str:
    return f"{title}…"


def not_json() -> str:
    return "Not run: arguments are no JSON"


def asking(agent: str) -> str:
    return f"Asking {agent}…"


def answered(agent: str) -> str:
    return f"{agent} answered"


def looking_for_tool() -> str:
    return "Looking for a tool…"


def found_tools(count: int) -> str:
    return f"Found {things(count, 'tool')}"


_NOTES = {"view": "Read notes", "delete": "Deleted a note", "rename": "Renamed a note"}
"""Command of a memory tool → what it did; the others save a note."""


def saved_note(command: str) -> str:
    return _NOTES.get(command, "Saved a note")


def saving_note() -> str:
    return "Saving a note…"


def remembering() -> str:
    return "Reading notes…"


def took(ms: float) -> str:
    return duration(ms / 1000)


def here() -> str:
    return "here"


def granted() -> str:
    return "allowed in this conversation"


def denied(title: str) -> str:
    return f"{title} was denied"


def thinking_now() -> str:
    return "Thinking…"


def thought_for(ms: float | None) -> str:
    return "Thought" if ms is None or ms < 1000 else f"Thought for {duration(ms / 1000)}"
