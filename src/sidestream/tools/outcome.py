"""Outcome of a tool call, and faults, which are the bugs of tools."""

import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from msgspec import Struct

from sidestream.errors import encodable
from sidestream.jsontext import Json, as_object
from sidestream.text.redaction import redact
from sidestream.tools.approvals import Suspended

MAX_MESSAGE = 1000
"""Maximum characters of an exception's message in parts and warnings."""


class ToolError(Exception):
    """Raise this in a tool to send its message to the model. Of other exceptions, the model sees only the type."""


class ToolWarning(UserWarning):
    """A tool raised an unexpected exception. Shown once per tool and line, unless a warning filter says otherwise."""


_Registry = dict[str | tuple[str, type[Warning], int], int]


class Fault(Struct, frozen=True):
    """An unexpected exception of a tool, with the line to which its warning points."""

    tool: str
    exception: BaseException
    module: str
    file: str
    line: int

    @classmethod
    def of(cls, tool: str, exception: BaseException, function: Callable[..., Any]) -> Self:
        """Locate an exception in the tool's file, or at the function if only this package raised it."""
        frames = [(frame, line) for frame, line in traceback.walk_tb(exception.__traceback__) if not _is_ours(frame)]
        if frames:
            first = frames[0][0]
            line = [line for frame, line in frames if frame.f_code.co_filename == first.f_code.co_filename][-1]
            return cls(tool, exception, first.f_globals.get("__name__", ""), first.f_code.co_filename, line)
        code = getattr(function, "__code__", None)
        file, line = (code.co_filename, code.co_firstlineno) if code is not None else (__file__, 1)
        return cls(tool, exception, getattr(function, "__module__", None) or __name__, file, line)

    def warn(self) -> ToolWarning | None:
        """Issue a `ToolWarning`. Return it if a warning filter makes it an error."""
        key = self.tool, self.file, self.line
        message = message_of(self.exception).partition("\n")[0]
        text = f"tool {self.tool!r} raised {type(self.exception).__name__}{message and ': '}{message}"
        text += '; the model sees only its type. tool_errors="raise" ends the run instead'
        warning = ToolWarning(text)
        registry: _Registry = _registries.get(key, {})
        if len(registry) > 1:  # Shown before, perhaps with another message. Python compares whole messages.
            registry = {"version": registry["version"], (text, ToolWarning, self.line): True}
        _registries[key] = registry
        try:
            warnings.warn_explicit(warning, ToolWarning, self.file, self.line, self.module, registry)
        except ToolWarning:
            warning.__cause__ = self.exception
            return warning
        return None


_registries: dict[tuple[str, str, int], _Registry] = {}
"""Registry of the `warnings` module for each tool and line."""


def _is_ours(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "sidestream"


def message_of(exception: BaseException) -> str:
    """Return an exception's message without secrets, for logs and parts. Empty if it cannot be formatted."""
    with suppress(Exception):
        return encodable(redact(str(exception)))[:MAX_MESSAGE]
    return ""


class ToolOutcome(Struct, frozen=True):
    """Result of a call: a JSON value, or `{"error": type, "message": ...}` with `is_error`.

    `exception` is what the tool raised, for logs and telemetry. It is never sent.
    """

    result: Json
    is_error: bool = False
    exception: BaseException | None = None
    suspended: Suspended | None = None
    """State of a paused call, which has no result yet."""
    source: str | None = None
    """Untrusted source of the result, if only the call itself shows it."""
    fault: Fault | None = None
    """Set if the exception is a bug in the tool, not an answer to the model."""

    @classmethod
    def failure(
        cls,
        error: str,
        message: str | None = None,
        exception: BaseException | None = None,
        *,
        fault: Fault | None = None,
    ) -> Self:
        """Create an error result. The message is for the model."""
        result = {"error": error} if message is None else {"error": error, "message": message}
        return cls(result, True, exception, fault=fault)

    @property
    def error(self) -> tuple[str, str] | None:
        """Type and message of what the tool raised, without secrets."""
        if self.exception is None:
            return None
        kind = as_object(self.result).get("error", type(self.exception).__name__)
        return str(kind), message_of(self.exception)
