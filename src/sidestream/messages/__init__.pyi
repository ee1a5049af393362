"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.messages.message import (
    ToolPart as ToolPart,
    messages_from_json as messages_from_json,
    messages_to_json as messages_to_json,
    strip_metadata as strip_metadata,
)
from sidestream.messages.repair import (
    Problem as Problem,
    repair_history as repair_history,
    validate_history as validate_history,
)
