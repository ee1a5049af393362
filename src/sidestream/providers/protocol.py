"""What a provider and its models must be.

A provider is a folder with an entry point in the group `sidestream.providers`. It has two verbs, both pure: its models
encode requests and decode answers.
"""

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import msgspec
from msgspec import Struct

from sidestream.errors import RunError
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import LoadedReplays
from sidestream.output import OutputSchema
from sidestream.prices.price import Bill
from sidestream.providers.model_settings import ModelSettings
from sidestream.stream.parts import Error, File, Finish, StreamPart, ToolCall
from sidestream.text.redaction import redact_url
from sidestream.tools.configs import Config
from sidestream.tools.server_side import RemoteMCP, ServerSideTool
from sidestream.tools.spec import ToolSpec
from sidestream.transport.calls import HttpCall, OpensHttp, SocketCodec, Transport


class CompactionPlan(Struct, frozen=True):
    """The provider is to compact the conversation itself, from so many tokens on; None: when it sees fit."""

    at_tokens: int | None = None


class ModelRequest(Struct, frozen=True, kw_only=True):
    """All that one model call depends on."""

    messages: tuple[ChatMessage, ...]
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    server_side_tools: tuple[ServerSideTool, ...] = ()
    output_schema: OutputSchema | None = None
    settings: ModelSettings = ModelSettings()
    options: Any = None
    stream: bool = True
    without: frozenset[str] = frozenset()
    """What the provider refused before and the request leaves out (`Recovery.drop`)."""
    compaction: CompactionPlan | None = None
    """Set only for a model that `CompactsHistory`."""
    replays: LoadedReplays = {}
    """What was read from the log because an earlier encoding of this request needed it (`Encoded.needs`)."""


class FileRef(Struct, frozen=True, kw_only=True):
    """A file that a tool made and that must be fetched."""

    id: str
    name: str | None = None
    container_id: str | None = None
    tool: str | None = None
    call_id: str | None = None


class Recovery(Struct, frozen=True):
    """How to continue after a refusal: retry once without `drop`.

    `notice` is emitted to say why; None if the next request reports it (`Encoded.notices`).
    """

    drop: str
    notice: StreamPart | None = None


class Refusal(Struct, frozen=True):
    """An error after which a retry makes sense, without what was refused."""

    pattern: re.Pattern[str]
    recovery: Recovery

    @staticmethod
    def recovery_of(error: RunError, refusals: "Iterable[Refusal]") -> Recovery | None:
        """The recovery of the first refusal that matches the code or message of the error."""
        if error.status not in _REFUSED:
            return None
        said = f"{error.code or ''} {error.message}"
        return next((refusal.recovery for refusal in refusals if refusal.pattern.search(said)), None)


_REFUSED = frozenset({400, 404, 410, None})  # None: the error came in the stream


class Decoder(Protocol):
    """Turns one response into parts. Pure: no I/O, no clock; remote garbage never raises. One per response.

    Its last part is a `finish` for that response, whose `outcome` says what the response means for the turn.
    """

    def feed(self, data: bytes) -> list[StreamPart]:
        """The parts of one event."""
        ...

    def whole(self, body: bytes) -> list[StreamPart]:
        """All parts of a response that was not streamed."""
        ...

    def close(self, error: Error | None = None) -> list[StreamPart]:
        """Says that nothing more comes, and why if it broke. Empty after a proper end."""
        ...

    @property
    def downloads(self) -> tuple[FileRef, ...]:
        """The files to fetch, once the response is complete."""
        ...


@runtime_checkable
class TakesUpCalls(Protocol):
    """A decoder that knows the results of hosted calls that earlier responses made."""

    def take_up(self, calls: Iterable[ToolCall]) -> None:
        """Take the calls of this turn that have no result yet, before the first event."""
        ...


class Encoded(Struct, frozen=True, kw_only=True, gc=False):
    """A request ready to send, and the decoder for its answer."""

    call: HttpCall
    decoder: Callable[[], Decoder]
    warnings: tuple[str, ...] = ()
    notices: tuple[StreamPart, ...] = ()
    """What the stream must say about how the request was made, e.g. that a session could not be used."""
    needs: tuple[str, ...] = ()
    """References to the log in this request's messages. It must be encoded again with their content in `replays`."""
    defers_output: bool = False
    """True: the output schema was left out because it does not go with the tools. Once the model is done with them, the
    conversation is sent again with `"tools"` in `without`, for the typed answer."""
    first: int = 0
    """The first message that is sent; the provider's server holds those before it."""
    in_background: bool = False
    """True if the provider works on the answer without a connection, and it can be fetched by its id."""

    def follow_up(
        self,
        method: str,
        url: str,
        auth: Callable[[], Mapping[str, str]] | None = None,
        *,
        body: bytes | None = None,
        stream: bool = False,
    ) -> HttpCall:
        """A later call about the same answer: the request's own headers, with credentials as `auth` gives them now.

        `stream` requests events instead of one JSON `body`.
        """
        kept = {
            name: text for name, text in self.call.headers.items() if name.lower() not in ("accept", "content-type")
        }
        headers = {"Accept": "text/event-stream" if stream else "application/json", **kept, **(auth() if auth else {})}
        variable = self.call.key_variable
        return HttpCall(method=method, url=url, headers=headers, body=body, stream=stream, key_variable=variable)


@runtime_checkable
class ChatModel(Protocol):
    """One model of one provider, with its key and base URL."""

    @property
    def provider(self) -> str:
        """The provider's name."""
        ...

    @property
    def name(self) -> str:
        """The model's name at its provider."""
        ...

    def encode(self, request: ModelRequest) -> Encoded:
        """The request on the provider's wire. Raises ConfigurationError for what the provider cannot do."""
        ...

    def recover(self, error: RunError) -> Recovery | None:
        """What to leave out on one more try, if the error is of that kind."""
        ...

    def download(self, ref: FileRef) -> HttpCall:
        """The request that downloads a file."""
        ...


@runtime_checkable
class HostsTools(Protocol):
    """A model that says which server-side tools run at its provider; of another, its encoder finds out."""

    @property
    def hosted_tools(self) -> Collection[type[ServerSideTool]]:
        """The kinds of tools; their settings are checked when a request is encoded."""
        ...


@runtime_checkable
class ConfiguresServers(Protocol):
    """Options that can switch on remote MCP servers."""

    def split_servers(self) -> tuple[Self, tuple[RemoteMCP, ...]]:
        """The options without their MCP servers, and the servers."""
        ...


@runtime_checkable
class BringsTransport(Protocol):
    """A model whose requests go over a transport of its own, e.g. one inside the process."""

    def transport(self) -> Transport:
        """The transport for an agent of this model."""
        ...


@runtime_checkable
class SpeaksWebSocket(Protocol):
    """A model whose responses can be requested over a WebSocket."""

    @property
    def socket_codec(self) -> SocketCodec:
        """How they are carried there."""
        ...


@runtime_checkable
class SteersResponses(Protocol):
    """A model whose responses take messages of the user while they are read, if the transport can send them."""

    def steer_event(self, decoder: Decoder, message: ChatMessage, options: Any) -> tuple[str, bytes] | None:
        """The id of the response that a decoder reads, and the message to it; None while the id is unknown."""
        ...

    def continues(self, call: HttpCall, decoder: Decoder) -> bool:
        """True if a request continues the response that a decoder has read, on the provider's server."""
        ...


@runtime_checkable
class MapsSettings(Protocol):
    """A model that maps portable settings (`request.settings`). For a model that is none, they are refused."""

    @property
    def portable_settings(self) -> frozenset[str]:
        """The settings that `encode` maps."""
        ...


@runtime_checkable
class HasOptions(Protocol):
    """A model with options of its own, besides the portable settings."""

    @property
    def options_type(self) -> type[Config]:
        """The class of `request.options`."""
        ...


@runtime_checkable
class BillsUsage(Protocol):
    """A model whose provider bills in terms that the usage alone does not have."""

    @property
    def price_list(self) -> str | None:
        """The name of its list in the price table; None if it has none."""
        ...

    def bill(self, finish: Finish) -> Bill:
        """What a response is billed for, by its `finish`."""
        ...


@runtime_checkable
class CompactsHistory(Protocol):
    """A model whose provider can compact a conversation that becomes too long."""

    @property
    def compacts_history(self) -> bool:
        """True if the provider shortens long conversations itself."""
        ...


@runtime_checkable
class NamedInTelemetry(Protocol):
    """A model whose provider has another name in OpenTelemetry than in Sidestream."""

    @property
    def telemetry_name(self) -> str:
        """The value of `gen_ai.provider.name`."""
        ...


@runtime_checkable
class KnowsWindow(Protocol):
    """A model that knows its context window."""

    @property
    def context_window(self) -> int | None:
        """The size in tokens; None if it is unknown."""
        ...


@runtime_checkable
class NamesFiles(Protocol):
    """A model whose answers give files by id only: their names need a request."""

    def describe(self, ref: FileRef) -> HttpCall:
        """The request for what is known about a file."""
        ...

    def read_name(self, body: bytes) -> str | None:
        """The name in the answer to that."""
        ...


class MediaPlan(Struct, frozen=True, kw_only=True):
    """How a provider generates files of some types."""

    way: str
    """What the result's metadata says of it, e.g. `image_generation` or `code_execution`."""
    server_side_tools: tuple[ServerSideTool, ...]
    instruction: str | None = None
    model: str | None = None
    """The model that makes them, where it is another than the one that was asked."""
    fallback: Callable[[Sequence[StreamPart]], File | None] | None = None
    """A file made from the parts of the run, where it delivered none."""


@runtime_checkable
class MakesMedia(Protocol):
    """A model that can generate files."""

    def media_plan(self, mime_types: tuple[str, ...]) -> MediaPlan:
        """How to generate files of these types. Raises UnsupportedError."""
        ...


@runtime_checkable
class ResumesStreams(Protocol):
    """A model whose provider can continue a stream after the connection has broken."""

    def resume_call(self, encoded: Encoded, decoder: Decoder) -> HttpCall | None:
        """The request for the rest of the stream; None if this one cannot be resumed."""
        ...


class UnderWay(Struct, frozen=True):
    """A whole answer that is still pending."""

    id: str
    status: str
    """The provider's own word."""


@runtime_checkable
class WorksInBackground(Protocol):
    """A model whose provider can work on an answer without a connection; it is fetched later, by its id."""

    def under_way(self, body: bytes) -> UnderWay | None:
        """The state of a whole answer that is still pending; None if it is complete, or unreadable."""
        ...

    def fetch_call(self, encoded: Encoded, answer_id: str, *, stream: bool) -> HttpCall:
        """The request for a pending answer: whole, as far as it is, or as a stream from its beginning."""
        ...

    def cancel_call(self, encoded: Encoded, answer_id: str) -> HttpCall:
        """The request that stops an answer at the provider."""
        ...


def under_way(body: bytes, statuses: Container[str]) -> UnderWay | None:
    """`id` and `status` of an answer, where the status is one of these."""
    try:
        found = msgspec.json.decode(body, type=UnderWay)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found.id and found.status in statuses else None


class ModelInfo(Struct, frozen=True, kw_only=True):
    """A model that a provider offers."""

    name: str
    kinds: tuple[str, ...] = ("chat",)
    """`chat`, `embeddings`, `media`."""
    display_name: str | None = None
    description: str | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    images_in: bool | None = None
    """True if it sees images. This and the next ones are None where the API does not say."""
    documents_in: bool | None = None
    audio_in: bool | None = None
    images_out: bool | None = None
    thinking: bool | None = None
    client_tools: bool | None = None
    typed_output: bool | None = None
    capabilities: dict[str, Any] = {}
    """What the API says about it, unchanged."""


@runtime_checkable
class ListsModels(Protocol):
    """A model whose provider lists its models, in pages."""

    def list_models(self, after: str | None = None) -> HttpCall:
        """The request for a page."""
        ...

    def read_models(self, body: bytes) -> tuple[list[ModelInfo], str | None]:
        """The models of a page, and what the next page comes after; None at the end. Raises ProtocolError."""
        ...


class Settings(Struct, frozen=True, kw_only=True):
    """Where and as whom to call a provider; what is not given comes from the environment."""

    api_key: str | None = None
    base_url: str | None = None
    headers: dict[str, str] = {}
    auth: Callable[[], Mapping[str, str]] | None = None
    """Returns the auth headers for each request, in place of the key (Azure, gateways, tokens that expire)."""

    def __repr__(self) -> str:
        return f"Settings(base_url={redact_url(self.base_url or '')!r})"

    def __rich_repr__(self) -> list[Any]:
        return [("base_url", redact_url(self.base_url or ""))]  # msgspec's own would show all fields


class Provider(Protocol):
    """What an entry point of the group `sidestream.providers` gives."""

    @property
    def name(self) -> str:
        """Its name in model strings, as in `anthropic:MODEL`."""
        ...

    @property
    def display_name(self) -> str:
        """Its name for people."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names that model strings may use."""
        ...

    @property
    def default_models(self) -> Mapping[str, str]:
        """Kind (`chat`, `embeddings`, `media`) → model name."""
        ...

    @property
    def server_side_tools(self) -> frozenset[type[ServerSideTool]]:
        """The portable server-side tools that it hosts."""
        ...

    def chat_model(self, name: str, settings: Settings) -> ChatModel:
        """Raises MissingKeyError when there is no key."""
        ...

    def transport(self, model: str, http: OpensHttp) -> Transport | None:
        """Its own transport, which may use one of `http`; None for plain HTTP."""
        ...

    def recorded_decoder(self, method: str, path: str, body: Any) -> Decoder | None:
        """A decoder for a recorded exchange, or None where it is no model call of this provider."""
        ...
