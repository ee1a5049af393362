"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.turn.state import (
    TURN_STATUSES as TURN_STATUSES,
    TurnStatus as TurnStatus,
)
