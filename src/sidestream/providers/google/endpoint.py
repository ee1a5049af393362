"""Gemini's endpoint: base URL, API version and key."""

import os
import re
from urllib.parse import quote, urlsplit

from sidestream.errors import ConfigurationError
from sidestream.providers.protocol import Settings
from sidestream.providers.shared.endpoints import Endpoint, open_endpoint
from sidestream.transport.base_urls import base_url_in, checked_base_url

KEY_VARIABLE = "GOOGLE_API_KEY"
OTHER_KEY_VARIABLE = "GEMINI_API_KEY"
BASE_URL_VARIABLE = "GOOGLE_GEMINI_BASE_URL"
VERSION_VARIABLE = "GOOGLE_GENAI_API_VERSION"
DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com"
DEFAULT_VERSION = "v1"

_VERSION = re.compile(r"v\d+\w*")


def endpoint_of(settings: Settings) -> Endpoint:
    """Open the endpoint.

    Raises MissingKeyError if there is no key, unless the settings provide auth or the server is on this machine.
    """
    return open_endpoint(
        settings,
        normal_base_url(settings.base_url or base_url_in(BASE_URL_VARIABLE) or DEFAULT_BASE_URL),
        (KEY_VARIABLE, OTHER_KEY_VARIABLE),
        who="Google",
        keys_at="https://aistudio.google.com/apikey",
        key_header="x-goog-api-key",
    )


def model_path(name: str) -> str:
    """Return the URL path of a model. A bare name is one of the public models."""
    if any(not segment.strip(".") for segment in name.split("/")):
        raise ConfigurationError(f"{name!r} is not a model name")
    return quote(name if "/" in name else f"models/{name}", safe="/", errors="replace")


def normal_base_url(url: str) -> str:
    """Return the URL with its API version, without a trailing slash. Raises ConfigurationError if it is invalid.

    Like Google's own clients, it adds the version to a base URL that has none.
    """
    given = checked_base_url(url)
    if any(_VERSION.fullmatch(segment) for segment in urlsplit(given).path.split("/")):
        return given
    version = os.environ.get(VERSION_VARIABLE, "").strip() or DEFAULT_VERSION
    return f"{given}/{'v1beta' if version == 'beta' else quote(version, safe='')}"
