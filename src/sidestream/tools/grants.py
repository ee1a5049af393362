"""Remembered approvals for further calls to a tool in the same conversation.

A grant has the effect of the policy `run` where the policy says `ask`. It covers one tool of one server, as defined
when the user approved it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from sidestream import jsontext

CALL_GRANTED: Final = "sidestream.call-granted"
"""Kind of the custom part that reports a call covered by a remembered approval: `call_id`, `name`, `grant`."""


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Permission to run a tool in this conversation without asking again."""

    id: str
    """Id of the approval that created it."""
    tool: str
    server_label: str | None = None
    """Label of the tool's MCP server. None means a function."""
    is_remote: bool = False
    """Whether the provider runs it."""
    pin: str | None = None
    """Digest of the tool's definition, if it was known."""


class _Call(Protocol):
    @property
    def tool(self) -> str: ...
    @property
    def server_label(self) -> str | None: ...
    @property
    def is_remote(self) -> bool: ...
    @property
    def pin(self) -> str | None: ...


def pin_of(*aspects: object) -> str:
    """Return the digest of a tool's definition, given its aspects."""
    import hashlib

    return hashlib.sha256(jsontext.canonical(aspects)).hexdigest()


def grant_of(id: str, call: _Call) -> Grant:
    """Create a grant for further calls to the same tool."""
    return Grant(id=id, tool=call.tool, server_label=call.server_label, is_remote=call.is_remote, pin=call.pin)


def covering(call: _Call, grants: Iterable[Grant]) -> str | None:
    """Return the id of the grant that covers this call, with the tool's current definition, or None."""
    # A provider's listing that changes a tool revokes its grant; see `after_listing`.
    found = (grant for grant in grants if _key(grant) == _key(call) and (call.is_remote or grant.pin == call.pin))
    return next((grant.id for grant in found), None)


def with_grant(grants: tuple[Grant, ...], new: Grant) -> tuple[Grant, ...]:
    """Add a grant, replacing any for the same tool."""
    return (*(grant for grant in grants if _key(grant) != _key(new)), new)


def without_grant(grants: tuple[Grant, ...], id: str) -> tuple[Grant, ...]:
    """Remove the grant with this id."""
    return tuple(grant for grant in grants if grant.id != id)


def after_listing(grants: tuple[Grant, ...], listed: Mapping[str, Mapping[str, str]]) -> tuple[Grant, ...]:
    """Return the grants that remain valid after a provider has listed tools of remote servers.

    `listed` maps server label → tool → digest. A grant ends if its tool is missing or its definition has changed, or if
    the definition was unknown when it was given.
    """
    return tuple(grant for grant in grants if _stands(grant, listed.get(grant.server_label or "")))


def _stands(grant: Grant, tools: Mapping[str, str] | None) -> bool:
    is_same = tools is not None and grant.pin is not None and tools.get(grant.tool) == grant.pin
    return not grant.is_remote or tools is None or is_same


def _key(call: _Call | Grant) -> tuple[str | None, str, bool]:
    return call.server_label, call.tool, call.is_remote
