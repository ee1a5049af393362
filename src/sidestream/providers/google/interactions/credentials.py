"""Credentials that Google's server stores for environments. Code there uses them without seeing them.

The egress proxy of an environment adds a credential to requests (`GoogleAllowedDomain.credential`), or inserts its
value for a variable (`GoogleEnvironment.env`). Credentials that the server returns hold no secrets.
"""

from collections.abc import Sequence
from typing import Literal, assert_never

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, objects
from sidestream.providers.google.context import some_text
from sidestream.providers.shared.encoding import given
from sidestream.text.redaction import register_secret
from sidestream.tools.configs import Config
from sidestream.transport.calls import response_object

Place = Literal["header", "query", "body"]


class _Credential(Config, frozen=True, kw_only=True):
    id: str
    """Id of the credential, chosen by you. Options refer to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.id:
            raise ConfigurationError(f"{type(self).__name__} needs an id")

    def register_secrets(self) -> None:
        for name in self.secrets:
            register_secret(getattr(self, name))


class GoogleBearerCredential(_Credential, frozen=True, kw_only=True):
    """A token for a header of each request."""

    secrets = frozenset({"token"})

    token: str
    header_name: str | None = None
    """Header name. None means `Authorization`."""
    prefix: str | None = None
    """Prefix of the token. None means `Bearer`, an empty string means no prefix."""


class GoogleOAuthCredential(_Credential, frozen=True, kw_only=True):
    """A refresh token with which the server obtains access tokens."""

    secrets = frozenset({"client_secret", "refresh_token"})

    client_id: str
    client_secret: str
    refresh_token: str
    token_url: str
    scopes: Sequence[str] = ()


class GoogleVariableCredential(_Credential, frozen=True, kw_only=True):
    """The value of a variable. Code sees a placeholder, which the proxy replaces in requests to trusted domains."""

    secrets = frozenset({"value"})

    value: str
    injection_location: Place | Sequence[Place]
    """Locations in a request where the placeholder may be replaced."""
    trusted_domains: Sequence[str] = ()


GoogleCredential = GoogleBearerCredential | GoogleOAuthCredential | GoogleVariableCredential


class StoredCredential(Struct, frozen=True, kw_only=True):
    """A credential as the server returns it, without its secrets."""

    id: str
    type: str | None = None
    status: str | None = None
    """Status, `active` or `revoked`."""


def credential_body(credential: GoogleCredential, *, is_new: bool = True) -> bytes:
    """Encode a credential to create it, or to replace its values. To replace them, the id goes into the path."""
    match credential:
        case GoogleBearerCredential():
            kind = "bearer_token"
        case GoogleOAuthCredential():
            kind = "oauth2"
        case GoogleVariableCredential():
            kind = "environment_variable"
        case _:
            assert_never(credential)
    body: JsonObject = {"type": kind, **given(credential)}
    return jsontext.dumps({name: value for name, value in body.items() if is_new or name != "id"})


def read_credential(body: bytes) -> StoredCredential:
    """Decode a credential from a response."""
    return _stored(response_object(body))


def read_credentials(body: bytes) -> tuple[list[StoredCredential], str | None]:
    """Return the credentials of a page, and the token of the next one."""
    page = response_object(body)
    return [_stored(entry) for entry in objects(page.get("credentials"))], some_text(page, "next_page_token")


def _stored(fields: JsonObject) -> StoredCredential:
    identity = some_text(fields, "id") or ""
    return StoredCredential(id=identity, type=some_text(fields, "type"), status=some_text(fields, "status"))
