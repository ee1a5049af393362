"""What Sidestream must do and survive, by id, and which of it is proven.

A test declares what it proves with `@requirement("R12", "F03")`, imported as `from requirements import requirement`
(pytest's `pythonpath` holds this folder). `test_requirements.py` checks the table and the tests against each other.

An entry is a sentence, its sources (`SOURCES` describes them) and its state. `proven` means that tests carry the id and
prove the whole sentence. `partial("what is missing")` means that tests carry the id, but part of the sentence is not
implemented or not tested. `deferred("reason")` means that no test carries it. The last two count as open. A commit that
changes what is proven changes the state too.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import pytest


class Deferred(NamedTuple):
    reason: str


class Partial(NamedTuple):
    missing: str


class Entry(NamedTuple):
    sentence: str
    sources: str
    """Names from `SOURCES`, with commas between them."""
    state: Literal["proven"] | Deferred | Partial


proven: Final = "proven"
deferred: Final = Deferred
partial: Final = Partial


def requirement(*ids: str) -> pytest.MarkDecorator:
    """Marks a test as proof of these ids."""
    return pytest.mark.requirement(*ids)


SOURCES: Final = {
    "OpenAI tools": "dartantic_ai's technical design of server-side tools for OpenAI Responses",
    "server-side tools": "the later edition of that design, for all providers; it gives the defaults, the earlier one the options",
    "Responses provider": "dartantic_ai's technical design of its provider for OpenAI Responses",
    "stream alignment": "Effect AI's plan to align its OpenAI stream with the Vercel AI SDK's",
    "tool architectures": "a chat server's design of local and remote MCP tools and functions over OpenAI Responses",
    "dartantic": "behaviour of dartantic_ai that its users rely on",
    "AI SDK": "the stream of the Vercel AI SDK",
    "users": "a problem that users of similar libraries report",
    "faults": "a fault or bad input that Sidestream must survive",
}
"""Where requirements come from: the name that entries use → what it is."""

# fmt: off
MANIFEST: Final[dict[str, Entry]] = {
    # A. The stream
    "R1": Entry("One canonical stream of typed, frozen parts serves everything.", "OpenAI tools, server-side tools, stream alignment, AI SDK", proven),
    "R2": Entry("What the decoder does not know or cannot read becomes a raw part, and the stream continues.", "OpenAI tools, server-side tools, stream alignment", proven),
    "R3": Entry("Each event of a server-side tool becomes exactly one tool-event, unchanged, before what is derived from it.", "OpenAI tools, server-side tools, stream alignment", proven),
    "R4": Entry("finish comes exactly once and last; a stream without its terminal event ends as truncated, never as success.", "OpenAI tools, server-side tools, stream alignment", proven),
    "R5": Entry("The legality of a part stream is one transition table with a checker that tests, fakes and faults use.", "OpenAI tools, server-side tools, stream alignment", proven),
    "R6": Entry("A part never changes after it is emitted; later knowledge is a new part with the same id.", "OpenAI tools, server-side tools, stream alignment", proven),
    "R7": Entry("Finish reasons are unified, each beside the provider's raw reason.", "OpenAI tools, server-side tools, stream alignment", proven),
    "R8": Entry("Usage has input, output, server tool counts and raw; it is reported per step and once in total.", "OpenAI tools, server-side tools, stream alignment", proven),
    "R9": Entry("A whole response is decoded to the same parts as a streamed one, by the same code.", "OpenAI tools, server-side tools, stream alignment", proven),

    # B. Results, messages, metadata
    "R10": Entry("send is exactly the fold of send_stream: outputs and messages of the chunks concatenate to the result's, corrections apart.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R11": Entry("A chunk or result has output, new messages, thinking, metadata, usage, finish_reason and id.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R12": Entry("Each tool event is a chunk of its own: a one-item list under its key, no output, no messages, no usage.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R13": Entry("send returns the whole event list of each key in order, delivered bytes as references, with thinking, response_id, model and status.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R14": Entry("Each provider's tools have fixed metadata keys.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R15": Entry("Messages consist of immutable text, thinking, data, link and tool parts and round-trip through JSON.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R16": Entry("Deliverables are parts and journeys are metadata; outside the live tool-event, delivered bytes are a reference; previews are logged only on request.", "OpenAI tools", proven),
    "R17": Entry("If text was streamed, the last chunk has no output and brings the non-text parts; if not, it brings all parts.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R18": Entry("In output a newline separates the texts of two model messages of a run where both are non-empty; it is never first and never stored.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R19": Entry("Metadata never goes to a model, except keys with a leading underscore, by the same provider's encoder.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R20": Entry("message_metadata is session (default), summary or full.", "OpenAI tools, server-side tools", proven),
    "R21": Entry("result_metadata is accumulated (default) or response.", "OpenAI tools, server-side tools", proven),
    "R22": Entry("Synthetic summaries of file search and code interpreter end their lists; the includes they need are requested.", "OpenAI tools", proven),
    "R23": Entry("Code deltas stream one by one; at the end one accumulated code event stands in the log.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R24": Entry("Typed accessors give tool events, files, sources and container id whatever the policy.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),
    "R25": Entry("strip_metadata makes a history small, with keys to keep and to drop; private keys stay by default.", "OpenAI tools, server-side tools, Responses provider, dartantic", proven),

    # C. OpenAI Responses
    "R30": Entry("Provider openai-responses has a name, default models, key, base URL and headers; a missing key is named.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R31": Entry("Each stream event and output item is handled or ignored with a reason; a test compares with the vendor's unions.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R32": Entry("Function tools keep their call_id; arguments stream, accumulate and parse; empty ones become {}.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R33": Entry("Code interpreter streams container id and code as one JSON text; containers are reused, an expired one replaced once.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R34": Entry("Apply patch streams its diff escaped, closes exactly once, and its tool-call comes at done.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R35": Entry("Image generation gives preliminary results for previews and a file part for each completed image.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R36": Entry("Shells, computer use, custom tools, tool search, programmatic calls, compaction and phase are handled.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R37": Entry("MCP lists, calls, failures and approvals are parts; an approved call keeps the id that the approval showed.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R38": Entry("Reasoning follows the store-aware state machine; encrypted content is requested and replayed without store.", "stream alignment", proven),
    "R39": Entry("Annotations become source parts as they arrive, and all of them stand on text-end.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R40": Entry("Container files that citations name are downloaded once each after completion and become DataParts.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R41": Entry("Each response status maps to a finish reason; a failed response carries code and message.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R42": Entry("The newest _responses_session is the anchor and only later messages are sent; with store it holds ids, not whole items; store=False uses none.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R43": Entry("An anchor that is refused or no longer fits falls back once to full replay, and the stream says so.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R44": Entry("Images, PDF, audio, video, other files and links go in as the right input items.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R45": Entry("Typed output uses the native JSON schema, with tools too, and streams partial JSON.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R46": Entry("Every option field reaches the wire, unsupported ones raise; configs are frozen and typed with defaults.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R47": Entry("Background responses can be created, polled or streamed, resumed by sequence number and cancelled.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),
    "R48": Entry("Embeddings come in batches with summed usage, and models can be listed.", "OpenAI tools, server-side tools, Responses provider, stream alignment", proven),

    # D. Anthropic
    "R50": Entry("Provider anthropic, alias claude, has its key and a max_tokens default of 4096.", "server-side tools", proven),
    "R51": Entry("Server tools are set by enum or config; versions and beta headers are chosen automatically.", "server-side tools", proven),
    "R52": Entry("Server tool use, input deltas and results become tool-event and tool-result parts, for MCP too.", "server-side tools", proven),
    "R53": Entry("Search results, citations, fetched documents and sandbox files become links, sources and DataParts, once each.", "server-side tools", proven),
    "R54": Entry("Thinking with signatures, redacted thinking and server blocks are replayed in their order.", "server-side tools", proven),
    "R55": Entry("pause_turn continues by itself within bounds, refusal is content-filter, error events are errors, the container id is kept.", "server-side tools", proven),
    "R56": Entry("Typed output is native where the model has it, else a return_result tool, with tools too.", "server-side tools", proven),
    "R57": Entry("The media model makes documents and images by code execution, with a PDF summary as fallback.", "server-side tools", proven),

    # E. Google
    "R60": Entry("Provider google, alias gemini: GOOGLE_API_KEY wins over GEMINI_API_KEY, with a warning when both are set.", "server-side tools", proven),
    "R61": Entry("Code execution, search and URL context are enum members; file search and Maps are option fields.", "server-side tools", proven),
    "R62": Entry("Code, results, inline data and grounding become tool events, DataParts and sources with spans, in streams too.", "server-side tools", proven),
    "R63": Entry("Thought summaries become reasoning, signatures are replayed, function calls have ids and partial arguments.", "server-side tools", proven),
    "R64": Entry("Typed output with tools is native where the model can, else in two phases.", "server-side tools", proven),
    "R65": Entry("Blocked prompts, safety stops, empty candidates and malformed calls give the right finish reason.", "server-side tools", proven),
    "R66": Entry("The Interactions API is a second model with a session by previous_interaction_id.", "server-side tools", proven),
    "R67": Entry("There is an image media model, and embeddings with task types in batches of 100.", "server-side tools", proven),

    # F. Agent and tools
    "R70": Entry("Agent has send, send_sync, send_stream and stream, with per-call overrides.", "Responses provider, tool architectures, dartantic", proven),
    "R71": Entry("Model strings name provider and models; providers come from entry points; unknown ones get suggestions.", "Responses provider, tool architectures, dartantic", proven),
    "R72": Entry("Tools are typed functions: schema, validation, concurrency, timeouts, errors as results, progress.", "Responses provider, tool architectures, dartantic", proven),
    "R73": Entry("Results of a round go into one message in call order; bad calls get error results; the loop is bounded.", "Responses provider, tool architectures, dartantic", proven),
    "R74": Entry("One empty answer after tools is retried once; the second is final.", "Responses provider, tool architectures, dartantic", proven),
    "R75": Entry("Histories of mixed providers work; foreign signatures and ids are never sent; tool ids are repaired.", "Responses provider, tool architectures, dartantic", proven),
    "R76": Entry("One approval mechanism (ask, run, deny or a callable) serves local tools and both kinds of MCP at every provider; remote MCP defaults to ask; a decision is bound to its arguments.", "Responses provider, tool architectures, dartantic", proven),
    "R77": Entry("Chat keeps a history, and a failed turn leaves it as it was.", "Responses provider, tool architectures, dartantic", proven),
    "R78": Entry("Cancellation at any await leaves no task, socket or child process.", "Responses provider, tool architectures, dartantic", proven),
    "R79": Entry("asyncio is the one loop; the sync API works in scripts and threads and says what to do inside a loop.", "Responses provider, tool architectures, dartantic", proven),

    # G. MCP and the event log
    "R80": Entry("Local MCP servers become function tools through the official client.", "tool architectures", proven),
    "R81": Entry("Remote MCP servers become the provider's native tool; both kinds work in one conversation.", "tool architectures", proven),
    "R82": Entry("An append-only event log rebuilds a conversation and finds its unresolved tool calls.", "tool architectures", proven),
    "R83": Entry("The store is a SQLite file or PostgreSQL by URL, with blobs by content hash.", "tool architectures", proven),
    "R84": Entry("A crash loses nothing that was acknowledged, and no client tool runs twice silently.", "tool architectures", proven),

    # H. Other surfaces
    "R90": Entry("Provider openai speaks Chat Completions to any compatible server by base URL.", "tool architectures", proven),
    "R91": Entry("The embedded model runs offline from package registries only, with no key and no download at run time.", "users", proven),
    "R92": Entry("The CLI has prompts, stdin, attachments, tools, JSONL, chat, logs, models, keys, replay, and exit codes.", "users", proven),
    "R93": Entry("The public testing kit plays recordings as a provider and has a fake server with scripted faults.", "users", proven),
    "R94": Entry("OpenTelemetry GenAI spans and metrics are off unless configured; content only on opt-in.", "users", proven),
    "R95": Entry("Logging uses sidestream.* loggers, and secrets are redacted everywhere.", "users", proven),

    # I. The edges
    "R100": Entry("Temperature, top_p, max_tokens, stop, seed, thinking and cache are portable settings, mapped or refused by each provider.", "users", proven),
    "R101": Entry("Chunks and results carry warnings, notices, errors that did not end the run, and raw parts.", "users", proven),
    "R102": Entry("A failed part stream raises its typed error after its last part, unless the caller opts into parts only.", "users", proven),
    "R103": Entry("The declared type of output is true at run time; where there is no output, reading it raises an error with the reason.", "users", proven),
    "R104": Entry("Options merge field by field: call over agent over provider.", "Responses provider", proven),
    "R105": Entry("Previews, files, links and sources are separate and typed; cited_text places markers by span; tool events can be queried by tool class.", "users", proven),
    "R106": Entry("Every part has a literal type and to_json, and is read back by part_from_json.", "users", proven),
    "R107": Entry("Plain scripts have sync forms of send, chat and streams.", "users", proven),
    "R108": Entry("Reprs are short, and notebooks show results richly.", "users", proven),
    "R109": Entry("system may be a callable; tools and policies see context.deps.", "users", proven),
    "R110": Entry("There is an in-process test model and agent.override.", "users", proven),
    "R111": Entry("Parts or chunks are available as an SSE byte stream for any ASGI framework.", "users", proven),
    "R112": Entry("The log is live: an open block is at most 250 ms or 16 kB behind, and a kill loses at most that.", "users", proven),
    "R113": Entry("One mcp.json holds local and remote servers for code, command line and page.", "tool architectures", proven),
    "R114": Entry("Client-answered calls have typed arguments, screenshots are DataParts on every provider, and safety checks are approvals.", "users", proven),
    "R115": Entry("Responses over WebSocket is a transport; steer works in mid-run there, at the next safe boundary elsewhere.", "users", proven),
    "R116": Entry("A decision is spent once across processes where there is a store.", "users", proven),

    # J. Portable server-side tools
    "R120": Entry("Every server-side tool but computer use works on every model, hosted or by our own runtime, and the stream reports which.", "server-side tools", proven),
    "R121": Entry("A tool that runs here emits the same parts, stages, results, files and sources as the hosted one; one suite compares them.", "server-side tools", proven),
    "R122": Entry("The code interpreter is isolated, limited and stateful, with files in and out and live logs; unisolated only on explicit request.", "server-side tools", proven),
    "R123": Entry("The shell runs in the same sandbox, with commands and output streamed.", "server-side tools", proven),
    "R124": Entry("Web fetch turns HTML, PDF and text into Markdown with offsets, under an egress policy, safe from SSRF.", "server-side tools", proven),
    "R125": Entry("Web search uses SearXNG, keyed APIs, any MCP tool or another provider's hosted search.", "server-side tools", proven),
    "R126": Entry("File search has an embedded, incremental index by keyword and vector, on PostgreSQL too, and cites page and offsets.", "server-side tools", proven),
    "R127": Entry("Any hosted tool can be delegated to a provider that has it, with everything it yields in the same run.", "server-side tools", proven),
    "R128": Entry("Tool search over many tools, and memory, work on every model.", "server-side tools", proven),
    "R129": Entry("Citations of tools that run here are verified against the stored source text, or marked as not found.", "server-side tools", partial("Evidence: citations that mean what they say")),

    # K. Server and page
    "R140": Entry("A Responses API server works over every provider: JSON, SSE, WebSocket, background, resume, cancel and conversations.", "tool architectures", proven),
    "R141": Entry("The UI message stream v1 serves unmodified useChat, and AG-UI its clients.", "AI SDK", proven),
    "R142": Entry("Runs belong to the server: they survive a disconnect, any reader resumes from any number, a kill ends in resumption or a reasoned failure.", "tool architectures", proven),
    "R143": Entry("The page has conversations, live tool cards, previews, citations, files, approvals, controls, panels and a timeline of each run.", "tool architectures", proven),
    "R144": Entry("Server and page are safe by default.", "users", proven),

    # L. Many machines
    "R160": Entry("Any worker drives a run through an existing engine, by lease and fencing token; the log refuses an older token.", "users", proven),
    "R161": Entry("A lost worker's runs move to others within the lease; readers see no gap or repetition, and no client tool silently runs twice.", "users", proven),
    "R162": Entry("One conformance suite covers every engine adapter.", "users", proven),

    # M. Command line and docs
    "R170": Entry("Every capability of the API is reachable from the command line.", "users", proven),
    "R171": Entry("The live view shows what runs as it runs; elsewhere the output is plain, stable text; exit codes, broken pipe and interrupts are handled.", "users", proven),
    "R172": Entry("Docs are a site with tutorial, guides and reference; every program and command in them runs in the tests.", "users", proven),

    # N. True streams
    "R180": Entry("An event that does not parse, or a second answer in mid-stream, ends the run in an error once the stream is read to its end.", "users", proven),
    "R181": Entry("Where the final item differs from its deltas the final one holds everywhere, and a notice reports the correction.", "users", proven),
    "R182": Entry("One call has one record across steps, pauses, resumes, log and page.", "users", proven),
    "R183": Entry("Compatible servers with other numbering, missing finish reasons or misplaced fields give the right answer, once.", "users", proven),
    "R184": Entry("A background answer that can no longer be streamed is polled.", "users", proven),

    # O. The same program on every provider
    "R190": Entry("tool and stage are one vocabulary on every provider and locally; provider_tool, provider_stage and event keep the vendor's.", "users", proven),
    "R191": Entry("Tool results are typed and equal in form on every provider; the vendor's JSON stays beside them.", "users", proven),
    "R192": Entry("Sessions of several turns with files work on every provider and locally, and what was lost is reported.", "users", proven),
    "R193": Entry("Attachments can go to the container only.", "users", proven),
    "R194": Entry("Limits and packages of locally run code are settings that the model knows.", "users", proven),

    # P. The first day
    "R200": Entry("An unexpected exception in a tool is visible by default and can end the run.", "users", proven),
    "R201": Entry("A key is needed at the first request, not at import.", "users", proven),
    "R202": Entry("Hooks observe, change and block requests, tools and parts, in streams, subagents and workers.", "users", proven),
    "R203": Entry("The top level has at most 90 names and no twins; deps and sync forms are typed under pyright and mypy strict.", "users", proven),
    "R204": Entry("Every option, tool field and part field has a description in the reference.", "users", proven),

    # Q. The server and page as a product
    "R210": Entry("Storage and reasoning settings of a request reach the provider; a stateless client keeps its reasoning.", "users", proven),
    "R211": Entry("An agent on a server is closed by default; request tools, instructions and settings are opened one by one.", "users", proven),
    "R212": Entry("A waiting approval is visible and answerable, or a typed error, through every API.", "users", proven),
    "R213": Entry("Retries, limiters, queues and compaction are visible while they last, in every stream and on the page.", "users", proven),
    "R214": Entry("There are OpenAPI, TypeScript types and an example front end; files work from other origins.", "users", proven),
    "R215": Entry("The operator names, brands and restricts the page.", "users", proven),

    # R. The time machine
    "R220": Entry("Every step records its request, large parts by digest, without secrets.", "users", proven),
    "R221": Entry("A run can be forked at any record with one fact changed; the prefix costs and runs nothing.", "users", proven),
    "R222": Entry("A logged run becomes a test with three dials; a mismatch names the first differing field.", "users", proven),
    "R223": Entry("Cache breaks are explained per step in tokens and money; histories are priced again for other models, offline.", "users", proven),

    # S. Evidence
    "R230": Entry("A source states what was established and why; overlap alone supports nothing.", "users", proven),
    "R231": Entry("Citations of hosted tools can be fetched under the egress guard, kept with digest and time, and checked by the same rules.", "users", proven),
    "R232": Entry("An evidence bundle is readable without Sidestream and reproducible.", "users", proven),

    # Faults: stream and protocol
    "F01": Entry("A truncated stream ends its blocks, then error(truncated), finish(error); nothing counts as completed.", "faults", proven),
    "F02": Entry("A cut inside a data line discards the half event; a retry only if no part was emitted.", "faults", proven),
    "F03": Entry("A provider error mid-stream is one error part with its code, then finish(error), with no retry after output.", "faults", proven),
    "F04": Entry("An incomplete answer is finish(length), not an error; only completed deliverables are kept.", "faults", proven),
    "F05": Entry("A content filter or refusal is finish(content-filter) with its reason and raises nothing in a stream.", "faults", proven),
    "F06": Entry("An unknown event or item type is a raw part and is counted; the text is unaffected.", "faults", proven),
    "F07": Entry("A known event with a missing or wrong-typed field is treated as unknown and never raises.", "faults", proven),
    "F08": Entry("Empty data, comments, pings, mixed line ends, bad UTF-8 and a BOM give the same parts as the clean stream.", "faults", proven),
    "F09": Entry("Duplicate and out-of-order events change nothing, as far as an API's events can be told apart (those of generateContent and deltas of chat and Messages carry no ids); late deltas are raw.", "faults", proven),
    "F10": Entry("A delta for an unknown id, or done without added, still gives exactly one start and end.", "faults", proven),
    "F11": Entry("An item id that changes between added and done still gives one block, by output index; so do changed ids of chunks, calls and interactions.", "faults", proven),
    "F12": Entry("A done payload that differs from its deltas supersedes them in the stored message (only Responses send one).", "faults", proven),
    "F13": Entry("Tool arguments that are broken JSON give input_error and the text; the tool does not run.", "faults", proven),
    "F14": Entry("A huge event is taken below the cap; above it ProtocolError, a closed connection and bounded memory.", "faults", proven),
    "F15": Entry("An endless stream meets the idle timeout, which only data resets, and the output cap; memory stays flat.", "faults", proven),
    "F16": Entry("A wrong content type, login page or JSON error with 200 is ProviderError; no decoder starts.", "faults", proven),
    "F17": Entry("Odd characters in escaped code deltas concatenate to exactly the final code.", "faults", proven),
    "F18": Entry("Parallel items that interleave never cross ids, and deliverables map to the right call.", "faults", proven),

    # Faults: HTTP, retry, time
    "F19": Entry("429 waits as Retry-After says up to 120 s, else fails at once; three attempts, one idempotency key.", "faults", proven),
    "F20": Entry("Server errors are retried with jitter, client errors never; 401 names the variable.", "faults", proven),
    "F21": Entry("Connect, DNS, TLS and proxy failures are typed errors within the total deadline.", "faults", proven),
    "F22": Entry("A stall before the first byte and one between events have separate timeouts and keep partial output.", "faults", proven),
    "F23": Entry("A request body that cannot be replayed is not retried.", "faults", proven),
    "F24": Entry("A refused session anchor falls back once to full replay and is recorded; a second failure surfaces.", "faults", proven),
    "F25": Entry("Clock jumps change nothing: clocks are monotonic and no wait is negative.", "faults", proven),

    # Faults: cancellation and backpressure
    "F26": Entry("Breaking out, cancelling or Ctrl-C at any point closes everything and is recorded.", "faults", proven),
    "F27": Entry("A generator that is dropped without close is closed by its owner task, with no warning.", "faults", proven),
    "F28": Entry("A slow consumer pauses its source; memory stays flat and other runs continue.", "faults", proven),
    "F29": Entry("A client that leaves our server detaches from or cancels its run; no task is unowned.", "faults", proven),
    "F30": Entry("Two clients of one run, one resuming, each see every record once, in order.", "faults", proven),
    "F31": Entry("A tool that raises, hangs, returns too much or exits gives an error result; the process survives.", "faults", proven),

    # Faults: store and crash
    "F32": Entry("A kill at any failpoint leaves a log that is a prefix, and resuming runs no client tool twice.", "faults", proven),
    "F33": Entry("A full, read-only, locked or corrupt store fails loudly once while the run keeps streaming.", "faults", proven),
    "F34": Entry("Two writers of one session get a typed conflict, never an interleaved turn.", "faults", proven),
    "F35": Entry("An older schema is migrated with a backup; a newer one is read but never written.", "faults", proven),
    "F36": Entry("A half-written blob is found by its content address and collected.", "faults", proven),

    # Faults: untrusted content
    "F37": Entry("Malicious file names are sanitised, stay inside the folder and never overwrite.", "faults", proven),
    "F38": Entry("Lying media types are sniffed, and only safe images are served inline.", "faults", proven),
    "F39": Entry("Bad base64, bombs and huge images are refused under caps; archives are never unpacked.", "faults", proven),
    "F40": Entry("Addresses that lead to private networks are refused at every hop, and the checked address is pinned.", "faults", proven),
    "F41": Entry("Injected instructions meet the approval policy like any call, with provenance shown.", "faults", proven),
    "F42": Entry("A forged, replayed, changed or expired approval is refused and recorded.", "faults", proven),
    "F43": Entry("A misbehaving MCP server meets pinned digests, caps, escaped display, timeouts and a clean environment.", "faults", proven),
    "F44": Entry("A canary key appears in no output, log, store, recording, span or error body.", "faults", proven),
    "F45": Entry("Hostile model output is inert on the page and in the terminal.", "faults", proven),
    "F46": Entry("The local server refuses rebinding, cross-origin posts, missing tokens, floods and traversal.", "faults", proven),

    # Faults: code and documents that run or are read locally
    "F47": Entry("A workspace shell started by root is not root inside, writes no kernel file and leaves no set-uid or device file.", "faults", proven),
    "F48": Entry("Another user of the same machine meets a token, and never configures commands, keys or folders over HTTP.", "faults", proven),
    "F49": Entry("A URL that the model wrote is not an origin, however it was laundered; it is asked about, or denied under deny.", "faults", proven),
    "F50": Entry("A container belongs to one conversation, owner, tool and backend, and is found in the run's own records only.", "faults", proven),
    "F51": Entry("Frames from inside the sandbox take bounded memory on the host, and time limits hold.", "faults", proven),
    "F52": Entry("Shared memory, sockets, leftover processes and cancelled starts are bounded or denied without a cgroup.", "faults", proven),
    "F53": Entry("Hostile documents are parsed in the limited child process only; the event loop is never blocked.", "faults", proven),
    "F54": Entry("A forged source, a tiny quote or a number of another call establishes nothing.", "faults", proven),
    "F55": Entry("A remembered approval does not cover a changed function, tool or workspace of the same name.", "faults", proven),
    "F56": Entry("Link loops, undecodable names and swapped files of an index folder are skipped and reported; nothing outside is read.", "faults", proven),

    # Faults: streams that lie
    "F57": Entry("A stream that lies gives the right answer or an error, never a third thing.", "faults", proven),
    "F58": Entry("Whatever the writer accepts, the reader reads, also where a provider's value has the wrong type.", "faults", proven),
}
# fmt: on


def open_ids(manifest: Mapping[str, Entry] = MANIFEST) -> list[str]:
    """The ids whose sentence is not wholly proven: the deferred and the partial ones, in order."""
    return [name for name, entry in manifest.items() if entry.state != proven]
