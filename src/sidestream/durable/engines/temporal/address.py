"""Connections to Temporal, from a URL and the environment variables that Temporal's own tools read."""

import asyncio
import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct
from temporalio.client import Client
from temporalio.envconfig import ClientConfigProfile
from temporalio.service import RPCError

from sidestream.durable.engines.protocol import EngineError
from sidestream.errors import ConfigurationError
from sidestream.lazy import outlast_threads
from sidestream.text.redaction import redact, register_secret

LEASE_S = 30.0
"""Default lease in seconds. A shorter one costs the server more requests and log lines."""
MIN_LEASE_S = 1.0
MAX_LEASE_S = 3600.0
ANSWER_S = 10.0
"""Seconds the service has to respond."""
PORT = 7233
FORM = "temporal://host:port/namespace"


class Address(Struct, frozen=True, kw_only=True):
    """A namespace of a Temporal service, with the engine's settings."""

    host: str | None
    """Host and port. None means those of the environment or Temporal's configuration file."""
    namespace: str | None = None
    prefix: str = "sidestream"
    """Prefix of workflow and task queue names. Installations that share a namespace need different ones."""
    lease_s: float = LEASE_S
    tls: bool | None = None
    """Whether to use TLS. None means the environment's setting, which is TLS if there is an API key."""


def parse_address(url: str) -> Address:
    """Parse a Temporal URL. Raises ConfigurationError if it is invalid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise ConfigurationError(f"invalid Temporal URL; use {FORM}") from None
    if parts.scheme != "temporal" or parts.fragment:
        raise ConfigurationError(f"invalid Temporal URL; use {FORM}")
    if "@" in parts.netloc:
        raise ConfigurationError("the Temporal URL must not contain an API key; set TEMPORAL_API_KEY instead")
    if unknown := options.keys() - {"prefix", "lease", "tls"}:
        names = ", ".join(sorted(unknown))
        raise ConfigurationError(f"unknown options in the Temporal URL: {names}; use lease, prefix or tls")
    shown = f"[{host}]" if host and ":" in host else host
    return Address(
        host=f"{shown}:{port or PORT}" if shown else None,
        namespace=unquote(parts.path.strip("/")) or None,
        prefix=options.get("prefix") or "sidestream",
        lease_s=_lease(options.get("lease")),
        tls=_flag(options.get("tls")),
    )


async def connect(address: Address) -> Client:
    """Connect to the service. Raises EngineError if it does not respond, ConfigurationError if settings are invalid."""
    outlast_threads()
    settings = _settings(address)
    host, namespace = settings["target_host"], settings["namespace"]
    if key := settings.get("api_key"):
        register_secret(key)
    try:
        async with asyncio.timeout(ANSWER_S):
            return await Client.connect(**settings)
    except (RuntimeError, ValueError, TimeoutError) as error:  # What the SDK raises, whatever the reason.
        raise EngineError(
            f"cannot connect to Temporal at {host} (namespace {namespace}): {redact(str(error))}; check that it is "
            "running and whether it expects TLS; for development, run: "
            f"temporal server start-dev --namespace {namespace}"
        ) from None


def forget_frames(error: RPCError) -> None:
    """Remove the tracebacks of a caught error.

    The SDK may keep its cause indefinitely, and the frames would keep the connection open.
    """
    for each in (error, error.__cause__, error.__context__):
        if each is not None:
            each.__traceback__ = None


def _settings(address: Address) -> dict[str, Any]:
    try:
        # A profile's credentials are only for the host of that profile.
        profile = ClientConfigProfile.load(disable_file=address.host is not None and not _names_file())
        found = dict[str, Any](profile.to_client_connect_config())
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigurationError(f"invalid Temporal settings: {redact(str(error))}") from None
    if address.tls is not None:
        # Keep the environment's certificates.
        found["tls"] = (found.get("tls") or True) if address.tls else False
    found["target_host"] = address.host or found.get("target_host") or f"127.0.0.1:{PORT}"
    found["namespace"] = address.namespace or found.get("namespace") or "default"
    return found


def _names_file() -> bool:
    """Return whether the environment selects a configuration file or a profile."""
    return any(os.environ.get(name) for name in ("TEMPORAL_CONFIG_FILE", "TEMPORAL_PROFILE"))


def _lease(text: str | None) -> float:
    if text is None:
        return LEASE_S
    try:
        lease_s = float(text)
    except ValueError:
        lease_s = -1.0
    if not MIN_LEASE_S <= lease_s <= MAX_LEASE_S:
        raise ConfigurationError(
            f"lease in the Temporal URL must be between {MIN_LEASE_S:g} and {MAX_LEASE_S:g} seconds, not {text!r}"
        )
    return lease_s


def _flag(text: str | None) -> bool | None:
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"tls in the Temporal URL must be true or false, not {text!r}")
    return text.lower() == "true"
