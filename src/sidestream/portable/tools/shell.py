"""Shell for every model: commands in a local container or a user's folder.

It has the events and results of a hosted shell.
"""

import os
from collections.abc import Sequence

from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.jsontext import JsonObject
from sidestream.portable.sandbox.port import CommandOutcome, Ending, SandboxError
from sidestream.portable.sandbox.workspace import container_user
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.portable.tools.machine import Machine, Place, deliver, emit_event
from sidestream.tools.approvals import REQUIRED_APPROVAL
from sidestream.tools.results import cut
from sidestream.tools.server_side import Shell
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.tools.toolset import Toolset

_OUTPUT = "shell_call_output_content"
_STOPPED: frozenset[Ending] = frozenset({"timeout", "output", "memory", "died"})


def toolset(config: Shell, services: Services) -> Toolset:
    """Create the tool `shell`.

    Raises ConfigurationError if the workspace is not a folder, or if commands would run as root.
    """
    shell = _Shell(config)
    # Users decide about changes to their folders; a container of ours needs no approval.
    required = config.require_approval or ("always" if config.workspace is not None else None)
    approval = None if required is None else REQUIRED_APPROVAL[required]
    # Without a sandbox there is a network.
    is_open_world = config.sandbox == "none"
    tool = Tool.from_function(
        shell.run,
        name=config.key,
        key=config.key,
        approval=approval,
        is_open_world=is_open_world,
        on_interruption=shell.machine.on_interruption,
    )
    return Functions(config.key, [tool], shell.machine.containers.aclose)


def folder_of(workspace: str) -> str:
    """Return the folder's real path.

    Raises ConfigurationError if it is not a folder.
    """
    folder = os.path.realpath(os.path.expanduser(workspace))
    if not os.path.isdir(folder):
        raise ConfigurationError(f"the workspace {workspace!r} is not a folder")
    return folder


class _Shell:
    def __init__(self, config: Shell) -> None:
        if config.skills:
            raise UnsupportedError("Shell(skills=…) works at a provider only: put the skill's files into a workspace")
        workspace = None if config.workspace is None else folder_of(config.workspace)
        if workspace is not None:
            try:
                container_user(workspace, allow_root=config.allow_root, drops_user=config.sandbox != "none")
            except SandboxError as error:
                raise ConfigurationError(str(error)) from None
        self.machine = Machine(config, workspace=workspace)
        self._delivers = workspace is None

    async def run(
        self,
        context: ToolContext,
        commands: list[str],
        timeout_ms: int | None = None,
        max_output_length: int | None = None,
    ) -> ToolOutcome:
        """Runs shell commands (sh) one after the other in a sandbox, each in the folder /mnt/data.

        Files live on between calls. There is no network.

        Args:
            commands: The commands.
            timeout_ms: The longest time for each of them, in milliseconds.
            max_output_length: The longest output that is returned, in characters.
        """  # noqa: D401 (sent to models)
        outputs: list[JsonObject] = []
        notes: list[str] = []
        reason: str | None = None
        async with self.machine.place(context) as place:
            for index, command in enumerate(commands):
                outcome = await self._command(context, place, index, command, timeout_ms)
                if self._delivers:
                    deliver(context, place, outcome.files)
                    notes += outcome.notes
                outputs.append(_entry(outcome, max_output_length))
                emit_event(context, _OUTPUT, "done", command_index=index, output=[outputs[-1]])
                if not place.kept.is_usable:
                    reason = self.machine.explained(outcome.ending)
                    notes.append(f"{reason}; the commands after it were not run")
                    break
            result: JsonObject = {"output": outputs, "status": "completed" if reason is None else "incomplete"}
            if self._delivers:
                result["container_id"] = place.container_id
            if found := [*place.notes, *notes]:
                result["notes"] = found
        timed_out = any(entry["outcome"] == {"type": "timeout"} for entry in outputs)
        return ToolOutcome(result, is_error=timed_out or reason is not None)

    async def _command(
        self, context: ToolContext, place: Place, index: int, command: str, timeout_ms: int | None
    ) -> CommandOutcome:
        def report(stdout: str, stderr: str) -> None:
            delta = {name: text for name, text in (("stdout", stdout), ("stderr", stderr)) if text}
            emit_event(context, _OUTPUT, "delta", command_index=index, delta=delta)

        seconds = timeout_ms / 1000 if timeout_ms else None
        return await place.kept.container.command(command, report, timeout_s=seconds)


def _entry(outcome: CommandOutcome, max_length: int | None) -> JsonObject:
    """Return one command's output in the format of the Responses API."""
    ended: JsonObject = {"type": "exit", "exit_code": outcome.exit_code if outcome.exit_code is not None else 137}
    texts = _shortened((outcome.stdout, outcome.stderr), max_length)
    return {
        "stdout": texts[0],
        "stderr": texts[1],
        "outcome": {"type": "timeout"} if outcome.ending == "timeout" else ended,
    }


def _shortened(texts: Sequence[str], max_length: int | None) -> Sequence[str]:
    return texts if not max_length or max_length < 0 else [cut(text, max_length) for text in texts]
