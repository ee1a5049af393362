"""What a provider wants a person to confirm."""

from sidestream.actions.values import ActionValue


class SafetyCheck(ActionValue, frozen=True):
    """Why the provider wants a person to look before the call is made."""

    id: str
    code: str | None = None
    message: str | None = None
