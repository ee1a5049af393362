"""Which of a server's tools may be used, and which of them a person is asked about."""

from collections.abc import Iterable, Sequence
from typing import cast

from sidestream.errors import ConfigurationError
from sidestream.tools.approvals import Policy, check_policy
from sidestream.tools.server_side import MCPApproval, ToolFilter

Approval = Policy | dict[str, Policy] | MCPApproval | None
"""One policy for all tools, one for each name, or who is asked always and never. None: the agent's policy."""


def check_approval(approval: Approval, label: str) -> None:
    """Raises ConfigurationError for what is none."""
    try:
        for policy in _policies(approval):
            check_policy(policy)
    except ConfigurationError as error:
        raise ConfigurationError(f"MCPServer({label!r}): {error}") from None


def policy_for(approval: Approval, name: str, is_read_only: bool) -> Policy | None:
    """The policy for one tool; None leaves it to the agent."""
    if isinstance(approval, dict):
        return cast(dict[str, Policy], approval).get(name)
    if not isinstance(approval, MCPApproval):
        return approval
    if _matches(approval.always, name, is_read_only):
        return "always"
    # What nobody has named is asked about, as providers do it.
    return "never" if _matches(approval.never, name, is_read_only) else "always"


def _policies(approval: Approval) -> Iterable[Policy]:
    if isinstance(approval, MCPApproval | None):
        return ()
    return cast(dict[str, Policy], approval).values() if isinstance(approval, dict) else (approval,)


def is_allowed(allowed: ToolFilter | None, name: str, is_read_only: bool) -> bool:
    """Whether the tool may be used at all."""
    return allowed is None or _matches(allowed, name, is_read_only)


def unmatched(allowed: ToolFilter | None, names: Iterable[str]) -> list[str]:
    """Names that were allowed and that the server does not have."""
    return sorted(set(allowed.names if allowed else ()) - set(names))


def _matches(chosen: Sequence[str] | ToolFilter, name: str, is_read_only: bool) -> bool:
    if not isinstance(chosen, ToolFilter):
        return name in chosen
    is_kind = chosen.read_only is None or chosen.read_only == is_read_only
    # An empty filter chooses nothing.
    is_meant = bool(chosen.names) or chosen.read_only is not None
    return is_meant and is_kind and (not chosen.names or name in chosen.names)
