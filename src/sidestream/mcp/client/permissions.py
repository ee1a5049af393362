"""Which of a server's tools may be used, and which need approval."""

from collections.abc import Iterable, Sequence
from typing import cast

from sidestream.errors import ConfigurationError
from sidestream.tools.approvals import Policy, check_policy
from sidestream.tools.server_side import MCPApproval, ToolFilter

Approval = Policy | dict[str, Policy] | MCPApproval | None
"""One policy for all tools, one per tool name, or lists of always and never. None: the agent's policy."""


def check_approval(approval: Approval, label: str) -> None:
    """Raises ConfigurationError for an invalid approval."""
    try:
        for policy in _policies(approval):
            check_policy(policy)
    except ConfigurationError as error:
        raise ConfigurationError(f"MCPServer({label!r}): {error}") from None


def policy_for(approval: Approval, name: str, is_read_only: bool) -> Policy | None:
    """The policy for one tool; None defers to the agent's."""
    if isinstance(approval, dict):
        return cast(dict[str, Policy], approval).get(name)
    if not isinstance(approval, MCPApproval):
        return approval
    if _matches(approval.always, name, is_read_only):
        return "ask"
    # A tool in neither list needs approval, as with providers.
    return "run" if _matches(approval.never, name, is_read_only) else "ask"


def _policies(approval: Approval) -> Iterable[Policy]:
    if isinstance(approval, MCPApproval | None):
        return ()
    return cast(dict[str, Policy], approval).values() if isinstance(approval, dict) else (approval,)


def is_allowed(allowed: ToolFilter | None, name: str, is_read_only: bool) -> bool:
    """Whether the tool may be used."""
    return allowed is None or _matches(allowed, name, is_read_only)


def unmatched(allowed: ToolFilter | None, names: Iterable[str]) -> list[str]:
    """Allowed names that the server does not list."""
    return sorted(set(allowed.names if allowed else ()) - set(names))


def _matches(selection: Sequence[str] | ToolFilter, name: str, is_read_only: bool) -> bool:
    if not isinstance(selection, ToolFilter):
        return name in selection
    matches_kind = selection.read_only is None or selection.read_only == is_read_only
    # An empty filter matches nothing.
    is_empty = not selection.names and selection.read_only is None
    return not is_empty and matches_kind and (not selection.names or name in selection.names)
