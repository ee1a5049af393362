"""Storage for sign-ins: private files, the system keyring, memory, or the application's own store."""

import asyncio
import importlib.util
import json
import os
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct, ValidationError, convert, to_builtins

from sidestream.errors import ConfigurationError, MissingExtraError
from sidestream.files.folders import NO_FOLLOW, config_folder, try_lock, write_private
from sidestream.text.redaction import register_secret

VARIABLE = "SIDESTREAM_MCP_TOKENS"
"""Environment variable that selects the store: `files`, or `keyring` for the system keyring."""
_LOCK_TIMEOUT_S = 60.0
"""Seconds to wait for another process that refreshes a token. Waiting for a user takes longer."""
_LOCK_POLL_S = 0.02


class SignIn(Struct, frozen=True, kw_only=True):
    """The outcome of a sign-in at one server: its tokens, and the data needed to refresh them."""

    access_token: str
    refresh_token: str | None = None
    expires_at: float | None = None
    """Expiry in seconds since the epoch. None means that the server did not say."""
    scope: str | None = None
    client: dict[str, Any] | None = None
    """Registration of this client at the authorization server."""
    authorization_server: dict[str, Any] | None = None
    """Metadata of the authorization server, whose issuer was verified."""
    resource: dict[str, Any] | None = None
    """Metadata of the server that the token is for."""

    def __post_init__(self) -> None:
        for secret in (self.access_token, self.refresh_token, (self.client or {}).get("client_secret")):
            if isinstance(secret, str):
                register_secret(secret)

    @property
    def is_expired(self) -> bool:
        """Whether the access token is known to have expired."""
        return self.expires_at is not None and time.time() > self.expires_at

    @property
    def issuer(self) -> str | None:
        """Issuer URL of the authorization server, if it published metadata."""
        issuer = (self.authorization_server or {}).get("issuer")
        return issuer if isinstance(issuer, str) else None

    def __repr__(self) -> str:
        return f"SignIn(issuer={self.issuer!r}, scope={self.scope!r}, expires_at={self.expires_at!r})"

    def __rich_repr__(self) -> list[Any]:
        return [("issuer", self.issuer), ("scope", self.scope), ("expires_at", self.expires_at)]


class TokenStore(Protocol):
    """Stores one sign-in per server URL. A web application has one store per user."""

    async def load(self, server_url: str) -> SignIn | None:
        """Return the sign-in at this server, or None."""
        ...

    async def save(self, server_url: str, sign_in: SignIn | None) -> None:
        """Replace the sign-in at this server. None removes it."""
        ...

    def lock(self, server_url: str) -> AbstractAsyncContextManager[None]:
        """Return a lock to hold while requesting tokens, since a refresh token may be valid for one use only."""
        ...


class MemoryTokens:
    """A store that lasts as long as the process."""

    def __init__(self) -> None:
        self._sign_ins: dict[str, SignIn] = {}

    async def load(self, server_url: str) -> SignIn | None:
        """Return the sign-in at this server, or None."""
        return self._sign_ins.get(server_url)

    async def save(self, server_url: str, sign_in: SignIn | None) -> None:
        """Replace the sign-in at this server. None removes it."""
        self._sign_ins.pop(server_url, None)
        if sign_in is not None:
            self._sign_ins[server_url] = sign_in

    @asynccontextmanager
    async def lock(self, server_url: str) -> AsyncGenerator[None]:
        """Hold no lock, since each connection has its own, which suffices within a process."""
        yield


class TokenFiles:
    """A store with one file per server, beside the command line's keys, readable only by the user."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)

    def path(self, server_url: str) -> Path:
        """Return the path of this server's file, which need not exist."""
        folder = config_folder() / "mcp" if self._folder is None else self._folder
        return folder / f"{sha256(_address(server_url).encode()).hexdigest()[:32]}.json"

    async def load(self, server_url: str) -> SignIn | None:
        """Return the sign-in at this server, or None.

        Raises ConfigurationError if the file is unreadable or damaged.
        """
        file = self.path(server_url)
        try:
            return convert(json.loads(file.read_text("utf-8")), SignIn)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"cannot read the sign-in in {file}: {error.strerror}") from None
        except (ValueError, ValidationError, RecursionError):
            pass
        # Raised outside of `except`, since the exception may show the content.
        raise ConfigurationError(f"{file} is not a valid sign-in; remove it and run `sidestream mcp login`")

    async def save(self, server_url: str, sign_in: SignIn | None) -> None:
        """Replace the sign-in at this server. None removes it.

        Raises ConfigurationError if the file cannot be written.
        """
        file = self.path(server_url)
        try:
            if sign_in is None:
                file.unlink(missing_ok=True)
            else:
                write_private(file, f"{json.dumps(to_builtins(sign_in))}\n")
        except OSError as error:
            raise ConfigurationError(f"cannot store the sign-in in {file}: {error.strerror}") from None

    @asynccontextmanager
    async def lock(self, server_url: str) -> AsyncGenerator[None]:
        """Exclude other processes while tokens are requested.

        Raises ConfigurationError if another process holds the lock for long.
        """
        # Never removed: a process could hold the lock of a removed file while another locks a new one.
        file = self.path(server_url).with_suffix(".lock")
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o600)
        except OSError as error:
            raise ConfigurationError(f"cannot lock {file}: {error.strerror}") from None
        try:
            deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
            while not try_lock(descriptor):
                if time.monotonic() > deadline_s:
                    raise ConfigurationError("another process is signing in to the same server; try again later")
                await asyncio.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)  # releases the lock


class KeyringTokens:
    """A store in the system keyring, through the package `keyring`. Raises MissingExtraError without it."""

    def __init__(self, service: str = "sidestream-mcp") -> None:
        if importlib.util.find_spec("keyring") is None:
            raise MissingExtraError("keyring", "KeyringTokens")
        self._service = service
        self._files = TokenFiles()

    async def load(self, server_url: str) -> SignIn | None:
        """Return the sign-in at this server, or None.

        Raises ConfigurationError if the keyring fails or its entry is damaged.
        """
        text = await self._call("get_password", server_url)
        if text is None:
            return None
        try:
            return convert(json.loads(text), SignIn)
        except (ValueError, ValidationError, RecursionError):
            pass
        # Raised outside of `except`, since the exception may show the content.
        raise ConfigurationError(
            f"the keyring entry {self._service!r} for {_address(server_url)} is damaged; remove it"
        )

    async def save(self, server_url: str, sign_in: SignIn | None) -> None:
        """Replace the sign-in at this server. None removes it.

        Raises ConfigurationError if the keyring fails.
        """
        if sign_in is not None:
            await self._call("set_password", server_url, json.dumps(to_builtins(sign_in)))
        elif await self._call("get_password", server_url) is not None:
            await self._call("delete_password", server_url)

    def lock(self, server_url: str) -> AbstractAsyncContextManager[None]:
        """Exclude other processes with a lock file, since a keyring has no locks."""
        return self._files.lock(server_url)

    async def _call(self, name: str, server_url: str, *secrets: str) -> str | None:
        def call() -> str | None:
            import keyring

            return getattr(keyring, name)(self._service, _address(server_url), *secrets)

        try:
            return await asyncio.to_thread(call)  # it may prompt the user to unlock the keyring
        except Exception as error:
            kind = type(error).__name__
        # Raised outside of `except`, since a keyring's exception may show what it was given.
        raise ConfigurationError(f"the system keyring failed ({kind}): unlock it, or set {VARIABLE}=files")


def default_tokens() -> TokenStore:
    """Return the user's token store, in files or in the system keyring.

    Raises ConfigurationError if the variable is invalid, and MissingExtraError without the package `keyring`.
    """
    match os.environ.get(VARIABLE) or "files":
        case "files":
            return TokenFiles()
        case "keyring":
            return KeyringTokens()
        case other:
            raise ConfigurationError(f"{VARIABLE} must be files or keyring, not {other!r}")


def _address(server_url: str) -> str:
    """Normalise a server URL to the form under which its sign-in is stored."""
    parts = urlsplit(server_url)
    host = parts.netloc.rpartition("@")[2].lower()
    return urlunsplit((parts.scheme.lower(), host, parts.path.rstrip("/"), parts.query, ""))
