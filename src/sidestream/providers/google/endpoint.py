"""Where Gemini is called, and as whom: base URL, API version, key."""

import os
import re
from urllib.parse import quote, urlsplit

from msgspec import Struct

from sidestream.base_urls import checked_base_url, is_loopback
from sidestream.calls import HttpCall
from sidestream.errors import ConfigurationError, MissingKeyError
from sidestream.models import Settings

KEY_VARIABLE = "GOOGLE_API_KEY"
OTHER_KEY_VARIABLE = "GEMINI_API_KEY"
BASE_URL_VARIABLE = "GOOGLE_GEMINI_BASE_URL"
VERSION_VARIABLE = "GOOGLE_GENAI_API_VERSION"
DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com"
DEFAULT_VERSION = "v1"

_VERSION = re.compile(r"v\d+\w*")


class Endpoint(Struct, frozen=True, kw_only=True):
    """A server with its key. The base URL ends with the version, or what comes after it."""

    base_url: str
    settings: Settings
    api_key: str | None = None
    key_variable: str | None = None
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r})"

    def call(
        self,
        path: str,
        body: bytes | None = None,
        *,
        method: str = "POST",
        stream: bool = False,
        headers: dict[str, str] | None = None,
    ) -> HttpCall:
        """A call of a path below the base URL."""
        return HttpCall(
            method=method,
            url=f"{self.base_url}/{path}",
            headers=self._headers(stream=stream, has_body=body is not None) | (headers or {}),
            body=body,
            stream=stream,
            key_variable=self.key_variable,
        )

    def _headers(self, *, stream: bool, has_body: bool) -> dict[str, str]:
        headers = {"Accept": "text/event-stream" if stream else "application/json"}
        if has_body:
            headers["Content-Type"] = "application/json"
        if self.settings.auth is not None:
            headers |= self.settings.auth()
        elif self.api_key:
            headers["x-goog-api-key"] = self.api_key
        return headers | self.settings.headers


def endpoint_of(settings: Settings) -> Endpoint:
    """Raises MissingKeyError, unless the settings bring their own auth or the server is on this machine."""
    base_url = normal_base_url(settings.base_url or os.environ.get(BASE_URL_VARIABLE) or DEFAULT_BASE_URL)
    if settings.auth is not None:
        return Endpoint(base_url=base_url, settings=settings)
    key, variable, warnings = _key(settings)
    if key is not None:
        from sidestream.redaction import register_secret

        register_secret(key)
    elif not is_loopback(base_url):
        raise MissingKeyError(
            f"Google needs a key: set {KEY_VARIABLE} or {OTHER_KEY_VARIABLE} "
            "(keys are made at https://aistudio.google.com/apikey), or pass api_key= or auth= to Agent"
        )
    return Endpoint(base_url=base_url, settings=settings, api_key=key, key_variable=variable, warnings=warnings)


def _key(settings: Settings) -> tuple[str | None, str, tuple[str, ...]]:
    if settings.api_key and settings.api_key.strip():
        return settings.api_key.strip(), KEY_VARIABLE, ()
    first = os.environ.get(KEY_VARIABLE, "").strip()
    second = os.environ.get(OTHER_KEY_VARIABLE, "").strip()
    warnings = (f"both {KEY_VARIABLE} and {OTHER_KEY_VARIABLE} are set; {KEY_VARIABLE} is used",)
    if first:
        return first, KEY_VARIABLE, warnings if second else ()
    return second or None, OTHER_KEY_VARIABLE if second else KEY_VARIABLE, ()


def model_path(name: str) -> str:
    """A model's path; a bare name is one of the public models."""
    if any(not segment.strip(".") for segment in name.split("/")):
        raise ConfigurationError(f"{name!r} is no name of a model")
    return quote(name if "/" in name else f"models/{name}", safe="/")


def normal_base_url(url: str) -> str:
    """The URL with its API version, without a slash at its end. Raises ConfigurationError where it is none.

    As Google's own clients do, the version is added to a base URL that has none.
    """
    given = checked_base_url(url)
    if any(_VERSION.fullmatch(segment) for segment in urlsplit(given).path.split("/")):
        return given
    version = os.environ.get(VERSION_VARIABLE, "").strip() or DEFAULT_VERSION
    return f"{given}/{'v1beta' if version == 'beta' else quote(version, safe='')}"
