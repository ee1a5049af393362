"""Protocols that providers and their models implement.

A provider is a folder with an entry point in the group `sidestream.providers`. Its models encode requests and decode
responses, without I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from sidestream.providers.model_settings import ModelSettings
from sidestream.text.redaction import redact_url
from sidestream.transport.calls import HttpCall

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence
    from typing import Self

    from sidestream.errors import RunError
    from sidestream.messages.fold import Batch
    from sidestream.messages.message import ChatMessage, DataPart
    from sidestream.messages.references import LoadedReplays
    from sidestream.output import OutputSchema
    from sidestream.parts import Error, File, Finish, StreamPart, ToolCall
    from sidestream.prices.price import Bill
    from sidestream.tools.configs import Config
    from sidestream.tools.server_side import RemoteMCP, ServerSideTool
    from sidestream.tools.spec import ToolSpec
    from sidestream.transport.calls import Auth, OpensHttp, SocketCodec, Transport


class CompactionPlan(Struct, frozen=True):
    """A request that the provider compact the conversation itself.

    `at_tokens` is the conversation length that triggers it. None means the provider's own threshold.
    """

    at_tokens: int | None = None


class ModelRequest(Struct, frozen=True, kw_only=True):
    """The input of one model call."""

    messages: tuple[ChatMessage, ...]
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    server_side_tools: tuple[ServerSideTool, ...] = ()
    output_schema: OutputSchema | None = None
    settings: ModelSettings = ModelSettings()
    options: Any = None
    stream: bool = True
    without: frozenset[str] = frozenset()
    """Features to leave out because the provider refused them (`Recovery.drop`)."""
    compaction: CompactionPlan | None = None
    """Set only for models that implement `CompactsHistory`."""
    replays: LoadedReplays = {}
    """Log content that an earlier encoding of this request asked for (`Encoded.needs`)."""
    uploads: Mapping[str, str] = {}
    """Ids of the files that an earlier encoding of this request asked to upload (`Encoded.uploads`), by their keys. An
    empty id means that the upload failed."""


UPLOADS = "uploads"
"""Key in `ModelRequest.without` after the provider refused the id of an uploaded file, since files expire there."""


class FileUpload(Struct, frozen=True):
    """A file that must be uploaded before a request, to the provider or into one of its containers."""

    part: DataPart
    digest: str
    container_id: str | None = None
    is_required: bool = True
    """Whether the request fails without it. A file that a tool made in an earlier turn may be missing."""

    @property
    def key(self) -> str:
        """Key of the file's id in `ModelRequest.uploads`."""
        return self.digest if self.container_id is None else f"{self.container_id}/{self.digest}"


class FileRef(Struct, frozen=True, kw_only=True):
    """A reference to a tool's output file that must be fetched."""

    id: str
    name: str | None = None
    container_id: str | None = None
    tool: str | None = None
    call_id: str | None = None


class Recovery(Struct, frozen=True):
    """How to continue after a refusal, by one retry without `drop`.

    `notice` is emitted to explain the retry. None means that the next request reports it (`Encoded.notices`).
    """

    drop: str
    notice: StreamPart | None = None


class Refusal(Struct, frozen=True):
    """A regular expression, and the recovery for errors that it matches."""

    pattern: str
    """Compiled when an error is matched, since most programs see no refusal."""
    recovery: Recovery

    @staticmethod
    def recovery_of(error: RunError, refusals: Iterable[Refusal]) -> Recovery | None:
        """Return the recovery of the first refusal that matches the error's code or message, or None."""
        if error.status not in _REFUSED:
            return None
        said = f"{error.code or ''} {error.message}"
        return next((refusal.recovery for refusal in refusals if re.search(refusal.pattern, said)), None)


_REFUSED = frozenset({400, 404, 410, None})  # errors in a stream have no status


class Decoder(Protocol):
    """A converter of one response to parts, without I/O or a clock. Invalid data from the provider never raises.

    The last part is a `finish` for that response. Its `outcome` tells the turn how to continue.
    """

    def feed(self, data: bytes) -> list[StreamPart]:
        """Decode one event."""
        ...

    def whole(self, body: bytes) -> list[StreamPart]:
        """Decode a non-streaming response."""
        ...

    def close(self, error: Error | None = None) -> list[StreamPart]:
        """Signal the end of the input, with the error that broke it off, and return the last parts.

        Returns an empty list after a complete response.
        """
        ...

    @property
    def downloads(self) -> tuple[FileRef, ...]:
        """Files to fetch once the response is complete."""
        ...


DecodeAll = Callable[[list[bytes], "Batch"], None]
"""Decodes events that came together, and appends their parts."""


def decoding_all(decoder: Decoder) -> DecodeAll:
    """Return the decoder's `feed_all`, which takes one pass, or a function that feeds each event."""

    def feed_each(events: list[bytes], out: Batch) -> None:
        for event in events:
            out.parts += decoder.feed(event)

    return getattr(decoder, "feed_all", feed_each)


@runtime_checkable
class TakesUpCalls(Protocol):
    """A decoder for responses that may hold results of hosted calls from earlier responses."""

    def take_up(self, calls: Iterable[ToolCall]) -> None:
        """Register the calls of this turn that have no result yet. Must be called before the first event."""
        ...


class Encoded(Struct, frozen=True, kw_only=True, gc=False):
    """A request ready to send, and a factory for its decoder."""

    call: HttpCall
    decoder: Callable[[], Decoder]
    warnings: tuple[str, ...] = ()
    notices: tuple[StreamPart, ...] = ()
    """Parts to emit about how the request was encoded, e.g. that a session could not be used."""
    needs: tuple[str, ...] = ()
    """Log references in this request's messages. Encode the request again with their content in `replays`."""
    uploads: tuple[FileUpload, ...] = ()
    """Files that the request's container needs. Encode the request again with their ids in `uploads`."""
    names_uploads: bool = False
    """Whether the request names uploaded files by their ids."""
    defers_output: bool = False
    """Whether the output schema was left out because the API does not accept it together with tools. After the tool
    calls, the conversation is sent again with `"tools"` in `without`, for the typed output."""
    first: int = 0
    """Index of the first message that is sent. The provider's server holds the earlier ones."""
    in_background: bool = False
    """Whether the provider works on the response without a connection, so that it can be fetched by id."""

    def follow_up(
        self,
        method: str,
        url: str,
        auth: Callable[..., Mapping[str, str]] | None = None,
        *,
        body: bytes | None = None,
        stream: bool = False,
    ) -> HttpCall:
        """Return a later call about the same response, with the request's headers and fresh credentials from `auth`.

        A signed request's later calls are signed too. With `stream`, the call asks for events instead of one JSON body.
        """
        kept = {
            name: text for name, text in self.call.headers.items() if name.lower() not in ("accept", "content-type")
        }
        headers = {"Accept": "text/event-stream" if stream else "application/json", **kept}
        if auth is not None and self.call.sign is None:
            headers |= auth()
        return HttpCall(
            method=method,
            url=url,
            headers=headers,
            body=body,
            stream=stream,
            key_variable=self.call.key_variable,
            sign=self.call.sign,
        )


@runtime_checkable
class ChatModel(Protocol):
    """One model of one provider, with its key and base URL."""

    @property
    def provider(self) -> str:
        """The provider's name."""
        ...

    @property
    def name(self) -> str:
        """The provider's name for the model."""
        ...

    def encode(self, request: ModelRequest) -> Encoded:
        """Encode a request for the provider's API. Raises ConfigurationError for features that it does not support."""
        ...

    def recover(self, error: RunError) -> Recovery | None:
        """Return what to leave out of a retry, or None if a retry would not help."""
        ...

    def download(self, ref: FileRef) -> HttpCall:
        """Return the request that downloads a file."""
        ...


@runtime_checkable
class HostsTools(Protocol):
    """A model that declares which server-side tools its provider hosts. Other models find out when they encode."""

    @property
    def hosted_tools(self) -> Collection[type[ServerSideTool]]:
        """The hosted tool types. Their settings are checked when a request is encoded."""
        ...


@runtime_checkable
class HostsAlone(Protocol):
    """A model that hosts some server-side tools only in requests without functions."""

    @property
    def hosted_alone(self) -> Collection[type[ServerSideTool]]:
        """The tool types that it refuses beside functions."""
        ...


@runtime_checkable
class FillsContainers(Protocol):
    """A model whose provider can copy files into the containers of its hosted tools."""

    @property
    def fills_containers(self) -> bool:
        """Whether the containers take files."""
        ...


@runtime_checkable
class AnswersByTool(Protocol):
    """A model that may give a typed answer by calling a function that the encoder adds."""

    @property
    def result_tool(self) -> str:
        """The name of that function, which no other tool can have."""
        ...


@runtime_checkable
class RetrievesFirst(Protocol):
    """A model whose provider can search the user's files before it asks the model."""

    @property
    def retrieves_first(self) -> bool:
        """Whether it does so if a search has `retrieve="first"`."""
        ...


@runtime_checkable
class ConfiguresServers(Protocol):
    """Options that can enable remote MCP servers."""

    def split_servers(self) -> tuple[Self, tuple[RemoteMCP, ...]]:
        """Return the options without their MCP servers, and the servers."""
        ...


@runtime_checkable
class BringsTransport(Protocol):
    """A model with its own transport, e.g. one inside the process."""

    def transport(self) -> Transport:
        """Return the transport for agents that use this model."""
        ...


@runtime_checkable
class SpeaksWebSocket(Protocol):
    """A model whose responses can be requested over a WebSocket."""

    @property
    def socket_codec(self) -> SocketCodec:
        """The codec for WebSocket frames."""
        ...


@runtime_checkable
class SteersResponses(Protocol):
    """A model whose responses accept user messages while they stream, if the transport can send them."""

    def steer_event(self, decoder: Decoder, message: ChatMessage, options: Any) -> tuple[str, bytes] | None:
        """Return the id of the decoder's response and the encoded message to it, or None while the id is unknown."""
        ...

    def continues(self, call: HttpCall, decoder: Decoder) -> bool:
        """Return whether a request continues the decoder's response on the provider's server."""
        ...


@runtime_checkable
class MapsSettings(Protocol):
    """A model that maps portable settings (`request.settings`). Other models refuse them."""

    @property
    def portable_settings(self) -> frozenset[str]:
        """Names of the settings that `encode` maps."""
        ...


@runtime_checkable
class HasOptions(Protocol):
    """A model with its own options besides the portable settings."""

    @property
    def options_type(self) -> type[Config]:
        """The class of `request.options`."""
        ...


@runtime_checkable
class KeepsAnswers(Protocol):
    """A model whose API stores answers, or returns reasoning that can be sent back."""

    def storage_options(self, options: Any, *, is_stored: bool, has_reasoning: bool) -> Config | None:
        """Return options that extend `options`, or None if they need no change.

        With `is_stored=False` the provider does not store the answer, and with `has_reasoning` it returns reasoning
        that a later request can send back.
        """
        ...


@runtime_checkable
class BillsUsage(Protocol):
    """A model whose provider bills for more than the reported usage shows."""

    @property
    def price_list(self) -> str | None:
        """Name of the model's list in the price table. None means that there is no list."""
        ...

    def bill(self, finish: Finish) -> Bill:
        """Return the billable items of a response, given its `finish`."""
        ...


@runtime_checkable
class CompactsHistory(Protocol):
    """A model whose provider can compact long conversations."""

    @property
    def compacts_history(self) -> bool:
        """Whether the provider compacts long conversations itself."""
        ...


@runtime_checkable
class NamedInTelemetry(Protocol):
    """A model whose provider has a different name in OpenTelemetry."""

    @property
    def telemetry_name(self) -> str:
        """The value of `gen_ai.provider.name`."""
        ...


@runtime_checkable
class KnowsWindow(Protocol):
    """A model that knows its context window."""

    @property
    def context_window(self) -> int | None:
        """Context window in tokens. None means unknown."""
        ...


@runtime_checkable
class NamesFiles(Protocol):
    """A model whose responses identify files by id only, so that their names take a request."""

    def describe(self, ref: FileRef) -> HttpCall:
        """Return the request for a file's metadata."""
        ...

    def read_name(self, body: bytes) -> str | None:
        """Parse the file name from the response to `describe`."""
        ...


class MediaPlan(Struct, frozen=True, kw_only=True):
    """A provider's way to generate files of some types."""

    way: str
    """Name of the method in the result's metadata, e.g. `image_generation` or `code_execution`."""
    server_side_tools: tuple[ServerSideTool, ...]
    instruction: str | None = None
    model: str | None = None
    """Model that generates the files. None means the requested model."""
    fallback: Callable[[Sequence[StreamPart]], File | None] | None = None
    """Builds a file from the parts of a run that did not deliver one."""


@runtime_checkable
class MakesMedia(Protocol):
    """A model that can generate files."""

    def media_plan(self, mime_types: tuple[str, ...]) -> MediaPlan:
        """Return the plan for files of these types. Raises UnsupportedError if the model cannot generate them."""
        ...


@runtime_checkable
class ResumesStreams(Protocol):
    """A model whose provider can resume a stream after a lost connection."""

    def resume_call(self, encoded: Encoded, decoder: Decoder) -> HttpCall | None:
        """Return the request for the rest of the stream, or None if it cannot be resumed."""
        ...


class UnderWay(Struct, frozen=True):
    """A pending non-streaming response."""

    id: str
    status: str
    """The provider's own value."""


@runtime_checkable
class WorksInBackground(Protocol):
    """A model whose provider can work on a response without a connection. It is fetched later by id."""

    def under_way(self, body: bytes) -> UnderWay | None:
        """Return the state of a pending response, or None if the response is complete or unreadable."""
        ...

    def fetch_call(self, encoded: Encoded, answer_id: str, *, stream: bool) -> HttpCall:
        """Return the request for a pending response, as its current state or as a stream from the start."""
        ...

    def cancel_call(self, encoded: Encoded, answer_id: str) -> HttpCall:
        """Return the request that cancels a response at the provider."""
        ...


def under_way(body: bytes, statuses: Container[str]) -> UnderWay | None:
    """Parse a response's `id` and `status`. Returns None unless the status is one of `statuses`."""
    try:
        found = msgspec.json.decode(body, type=UnderWay)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found.id and found.status in statuses else None


class ModelInfo(Struct, frozen=True, kw_only=True):
    """A model that a provider offers."""

    name: str
    kinds: tuple[str, ...] = ("chat",)
    """Any of `chat`, `embeddings` and `media`."""
    display_name: str | None = None
    description: str | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    images_in: bool | None = None
    """Whether it accepts images. For this and the next fields, None means that the API does not say."""
    documents_in: bool | None = None
    audio_in: bool | None = None
    images_out: bool | None = None
    thinking: bool | None = None
    client_tools: bool | None = None
    typed_output: bool | None = None
    capabilities: dict[str, Any] = {}
    """The API's own description of the model, verbatim."""


@runtime_checkable
class ListsModels(Protocol):
    """A model whose provider can list its models, in pages."""

    def list_models(self, after: str | None = None) -> HttpCall:
        """Return the request for a page."""
        ...

    def read_models(self, body: bytes) -> tuple[list[ModelInfo], str | None]:
        """Parse a page into its models and the cursor of the next page, which is None for the last page.

        Raises ProtocolError if the body is not such a page.
        """
        ...


class Settings(Struct, frozen=True, kw_only=True):
    """The base URL and credentials for a provider. Unset fields come from the environment."""

    api_key: str | None = None
    base_url: str | None = None
    headers: dict[str, str] = {}
    auth: Auth | None = None
    """Returns the auth headers for each request, in place of the key (Azure, gateways, expiring tokens). A function
    with a parameter gets the request, and is called again for each retry (signatures)."""

    def __repr__(self) -> str:
        return f"Settings(base_url={redact_url(self.base_url or '')!r})"

    def __rich_repr__(self) -> list[Any]:
        return [("base_url", redact_url(self.base_url or ""))]  # msgspec's version would show the key


class Provider(Protocol):
    """A provider, as entry points of the group `sidestream.providers` return it."""

    @property
    def name(self) -> str:
        """The name in model strings, as in `anthropic:MODEL`."""
        ...

    @property
    def display_name(self) -> str:
        """The name shown to users."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Alternative names in model strings."""
        ...

    @property
    def default_models(self) -> Mapping[str, str]:
        """Default model names, by kind (`chat`, `embeddings`, `media`)."""
        ...

    @property
    def server_side_tools(self) -> frozenset[type[ServerSideTool]]:
        """The portable server-side tools that the provider hosts."""
        ...

    def chat_model(self, name: str, settings: Settings) -> ChatModel:
        """Return a model. Raises MissingKeyError if there is no key."""
        ...

    def transport(self, model: str, http: OpensHttp) -> Transport | None:
        """Return the provider's own transport, which may wrap one from `http`, or None for plain HTTP."""
        ...

    def recorded_decoder(self, method: str, path: str, body: Any) -> Decoder | None:
        """Return a decoder for a recorded exchange, or None if the exchange is not a model call of this provider."""
        ...
