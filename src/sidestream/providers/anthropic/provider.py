"""The Anthropic chat model and provider, with billing, media and recovery from refusals."""

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlencode

from sidestream.errors import RunError, UnsupportedError
from sidestream.jsontext import JsonObject, as_list, as_object, is_object, objects, text_in
from sidestream.parts import File, Finish, StreamPart, ToolResult
from sidestream.prices.price import Bill, Charge
from sidestream.providers import protocol
from sidestream.providers.anthropic import files
from sidestream.providers.anthropic.context import (
    INLINE_TOOLS,
    PROVIDER_NAME,
    RESULT_TOOL,
    THREAD,
    THREAD_SESSION,
    MessagesContext,
)
from sidestream.providers.anthropic.encode.replay import SERVER_CALLS
from sidestream.providers.anthropic.encode.request import DISPLAY_NAME, encode_request
from sidestream.providers.anthropic.encode.tools import SERVER_SIDE_TOOLS
from sidestream.providers.anthropic.options import AnthropicOptions
from sidestream.providers.anthropic.settings import SETTINGS
from sidestream.providers.anthropic.versions import API_VERSION
from sidestream.providers.capabilities import Capabilities
from sidestream.providers.shared.continuation import CONTAINER_REFUSED, UPLOADS_REFUSED, fallback_notice
from sidestream.providers.shared.decoding import count_in
from sidestream.providers.shared.encoding import EncodedRequest
from sidestream.providers.shared.endpoints import BYTES, EndpointModel, as_segment, open_endpoint
from sidestream.tools.server_side import CodeInterpreter, ServerSideTool
from sidestream.transport.base_urls import base_url_in, checked_base_url
from sidestream.transport.calls import HttpCall, OpensHttp, Transport, response_object

INSTRUCTION = (
    "Make what the user asks for as a file, by running code in the sandbox. Write every final file into $OUTPUT_DIR, "
    "with a telling name and the right ending. Say in one sentence what you made."
)
"""System prompt of a media run. The request needs `CodeInterpreter()`."""

_WIDTH = 90
_LINES_PER_PAGE = 54


def printed(parts: Iterable[StreamPart]) -> str:
    """Return everything that code printed in a run."""
    pieces: list[str] = []
    for part in parts:
        if isinstance(part, ToolResult) and part.tool == "code_interpreter" and is_object(part.result):
            pieces += [text for key in ("stdout", "stderr") if (text := text_in(part.result, key))]
    return "\n".join(piece.rstrip("\n") for piece in pieces)


def fallback_file(parts: Iterable[StreamPart], name: str = "summary.pdf") -> File | None:
    """Create a PDF of what code printed, or return None if there is a file already or no output."""
    emitted = list(parts)
    text = printed(emitted)
    if not text.strip() or any(isinstance(part, File) and part.data is not None for part in emitted):
        return None
    return File("media:summary", "application/pdf", name, text_pdf(text), tool="code_interpreter")


def text_pdf(text: str) -> bytes:
    """Render text as a PDF in a fixed-width font. Characters beyond Latin-1 become question marks."""
    lines = [piece for line in text.expandtabs().splitlines() for piece in textwrap.wrap(line, _WIDTH) or [""]]
    pages = [lines[at : at + _LINES_PER_PAGE] for at in range(0, len(lines), _LINES_PER_PAGE)] or [[]]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>",
    ]
    for number, page in enumerate(pages):
        shown = b"".join(b"(%b) Tj T*\n" % _escaped(line) for line in page)
        stream = b"BT /F1 10 Tf 13 TL 40 790 Td\n%bET" % shown
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
            b"/Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>" % (5 + 2 * number)
        )
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream))
    return _file_of(objects)


def _escaped(line: str) -> bytes:
    data = "".join(char if char.isprintable() else " " for char in line).encode("latin-1", "replace")
    return data.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")


def _file_of(objects: list[bytes]) -> bytes:
    """Assemble a PDF file from its objects and the table of their offsets."""
    body = bytearray(b"%PDF-1.4\n")
    starts: list[int] = []
    for number, content in enumerate(objects, start=1):
        starts.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % start for start in starts)
    count = len(objects) + 1
    at = len(body)
    body += b"xref\n0 %d\n0000000000 65535 f \n%b" % (count, table)
    body += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (count, at)
    return bytes(body)


PRICE_LIST = "anthropic"

_STANDARD = frozenset({"standard", "not_available", "global"})


def bill(model: str, finish: Finish) -> Bill:
    """Return the billed tokens and searches of a response.

    A response that took several calls lists them. Those for a compaction, an advisor or a model that declined are not
    in its totals, but they are billed.
    """
    raw = finish.usage.raw or {}
    calls = [as_object(call) for call in as_list(raw.get("iterations"))]
    searches = as_object(raw.get("server_tool_use"))
    searched = count_in(searches, "web_search_requests")
    return Bill(
        charges=tuple(_charge(model, call, finish, raw) for call in calls or [raw]),
        calls={"web_search": searched if searches else finish.usage.server_tool_use.get("web_search", 0)},
        unknown=(f"{model}: the credit for a fallback",) if raw.get("fallback_credit") else (),
    )


def _charge(model: str, call: JsonObject, finish: Finish, raw: JsonObject) -> Charge:
    other, served, tier = text_in(call, "model"), text_in(finish.metadata, "model"), text_in(raw, "service_tier")
    hour = count_in(call.get("cache_creation"), "ephemeral_1h_input_tokens")
    modes = [text_in(raw, "inference_geo"), text_in(raw, "speed")]
    return Charge(
        model=other or model,
        also=() if other or not served else (served,),
        tokens={
            "input": count_in(call, "input_tokens"),
            "cache_read": count_in(call, "cache_read_input_tokens"),
            "cache_write": max(count_in(call, "cache_creation_input_tokens") - hour, 0),
            "cache_write_1h": hour,
            "output": count_in(call, "output_tokens"),
        },
        tier=None if tier is None or tier in _STANDARD else tier,
        factors=tuple(mode for mode in modes if mode is not None and mode not in _STANDARD),
    )


KEY_VARIABLE = "ANTHROPIC_API_KEY"
TOKEN_VARIABLE = "ANTHROPIC_AUTH_TOKEN"
BASE_URL_VARIABLE = "ANTHROPIC_BASE_URL"
DEFAULT_BASE_URL = "https://api.anthropic.com"

COMPACTION_ERRORS: Mapping[str, str] = {
    "compaction_block_ambiguous": "full",
    "compaction_block_misplaced": "full",
    "compaction_content_mismatch": "full",
    "compaction_signature_invalid": "full",
    "compaction_tool_changes_mismatch": "full",
    "compaction_incomplete_turn": "raised",
    "compaction_nothing_to_summarize": "raised",
    "compaction_too_many_tool_references": "raised",
    "compaction_unavailable": "retried",
}
"""Code of an error about a summary → what follows. `full` means that the conversation is sent again without the
summary."""
_FULL = "|".join(code for code, outcome in COMPACTION_ERRORS.items() if outcome == "full")

REFUSALS = (
    protocol.Refusal(
        "thread_not_found|thread_already_continued|thread_continue_in_flight|thread_fingerprint_mismatch",
        protocol.Recovery(THREAD_SESSION),
    ),
    protocol.Refusal(
        "thread_unsupported_request",
        protocol.Recovery(
            THREAD, fallback_notice("refused", "The server cannot hold this conversation, so it is sent in full.")
        ),
    ),
    protocol.Refusal(
        _FULL,
        protocol.Recovery(
            "session",
            fallback_notice("refused", "The server refused its summary, so the conversation was sent without it."),
        ),
    ),
    protocol.Refusal(
        r"(?is)container\b.*\b(expired|not found|does not exist|no longer)",
        CONTAINER_REFUSED,
    ),
    protocol.Refusal(r"(?is)\bfile\b.*\b(expired|not found|does not exist)", UPLOADS_REFUSED),
    protocol.Refusal(
        r"tool_addition|tool_definition|inline-tools|tool_reference_unresolved|tool_name_conflict",
        protocol.Recovery(
            INLINE_TOOLS,
            fallback_notice(
                "refused", "The server did not accept tools added in mid-conversation; all were sent again."
            ),
        ),
    ),
    protocol.Refusal(
        r"(?is)signature|thinking.{0,40}(cannot be modified|invalid)",
        protocol.Recovery(
            "thinking", fallback_notice("refused", "The server refused earlier thinking, so it was left out.")
        ),
    ),
    protocol.Refusal(
        r"(?i)encrypted_(content|index)|server_tool_use|mcp_tool_use|\w+_tool_result",
        protocol.Recovery(
            "session", fallback_notice("refused", "The server refused blocks of its own tools, so they were left out.")
        ),
    ),
)
"""Code or message of a refusal → how to recover. The first match counts."""


class MessagesOnlyModel(EndpointModel):
    """A model behind the Messages API, without Anthropic's other APIs."""

    provider = PROVIDER_NAME
    options_type = AnthropicOptions
    portable_settings = frozenset(SETTINGS)
    hosted_tools = frozenset(SERVER_SIDE_TOOLS)
    compacts_history = True
    result_tool = RESULT_TOOL
    price_list: str | None = PRICE_LIST

    def encode(self, request: protocol.ModelRequest) -> protocol.Encoded:
        """Encode a request, and create the decoder for its response."""
        path, made = self._rewritten(encode_request(request, self.name, self.base_url, self.provider))
        return self._encoded(path, request, made, _decoder)

    def _rewritten(self, made: EncodedRequest[MessagesContext]) -> tuple[str, EncodedRequest[MessagesContext]]:
        """Return the path of a request, and the request as the host expects it."""
        return "messages", made

    def bill(self, finish: Finish) -> Bill:
        """Return what a response is billed for."""
        return bill(self.name, finish)

    def recover(self, error: RunError) -> protocol.Recovery | None:
        """Return how to retry without a container, signatures or blocks that the server no longer accepts."""
        return protocol.Refusal.recovery_of(error, REFUSALS)

    def download(self, ref: protocol.FileRef) -> HttpCall:
        """Raise UnsupportedError, since files are in another API."""
        raise UnsupportedError(f"{self.provider} has no Files API")


class MessagesModel(MessagesOnlyModel, files.AnthropicFiles):
    """A model behind the Messages API, with Anthropic's Files and Models APIs beside it."""

    fills_containers = True

    def download(self, ref: protocol.FileRef) -> HttpCall:
        """Create the call that downloads a file written by code."""
        return self._endpoint.call(f"files/{as_segment(ref.id)}/content", method="GET", accept=BYTES)

    def media_plan(self, mime_types: tuple[str, ...]) -> protocol.MediaPlan:
        """Plan all files as files written by code. If there is none, the code's output becomes a PDF."""
        return protocol.MediaPlan(
            way="code_execution",
            server_side_tools=(CodeInterpreter(),),
            instruction=f"{INSTRUCTION} The file must be of the type {' or '.join(mime_types)}.",
            fallback=fallback_file if "application/pdf" in mime_types else None,
        )

    def describe(self, ref: protocol.FileRef) -> HttpCall:
        """Create the call for a file's metadata, which holds its name."""
        return self._endpoint.call(f"files/{as_segment(ref.id)}", method="GET")

    def read_name(self, body: bytes) -> str | None:
        """Return the file's name from the response to `describe`."""
        return files.read_file(response_object(body)).name

    def list_models(self, after: str | None = None) -> HttpCall:
        """Create the call for a page of models. `read_models` decodes the response."""
        query = urlencode({"limit": 1000, **({"after_id": after} if after else {})})
        return self._endpoint.call(f"models?{query}", method="GET")

    def read_models(self, body: bytes) -> tuple[list[protocol.ModelInfo], str | None]:
        """Return the models of a page, and the id after which the next page begins."""
        return files.read_models(body)


def _decoder(context: MessagesContext) -> protocol.Decoder:
    from sidestream.providers.anthropic.decode.decoder import MessagesDecoder

    return MessagesDecoder(context)


class AnthropicProvider:
    """Anthropic through its Messages API."""

    name = PROVIDER_NAME
    display_name = DISPLAY_NAME
    aliases = ("claude",)
    key_variables = (KEY_VARIABLE, TOKEN_VARIABLE)
    base_urls: Mapping[str, str] = {BASE_URL_VARIABLE: DEFAULT_BASE_URL}
    default_models: Mapping[str, str] = {"chat": "claude-sonnet-5-5", "media": "claude-sonnet-5-5"}
    server_side_tools: frozenset[type[ServerSideTool]] = frozenset(SERVER_SIDE_TOOLS)
    caps = Capabilities(
        streaming=True,
        client_tools=True,
        parallel_tool_calls=True,
        typed_output="native",
        typed_output_with_tools="native",
        images_in=True,
        documents_in=True,
        thinking=True,
        media=True,
        list_models=True,
        settings=frozenset(SETTINGS),
        instead={"audio_in": "only the file's name is sent"},
    )

    def chat_model(self, name: str, settings: protocol.Settings) -> protocol.ChatModel:
        """Create a chat model.

        Raises MissingKeyError if there is no key, unless the settings provide auth or the server is on this machine.
        """
        base_url = normal_base_url(settings.base_url or base_url_in(BASE_URL_VARIABLE) or DEFAULT_BASE_URL)
        endpoint = open_endpoint(
            settings,
            base_url,
            self.key_variables,
            who="Anthropic",
            keys_at="https://platform.claude.com/settings/keys",
            headers={"anthropic-version": API_VERSION},
        )
        return MessagesModel(name, endpoint)

    def transport(self, model: str, http: OpensHttp) -> Transport | None:
        """Return None, which means HTTP."""
        return None

    def recorded_decoder(self, method: str, path: str, body: Any) -> protocol.Decoder | None:
        """Return a decoder if the recorded request creates a message, at Anthropic or on a cloud.

        Token counts, batches and files have none.
        """
        found = _CREATES_MESSAGE.search(path.partition("?")[0])
        request: JsonObject = body if is_object(body) else {}
        if method.upper() != "POST" or found is None or (found["invoked"] and "anthropic_version" not in request):
            return None
        model = request.get("model") or unquote(found["vertex"] or found["invoked"] or "") or None
        names = {tool.get("name") for tool in objects(request.get("tools"))}
        return _decoder(
            MessagesContext(
                model=model if isinstance(model, str) else None,
                has_result_tool=RESULT_TOOL in names,
                waiting=_in_progress(request.get("messages")),
                is_compaction="compaction" in request,
            )
        )


_CREATES_MESSAGE = re.compile(
    r"/messages/?$"
    r"|/publishers/anthropic/models/(?P<vertex>[^/]+):(streamR|r)awPredict$"
    r"|/model/(?P<invoked>[^/]+)/invoke(-with-response-stream)?$"  # of any vendor's model
)


def _in_progress(messages: Any) -> dict[str, JsonObject]:
    """Return the server-side calls of a recorded request that have no result yet."""
    blocks = [block for message in objects(messages) for block in objects(message.get("content"))]
    answered = {block.get("tool_use_id") for block in blocks}
    calls = [block for block in blocks if block.get("type") in SERVER_CALLS and isinstance(block.get("id"), str)]
    return {block["id"]: block for block in calls if block["id"] not in answered}


def normal_base_url(url: str) -> str:
    """Return the URL up to and including `/v1`. Raises ConfigurationError if it is invalid."""
    given = checked_base_url(url)
    return given if given.endswith("/v1") else f"{given}/v1"


PROVIDER = AnthropicProvider()
