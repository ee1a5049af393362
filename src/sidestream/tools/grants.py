"""Grants: approvals that a person has given for further calls of a tool in the same conversation.

A grant has the effect of the policy `run` where the policy says `ask`. It covers one tool of one server, as it was
defined when the person decided.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from sidestream import jsontext

CALL_GRANTED: Final = "sidestream.call-granted"
"""The kind of the custom part that reports a call that runs because of a grant: `call_id`, `name`, `grant`."""


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that may run without a further question in this conversation."""

    id: str
    """The id of the approval with which it was given."""
    tool: str
    server_label: str | None = None
    """The MCP server that has the tool; None for functions."""
    is_remote: bool = False
    """True where the provider runs it."""
    pin: str | None = None
    """A digest of the tool's definition, if it was known."""


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
    """Return the digest of a tool's definition, which has these aspects."""
    import hashlib

    return hashlib.sha256(jsontext.canonical(aspects)).hexdigest()


def grant_of(id: str, call: _Call) -> Grant:
    """The grant for further calls of the same tool."""
    return Grant(id=id, tool=call.tool, server_label=call.server_label, is_remote=call.is_remote, pin=call.pin)


def covering(call: _Call, grants: Iterable[Grant]) -> str | None:
    """The id of the grant that was given for this tool as it is defined now."""
    # A provider's listing that changes a tool has ended its grant: see `after_listing`.
    found = (grant for grant in grants if _key(grant) == _key(call) and (call.is_remote or grant.pin == call.pin))
    return next((grant.id for grant in found), None)


def with_grant(grants: tuple[Grant, ...], new: Grant) -> tuple[Grant, ...]:
    """The grants with another one, which replaces that of the same tool."""
    return (*(grant for grant in grants if _key(grant) != _key(new)), new)


def without_grant(grants: tuple[Grant, ...], id: str) -> tuple[Grant, ...]:
    """The grants without this one."""
    return tuple(grant for grant in grants if grant.id != id)


def after_listing(grants: tuple[Grant, ...], listed: Mapping[str, Mapping[str, str]]) -> tuple[Grant, ...]:
    """The grants that stand after a provider has listed tools of remote servers: label → tool → digest.

    One whose tool is gone or defined otherwise has ended, and so has one that was given for an unknown definition.
    """
    return tuple(grant for grant in grants if _stands(grant, listed.get(grant.server_label or "")))


def _stands(grant: Grant, tools: Mapping[str, str] | None) -> bool:
    is_same = tools is not None and grant.pin is not None and tools.get(grant.tool) == grant.pin
    return not grant.is_remote or tools is None or is_same


def _key(call: _Call | Grant) -> tuple[str | None, str, bool]:
    return call.server_label, call.tool, call.is_remote
