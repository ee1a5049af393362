"""Endpoints (base URL, credentials and headers of a provider), and the base class of models behind one."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError, MissingKeyError, ProtocolError
from sidestream.providers.protocol import Decoder, Encoded, ModelRequest, Settings
from sidestream.providers.shared.attachments import elsewhere
from sidestream.providers.shared.encoding import ContextT, EncodedRequest
from sidestream.text.redaction import Secret, register_secret
from sidestream.transport.base_urls import is_loopback
from sidestream.transport.calls import FileBody, HttpCall

JSON = "application/json"
BYTES = "application/binary"


class Endpoint(Struct, frozen=True, kw_only=True):
    """A server and its key. Paths are appended to the base URL."""

    base_url: str
    settings: Settings
    api_key: str | None = None
    key_variable: str | None = None
    """Environment variable of the key. None means that the settings provide auth, or that no key is needed."""
    key_header: str = "Authorization"
    headers: Mapping[str, str] = {}
    """Default headers. Those of the settings override them, and those of a call override both."""
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r})"

    def __rich_repr__(self) -> list[Any]:
        return [self.base_url]

    def call(
        self,
        path: str,
        body: bytes | None = None,
        *,
        method: str = "POST",
        accept: str = JSON,
        content_type: str | None = None,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
        file: FileBody | None = None,
    ) -> HttpCall:
        """Build a call to a path below the base URL. The body is JSON unless `content_type` is given."""
        defaults = {"Accept": "text/event-stream" if stream else accept}
        if body is not None or content_type is not None:
            defaults["Content-Type"] = content_type or JSON
        return HttpCall(
            method=method,
            url=f"{self.base_url}/{path}",
            headers=defaults | self._credentials() | {**self.headers, **self.settings.headers, **(headers or {})},
            body=body,
            file=file,
            stream=stream,
            key_variable=self.key_variable,
        )

    def _credentials(self) -> dict[str, str]:
        if self.settings.auth is not None:
            return {name: Secret(value) for name, value in self.settings.auth().items()}
        if self.api_key is None:
            return {}
        return {
            self.key_header: Secret(f"Bearer {self.api_key}" if self.key_header == "Authorization" else self.api_key)
        }


def open_endpoint(
    settings: Settings,
    base_url: str,
    key_variables: Sequence[str],
    *,
    who: str,
    keys_at: str | None = None,
    key_header: str = "Authorization",
    headers: Mapping[str, str] | None = None,
) -> Endpoint:
    """Build the endpoint, with the key from the settings or from the first variable that is set.

    Raises MissingKeyError if there is no key, unless the settings provide auth, the server is on loopback, or
    `key_variables` is empty. The error says that `who` needs a key, and where to create one.
    """
    if settings.auth is not None:
        return Endpoint(base_url=base_url, settings=settings, headers=headers or {})
    given = Secret((settings.api_key or "").strip())
    held = [name for name in key_variables if os.environ.get(name, "").strip() and not given]
    key = given or (Secret(os.environ[held[0]].strip()) if held else None)
    if key is not None:
        register_secret(key)
    elif key_variables and not is_loopback(base_url):
        place = f" (create one at {keys_at})" if keys_at else ""
        variables = " or ".join(key_variables)
        raise MissingKeyError(f"{who} needs a key: set {variables}{place}, or pass api_key or auth to Agent")
    return Endpoint(
        base_url=base_url,
        settings=settings,
        api_key=key,
        key_variable=next(iter((*held, *key_variables)), None),
        key_header=key_header,
        headers=headers or {},
        warnings=(f"both {held[0]} and {held[1]} are set; {held[0]} is used",) if len(held) > 1 else (),
    )


def from_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Build headers from environment variables, skipping unset ones."""
    return {name: value for name, variable in variables.items() if (value := os.environ.get(variable, "").strip())}


def url_from_variables(template: str, *, who: str) -> str:
    """Fill names such as `{AWS_REGION}` in a URL from environment variables.

    `{A|B}` takes the first variable that is set, and `{A|=global}` falls back to a value. Raises ConfigurationError if
    no variable of a place is set, or if its value would change the rest of the URL.
    """

    def value(place: re.Match[str]) -> str:
        names = place[1].split("|")
        default = names.pop()[1:] if names[-1].startswith("=") else ""
        set_ones = [name for name in names if os.environ.get(name, "").strip()]
        found = os.environ[set_ones[0]].strip() if set_ones else default
        if not found:
            raise ConfigurationError(f"{who} needs a base URL: set {' or '.join(names)}, or pass base_url to Agent")
        if not re.fullmatch(r"[\w.-]+", found, re.ASCII):
            raise ConfigurationError(f"{set_ones[0]} must be letters, digits, '.', '_' and '-', not {found!r:.80}")
        return found

    return re.sub(r"\{([^}]+)\}", value, template)


def as_segment(part: str) -> str:
    """Quote an id as one path segment. Raises ProtocolError for ids of dots only, which would change the path."""
    if not part.strip("."):
        raise ProtocolError(f"the provider sent an invalid id: {part!r}")
    # A lone surrogate cannot be quoted; with a replacement the provider reports an unknown id.
    return quote(part, safe="", errors="replace")


class EndpointModel:
    """A model behind an endpoint."""

    provider = ""
    """The provider's name."""
    file_scheme = ""
    """URL scheme of links to files that were uploaded to the provider."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self.base_url!r})"

    @property
    def base_url(self) -> str:
        """The endpoint's base URL."""
        return self._endpoint.base_url

    def _encoded(
        self, path: str, request: ModelRequest, made: EncodedRequest[ContextT], decoder: Callable[[ContextT], Decoder]
    ) -> Encoded:
        """Build the call to a path from an encoded request, with the decoder for its response."""
        body = jsontext.dumps(made.body)
        files = elsewhere(request.messages[made.first :] if made.first else request.messages, self.file_scheme)
        return Encoded(
            call=self._endpoint.call(path, body, stream=request.stream, headers=made.headers),
            decoder=partial(decoder, made.context),
            warnings=(*self._endpoint.warnings, *made.warnings, *files),
            notices=made.notices,
            needs=made.needs,
            uploads=made.uploads,
            names_uploads=made.names_uploads,
            first=made.first,
            defers_output=made.defers_output,
            in_background=made.in_background,
        )
