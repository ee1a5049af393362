"""Options for Gemini."""

from collections.abc import Sequence, Set
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from sidestream.errors import ConfigurationError
from sidestream.tools.configs import Config

Texts = dict[str, str]
Objects = dict[str, Any]

Harm = Literal[
    "HARM_CATEGORY_HARASSMENT",
    "HARM_CATEGORY_HATE_SPEECH",
    "HARM_CATEGORY_SEXUALLY_EXPLICIT",
    "HARM_CATEGORY_DANGEROUS_CONTENT",
    "HARM_CATEGORY_CIVIC_INTEGRITY",
    "HARM_CATEGORY_JAILBREAK",
    "HARM_CATEGORY_IMAGE_HATE",
    "HARM_CATEGORY_IMAGE_DANGEROUS_CONTENT",
    "HARM_CATEGORY_IMAGE_HARASSMENT",
    "HARM_CATEGORY_IMAGE_SEXUALLY_EXPLICIT",
]


class GoogleServerSideTool(StrEnum):
    """Tools that can be enabled by name. The values are the keys of their events."""

    CODE_EXECUTION = "code_execution"
    GOOGLE_SEARCH = "google_search"
    URL_CONTEXT = "url_context"


class GoogleThinking(Config, frozen=True, kw_only=True):
    """Thinking effort and visibility. Newer models have a level, older ones a budget."""

    include_thoughts: bool | None = None
    budget: Annotated[int, Meta(ge=-1, description="-1 (dynamic), 0 (off) or a number of tokens")] | None = None
    level: Literal["minimal", "low", "medium", "high"] | None = None


class GoogleImageOutput(Config, frozen=True, kw_only=True):
    """Settings for images that the model generates.

    `output_format`, `compression`, `person_generation` and `prominent_people` are for Vertex only.
    """

    aspect_ratio: str | None = None
    """Aspect ratio, e.g. `16:9`."""
    size: Literal["512", "1K", "2K", "4K"] | None = None
    output_format: Literal["png", "jpeg"] | None = None
    compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    person_generation: str | None = None
    prominent_people: str | None = None


class GoogleSafetySetting(Config, frozen=True, kw_only=True):
    """The probability (or severity, on Vertex) from which a category of content is blocked."""

    category: Harm
    threshold: Literal["BLOCK_LOW_AND_ABOVE", "BLOCK_MEDIUM_AND_ABOVE", "BLOCK_ONLY_HIGH", "BLOCK_NONE", "OFF"]
    method: Literal["SEVERITY", "PROBABILITY"] | None = None


class GoogleSearch(Config, frozen=True, kw_only=True):
    """Google search. `exclude_domains` and `blocking_confidence` are for Vertex only."""

    search_types: Sequence[Literal["web", "image"]] = ()
    start_time: str | None = None
    end_time: str | None = None
    """End of the time range. Both times have the form `2026-01-31T00:00:00Z`."""
    exclude_domains: Sequence[str] = ()
    blocking_confidence: str | None = None


class GoogleFileSearch(Config, frozen=True, kw_only=True):
    """The file search stores to search."""

    stores: Annotated[Sequence[str], Meta(min_length=1, description="a list of at least one store's name")]
    top_k: Annotated[int, Meta(ge=1)] | None = None
    metadata_filter: str | None = None


class GoogleMaps(Config, frozen=True, kw_only=True):
    """Grounding in Google Maps. `grounding_types` is for Vertex only."""

    enable_widget: bool | None = None
    latitude: float | None = None
    longitude: float | None = None
    language: str | None = None
    grounding_types: Objects | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.latitude is None) != (self.longitude is None):
            raise ConfigurationError("GoogleMaps needs latitude and longitude together")


class GoogleComputerUse(Config, frozen=True, kw_only=True):
    """Computer use: the model reads screenshots and calls predefined functions, which your `computer_use` tool answers.

    The display size is not sent. If you set it, your tool gets coordinates in pixels instead of thousandths.
    """

    environment: Literal["browser", "mobile", "desktop"] = "browser"
    display_width: Annotated[int, Meta(ge=1)] | None = None
    display_height: Annotated[int, Meta(ge=1)] | None = None
    excluded_functions: Sequence[str] = ()
    detect_prompt_injection: bool | None = None
    disabled_safety_policies: Sequence[str] = ()


class GoogleFunctionOptions(Config, frozen=True, kw_only=True):
    """Options for one client tool that only this provider has."""

    behavior: Literal["BLOCKING", "NON_BLOCKING"] | None = None
    """Whether the model waits for the result."""
    response_schema: Objects | None = None
    """JSON schema of the result."""


class ServerSideToolOptions(Config, frozen=True, kw_only=True):
    """Server-side tools in Google's own terms."""

    tool_fields = frozenset(
        {"server_side_tools", "google_search_config", "file_search", "maps_grounding", "computer_use", "extra_tools"}
    )

    server_side_tools: Set[GoogleServerSideTool] = frozenset()
    """Tools to enable by name."""
    google_search_config: GoogleSearch | None = None
    """Settings of Google Search when it is enabled by name."""
    file_search: GoogleFileSearch | None = None
    """Search in file search stores."""
    maps_grounding: GoogleMaps | None = None
    """Grounding with Google Maps."""
    computer_use: GoogleComputerUse | None = None
    """A computer that the model controls."""
    extra_tools: Sequence[Objects] = ()
    """Tools in the API's own format, for Vertex or for tools that are newer than this class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.google_search_config is not None and GoogleServerSideTool.GOOGLE_SEARCH not in self.server_side_tools:
            raise ConfigurationError("google_search_config has no effect unless GOOGLE_SEARCH is in server_side_tools")


class GoogleOptions(ServerSideToolOptions, frozen=True, kw_only=True):
    """Options for a request. Unset options are not sent, except where a field says otherwise."""

    secrets = frozenset({"extra_headers"})

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Sampling temperature. Higher values give more varied answers."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Probability mass of the tokens to sample from."""
    top_k: Annotated[float, Meta(ge=1)] | None = None
    """Number of the most likely tokens to sample from."""
    candidate_count: Annotated[int, Meta(ge=1)] | None = None
    """Number of candidates. All but the first arrive as `custom` parts of the kind `google.candidate`."""
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Maximum output tokens per response, reasoning included."""
    stop_sequences: Sequence[str] = ()
    """Strings at which the answer ends."""
    seed: int | None = None
    """Seed for sampling, for answers that are more alike."""
    presence_penalty: float | None = None
    """Penalty for tokens that have occurred."""
    frequency_penalty: float | None = None
    """Penalty for tokens by how often they have occurred."""
    response_logprobs: bool | None = None
    """Whether to return the log probabilities of output tokens."""
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    """Number of the most likely tokens to return at each position. Needs `response_logprobs`."""
    response_mime_type: str | None = None
    """MIME type: `application/json` or `text/x.enum`. An output type of the agent sets it automatically."""
    response_schema: Objects | None = None
    """Schema in the API's own format. An output type of the agent is sent as JSON schema instead."""
    response_modalities: Sequence[Literal["text", "image", "audio", "video"]] = ()
    """Kinds of output to request."""
    response_format: Sequence[Objects] = ()
    """Formats of the output, in the API's own form."""
    media_resolution: Literal["low", "medium", "high"] | None = None
    """Resolution at which images and videos are read."""
    thinking: GoogleThinking | None = None
    """Reasoning level or budget, and whether it is shown."""
    image: GoogleImageOutput | None = None
    """Format of generated images."""
    speech_config: Objects | None = None
    """Voices and language of generated speech, in the API's own form."""
    audio_timestamp: bool | None = None
    """Whether the model gets timestamps of audio input."""
    audio_transcription: Objects | None = None
    """Settings of audio transcription, in the API's own form."""
    translation: Objects | None = None
    """Settings of translation, in the API's own form."""
    enable_affective_dialog: bool | None = None
    """Whether the answer adapts to the speaker's emotions."""
    enable_enhanced_civic_answers: bool | None = None
    """Whether civic answers are enhanced."""
    routing: Objects | None = None
    """Settings of model routing, in the API's own form."""
    model_selection: Objects | None = None
    """Settings of model selection, in the API's own form."""

    function_calling: Literal["auto", "any", "none", "validated"] | None = None
    """Whether the model may or must call functions."""
    allowed_function_names: Sequence[str] = ()
    """Functions that the model may call, if it must call one."""
    stream_function_call_arguments: bool | None = None
    """Whether to stream function call arguments. For Vertex only."""
    function_options: dict[str, GoogleFunctionOptions] = field(default_factory=dict[str, GoogleFunctionOptions])
    """Options per client tool, by tool name."""
    include_server_side_tool_invocations: bool | None = None
    """Whether to report calls of hosted tools. Enabled automatically if hosted and client tools are mixed, which
    requires it."""
    typed_output_beside_tools: bool | None = None
    """Whether the model supports a schema together with tools. None means that its name decides."""

    safety_settings: Sequence[GoogleSafetySetting] = ()
    """Thresholds at which answers are blocked, by category."""
    cached_content: str | None = None
    """Name of the cached content. It has its own tools and instructions, so those of the request are left out."""
    service_tier: Literal["unspecified", "flex", "standard", "priority"] | None = None
    """Processing tier, which decides speed and price."""
    store: bool | None = None
    """Whether the provider stores the response."""
    labels: Texts | None = None
    """Labels for billing, by name."""
    continuation_token: str | None = None
    """Token that continues a paused answer. If unset, it is taken from the history."""
    extra_body: Objects = field(default_factory=dict[str, Any])
    """Fields merged into the body last, for parameters that are newer than this class."""
    extra_headers: Texts = field(default_factory=Texts)
    """HTTP headers to add to requests."""
