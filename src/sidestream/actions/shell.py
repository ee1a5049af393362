"""Shell commands that a model wants to run locally, and their output."""

from msgspec import field

from sidestream.actions.values import ActionValue


class ShellCall(ActionValue, frozen=True):
    """Commands of `Shell(local=True)`, to run in order."""

    commands: tuple[str, ...]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class LocalShellCall(ActionValue, frozen=True):
    """A command of `LocalShell()`."""

    command: tuple[str, ...] = ()
    """Program and arguments, run without a shell."""
    script: str = ""
    """Command for a shell."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None
    restart: bool = False
    """Whether to restart the shell, in which case there is no command."""


class ShellOutput(ActionValue, frozen=True):
    """What a command printed, and how it ended. Return one for each command."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    timed_out: bool = False
