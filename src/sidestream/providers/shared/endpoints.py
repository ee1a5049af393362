"""Endpoints (base URL, credentials and headers of a provider), and the base class of models behind one."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any, cast
from urllib.parse import quote

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError, MissingKeyError, ProtocolError
from sidestream.providers.protocol import Decoder, Encoded, ModelRequest, Settings
from sidestream.providers.shared.attachments import elsewhere
from sidestream.providers.shared.encoding import ContextT, EncodedRequest
from sidestream.text.redaction import Secret, redact, register_secret
from sidestream.transport.base_urls import (
    has_variable as has_variable,
    is_loopback,
    missing_variables as missing_variables,
    url_from_variables as url_from_variables,
)
from sidestream.transport.calls import FileBody, HttpCall, signer_of

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
    sign: Callable[[HttpCall], Mapping[str, str]] | None = None
    """The settings' auth, if it needs to see the request."""

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
            sign=self.sign,
        )

    def _credentials(self) -> dict[str, str]:
        if self.settings.auth is not None and self.sign is None:
            auth = cast("Callable[[], Mapping[str, str]]", self.settings.auth)
            return {name: Secret(value) for name, value in auth().items()}
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
        return Endpoint(base_url=base_url, settings=settings, headers=headers or {}, sign=signer_of(settings.auth))
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


def aws_sigv4(
    service: str, region: str | None = None, *, profile: str | None = None
) -> Callable[[HttpCall], dict[str, str]]:
    """Return an `auth` that signs each request with the AWS credentials that botocore finds.

    ```python
    mantle = "https://bedrock-mantle.us-east-1.api.aws/anthropic"
    agent = Agent("anthropic:claude", base_url=mantle, auth=aws_sigv4("bedrock-mantle", "us-east-1"))
    ```

    The region defaults to `AWS_REGION`, then to that of botocore's `profile`. Raises ConfigurationError if botocore
    is not installed or there is no region, and MissingKeyError at the first request if there are no credentials.
    """
    try:
        auth, requests, sessions = map(import_module, ("botocore.auth", "botocore.awsrequest", "botocore.session"))
    except ImportError:
        raise ConfigurationError("AWS signatures need botocore: pip install botocore") from None
    session = sessions.Session(profile=profile)
    place = region or os.environ.get("AWS_REGION", "").strip() or session.get_config_variable("region")
    if not place:
        raise ConfigurationError("AWS signatures need a region: set AWS_REGION, or pass region to aws_sigv4")

    def sign(call: HttpCall) -> dict[str, str]:
        credentials = session.get_credentials()
        if credentials is None:
            raise MissingKeyError(
                "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or configure a profile"
            )
        headers = dict(call.headers)
        if call.file is not None:
            headers["X-Amz-Content-SHA256"] = _sha256(call.file)
        request = requests.AWSRequest(method=call.method, url=call.url, headers=headers, data=call.body or b"")
        auth.SigV4Auth(credentials, service, place).add_auth(request)
        return {name: value for name, value in request.headers.items() if call.headers.get(name) != value}

    return sign


def google_token() -> Callable[[HttpCall], dict[str, str]]:
    """Return an `auth` with the current token of the Google Cloud credentials that google-auth finds.

    Raises ConfigurationError if google-auth is not installed, and MissingKeyError at the first request if there are no
    credentials.
    """
    try:
        auth, requests = map(import_module, ("google.auth", "google.auth.transport.requests"))
    except ImportError:
        raise ConfigurationError("Google Cloud tokens need google-auth: pip install google-auth requests") from None
    lock = Lock()
    found: list[Any] = []

    def token(call: HttpCall) -> dict[str, str]:
        with lock:
            try:
                if not found:
                    found.append(auth.default(scopes=[_GOOGLE_SCOPE])[0])
                if not found[0].valid:
                    found[0].refresh(requests.Request())
            except auth.exceptions.DefaultCredentialsError:
                raise MissingKeyError(
                    "no Google Cloud credentials found: run `gcloud auth application-default login`, or set "
                    "GOOGLE_APPLICATION_CREDENTIALS"
                ) from None
            except auth.exceptions.GoogleAuthError as error:
                raise ConfigurationError(f"cannot get a Google Cloud token: {redact(str(error))}") from None
        return {"Authorization": f"Bearer {found[0].token}"}

    return token


_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def _sha256(file: FileBody) -> str:
    digest = hashlib.sha256(file.head)
    if isinstance(file.source, bytes):
        digest.update(file.source[file.start : file.end])
    else:
        with file.source.open("rb") as source:
            source.seek(file.start)
            left = file.end - file.start
            while left and (piece := source.read(min(left, 1 << 20))):
                digest.update(piece)
                left -= len(piece)
    digest.update(file.tail)
    return digest.hexdigest()


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
        sent = request.messages[made.first :] if made.others is None else made.others
        files = elsewhere(sent, self.file_scheme)
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
