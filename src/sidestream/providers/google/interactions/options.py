"""Options for the Interactions API."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from sidestream.errors import ConfigurationError
from sidestream.jsontext import is_array, is_object, objects
from sidestream.providers.google.context import GoogleContext
from sidestream.providers.google.options import GoogleSafetySetting, Objects, ServerSideToolOptions, Texts
from sidestream.text.redaction import hidden, hidden_variables
from sidestream.tools.configs import Config


class GoogleEnvironmentSource(Config, frozen=True, kw_only=True):
    """Files for an environment."""

    type: Literal["gcs", "inline", "repository", "skill_registry"]
    source: str | None = None
    target: str | None = None
    content: str | None = None
    encoding: str | None = None


class GoogleAllowedDomain(Config, frozen=True, kw_only=True):
    """A domain that an environment may connect to."""

    secrets = frozenset({"headers"})

    domain: str
    """Domain name. `*.example.com` matches all subdomains, `*` all domains."""
    credential: str | None = None
    """Id of a credential that the proxy adds to requests."""
    headers: Texts = field(default_factory=Texts)
    """Headers that the proxy adds to requests."""

    def register_secrets(self) -> None:
        hidden(self.headers)


class GoogleEnvironment(Config, frozen=True, kw_only=True):
    """A sandbox with files that outlives an interaction, a new one or an existing one."""

    secrets = frozenset({"env", "network"})

    environment_id: str | None = None
    sources: Sequence[GoogleEnvironmentSource] = ()
    network: Sequence[GoogleAllowedDomain] | Objects | Literal["disabled"] | None = None
    """Domains that it may connect to, `disabled` for none, or the API's own object."""
    env: dict[str, Any] | None = None
    """Environment variables. A value is a string, or `{"credential": id}` for a secret that only the server knows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (self.env or {}).items():
            fields: Any = value if is_object(value) else {"value": value}
            if len(fields) != 1 or not all(
                key in ("value", "credential") and isinstance(text, str) for key, text in fields.items()
            ):
                raise ConfigurationError(
                    f"GoogleEnvironment(env=…) is invalid: {name} must be a string, or an object with either value or "
                    "credential"
                )

    def register_secrets(self) -> None:
        for name, value in (self.env or {}).items():
            text = value.get("value") if is_object(value) else value
            hidden_variables({name: text} if isinstance(text, str) else {})
        for entry in objects(self.network.get("allowlist")) if is_object(self.network) else ():
            added = entry.get("transform")
            for headers in objects(added if is_array(added) else [added]):
                hidden({key: value for key, value in headers.items() if isinstance(value, str)})


class GoogleInteractionsOptions(ServerSideToolOptions, frozen=True, kw_only=True):
    """Options for an interaction. Unset options are not sent, except where a field says otherwise.

    The server stores interactions unless `store` is false; the session of a conversation needs that.
    `previous_interaction_id` overrides the session found in the history.
    """

    secrets = frozenset({"extra_headers"})

    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Maximum output tokens, including thinking."""
    seed: int | None = None
    """Seed for repeatable sampling."""
    stop_sequences: Sequence[str] = ()
    """Strings that end the answer."""
    thinking_level: Literal["minimal", "low", "medium", "high"] | None = None
    """Amount of thinking."""
    thinking_summaries: Literal["auto", "none"] | None = None
    """Whether the answer has summaries of the thinking. `auto` requests them."""
    tool_choice: Literal["auto", "any", "none", "validated"] | Objects | None = None
    """Whether the model must call a tool, or the API's own object with the allowed tools."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Sampling temperature."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Cumulative probability of the tokens to sample from."""
    image_config: Objects | None = None
    """Format, size and aspect ratio of images, in the API's own terms."""
    speech_config: Objects | Sequence[Objects] | None = None
    """Voice and language of speech, in the API's own terms. A list has one entry per speaker."""
    video_config: Objects | None = None
    """Length, resolution and aspect ratio of videos, in the API's own terms."""
    transcription_config: Objects | None = None
    """Options of a transcription, in the API's own terms."""

    response_format: Objects | Sequence[Objects] | None = None
    """Output format in the API's own terms. An output type of the agent and `ImageGeneration` add theirs."""
    response_mime_type: str | None = None
    """MIME type of the answer. An output type of the agent sets `application/json`."""
    response_modalities: Sequence[Literal["text", "image", "audio", "video"]] = ()
    """Kinds of output that the model may return."""
    store: bool | None = None
    """Whether Google stores the interaction. None means that it does."""
    background: bool | None = None
    """Whether the interaction goes on without a connection. Agents need it."""
    previous_interaction_id: str | None = None
    """Id of the interaction to continue. Overrides the session of the conversation."""
    environment: str | GoogleEnvironment | None = None
    """Sandbox of an agent, or the id of an earlier one."""
    agent: bool | None = None
    """Whether the name is that of an agent. None means that the name decides."""
    agent_config: Objects | None = None
    """Configuration of an agent, in the API's own terms."""
    service_tier: Literal["flex", "standard", "priority", "deferred"] | None = None
    """Service tier that processes the request."""
    safety_settings: Sequence[GoogleSafetySetting] = ()
    """Thresholds of the safety filters, one per category."""
    labels: Texts | None = None
    """Labels for billing reports, by name."""
    webhook_config: Objects | None = None
    """Webhook that Google calls when the interaction ends, in the API's own terms."""
    cached_content: str | None = None
    """Name of a stored prompt cache, such as `cachedContents/abc`."""
    continuation_token: str | None = None
    """Token that continues a paused answer. If unset, it is taken from the history."""
    typed_output_beside_tools: bool | None = None
    """Whether the model supports a schema together with tools. None means that its name decides."""
    extra_body: Objects = field(default_factory=dict[str, Any])
    """Fields merged into the body last, for parameters that are newer than this class."""
    extra_headers: Texts = field(default_factory=Texts)
    """Additional request headers."""


SESSION_KEY = "_google_interactions_session"
"""Metadata key for the session of a stored interaction."""
REPLAY_KEY = "_google_interactions_replay_session"
"""Metadata key for the steps of an interaction that was not stored, to resend them."""
REPLAYED: dict[str, str] = {SESSION_KEY: "steps", REPLAY_KEY: "steps"}
"""Session key → the field that only resending the whole history needs."""


class InteractionContext(GoogleContext, frozen=True, kw_only=True):
    """Request context for the decoder of an interaction."""

    store: bool = True
