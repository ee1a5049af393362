"""Options of Gemini."""

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
    """The tools that can be switched on by name; the values are the keys of their events."""

    CODE_EXECUTION = "code_execution"
    GOOGLE_SEARCH = "google_search"
    URL_CONTEXT = "url_context"


class GoogleThinking(Config, frozen=True, kw_only=True):
    """How much the model thinks, and whether it shows it. Newer models have a level, older ones a budget."""

    include_thoughts: bool | None = None
    budget: Annotated[int, Meta(ge=-1, description="-1 (dynamic), 0 (off) or a number of tokens")] | None = None
    level: Literal["minimal", "low", "medium", "high"] | None = None


class GoogleImageOutput(Config, frozen=True, kw_only=True):
    """Images that the model generates. `output_format`, `compression` and people are for Vertex only."""

    aspect_ratio: str | None = None
    """E.g. `16:9`."""
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
    """Both in the form `2026-01-31T00:00:00Z`."""
    exclude_domains: Sequence[str] = ()
    blocking_confidence: str | None = None


class GoogleFileSearch(Config, frozen=True, kw_only=True):
    """Which file search stores are searched."""

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
    """The model reads screenshots and calls predefined functions, which your tool `computer_use` answers.

    With the size of the display, which is not sent, it gets coordinates in pixels, else in thousandths.
    """

    environment: Literal["browser", "mobile", "desktop"] = "browser"
    display_width: Annotated[int, Meta(ge=1)] | None = None
    display_height: Annotated[int, Meta(ge=1)] | None = None
    excluded_functions: Sequence[str] = ()
    detect_prompt_injection: bool | None = None
    disabled_safety_policies: Sequence[str] = ()


class GoogleFunctionOptions(Config, frozen=True, kw_only=True):
    """Options of one client tool that only this provider has."""

    behavior: Literal["BLOCKING", "NON_BLOCKING"] | None = None
    response_schema: Objects | None = None


class ServerSideToolOptions(Config, frozen=True, kw_only=True):
    """Server-side tools in Google's own terms."""

    tool_fields = frozenset(
        {"server_side_tools", "google_search_config", "file_search", "maps_grounding", "computer_use", "extra_tools"}
    )

    server_side_tools: Set[GoogleServerSideTool] = frozenset()
    google_search_config: GoogleSearch | None = None
    file_search: GoogleFileSearch | None = None
    maps_grounding: GoogleMaps | None = None
    computer_use: GoogleComputerUse | None = None
    extra_tools: Sequence[Objects] = ()
    """Tools in the API's own format: for Vertex, or newer than this class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.google_search_config is not None and GoogleServerSideTool.GOOGLE_SEARCH not in self.server_side_tools:
            raise ConfigurationError("google_search_config has no effect unless GOOGLE_SEARCH is in server_side_tools")


class GoogleOptions(ServerSideToolOptions, frozen=True, kw_only=True):
    """Options of a request. What is not set is not sent, except where a field says otherwise."""

    secrets = frozenset({"extra_headers"})

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[float, Meta(ge=1)] | None = None
    candidate_count: Annotated[int, Meta(ge=1)] | None = None
    """Beyond the first, candidates arrive as `custom` parts of the kind `google.candidate`."""
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop_sequences: Sequence[str] = ()
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    response_mime_type: str | None = None
    """`application/json` or `text/x.enum`; set automatically by an output type of the agent."""
    response_schema: Objects | None = None
    """In the API's own schema format; an output type of the agent is sent as JSON schema."""
    response_modalities: Sequence[Literal["text", "image", "audio", "video"]] = ()
    response_format: Sequence[Objects] = ()
    media_resolution: Literal["low", "medium", "high"] | None = None
    thinking: GoogleThinking | None = None
    image: GoogleImageOutput | None = None
    speech_config: Objects | None = None
    audio_timestamp: bool | None = None
    audio_transcription: Objects | None = None
    translation: Objects | None = None
    enable_affective_dialog: bool | None = None
    enable_enhanced_civic_answers: bool | None = None
    routing: Objects | None = None
    model_selection: Objects | None = None

    function_calling: Literal["auto", "any", "none", "validated"] | None = None
    allowed_function_names: Sequence[str] = ()
    stream_function_call_arguments: bool | None = None
    """For Vertex only."""
    function_options: dict[str, GoogleFunctionOptions] = field(default_factory=dict[str, GoogleFunctionOptions])
    """By the name of the client tool."""
    include_server_side_tool_invocations: bool | None = None
    """Reports calls of hosted tools. Sent automatically if hosted and client tools are mixed, which requires it."""
    typed_output_beside_tools: bool | None = None
    """Whether the model supports a schema beside tools. None: derived from its name."""

    safety_settings: Sequence[GoogleSafetySetting] = ()
    cached_content: str | None = None
    """It has its own tools and instructions, so those of the request are left out."""
    service_tier: Literal["unspecified", "flex", "standard", "priority"] | None = None
    store: bool | None = None
    labels: Texts | None = None
    continuation_token: str | None = None
    """Taken from the history if not set and an answer was paused."""
    extra_body: Objects = field(default_factory=dict[str, Any])
    """Merged into the body last: for parameters that are newer than this class."""
    extra_headers: Texts = field(default_factory=Texts)
