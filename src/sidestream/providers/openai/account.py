"""Options and headers that OpenAI's two APIs share. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from sidestream.jsontext import JsonObject
from sidestream.providers.shared.encoding import given
from sidestream.tools.configs import Config


class Moderation(Config, frozen=True, kw_only=True):
    """Moderation settings. A moderation model scores or blocks input and output."""

    model: str
    input: Literal["score", "block"] | None = None
    output: Literal["score", "block"] | None = None


FILE_SCHEME = "openai-file"
"""URL scheme of uploaded files, as in `LinkPart("openai-file:file-…")`."""

HEADER_VARIABLES: Mapping[str, str] = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Environment variables with the default values of headers, by header."""


def request_headers(organization: str | None, project: str | None, extra_headers: Mapping[str, str]) -> dict[str, str]:
    """Build the headers of one request. They override those of the endpoint."""
    headers = {"OpenAI-Organization": organization, "OpenAI-Project": project}
    return {name: value for name, value in headers.items() if value} | {**extra_headers}


def plain_options(options: Config, forms: Mapping[str, Callable[[Any], Any]]) -> JsonObject:
    """Return the options that are set, under their own names, each encoded by its form."""
    return {name: form(value) for name, form in forms.items() if (value := getattr(options, name)) not in (None, ())}


def as_json(value: Any) -> Any:
    """Convert the value of an option to JSON. Returns None for a config without set fields."""
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return (given(value) or None) if isinstance(value, Config) else value


def moderation_body(moderation: Moderation) -> JsonObject:
    """Encode moderation settings, in the form that both APIs expect."""
    policy = {side: {"mode": mode} for side, mode in given(moderation, {"input": "input", "output": "output"}).items()}
    return {"model": moderation.model, **({"policy": policy} if policy else {})}
