"""Code interpreter for every model: Python in a local container, with the events and results of a hosted one."""

from msgspec.structs import replace

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.limits import MIB, SandboxLimits
from sidestream.messages.container_files import names_of
from sidestream.portable.sandbox.port import FOLDER, CellOutcome, CodeFile
from sidestream.portable.sandbox.runtime import installed_packages, missing_packages
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.portable.tools.machine import Machine, Place, deliver, emit_event
from sidestream.tools.server_side import CodeInterpreter
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.tools.toolset import Toolset


def toolset(config: CodeInterpreter, services: Services) -> Toolset:
    """Create the tool `code_interpreter`.

    Raises ConfigurationError if one of its packages is not installed.
    """
    interpreter = _Interpreter(config)
    tells = config.sandbox in _TOLD
    if tells and (absent := missing_packages(config.packages or ())):
        raise ConfigurationError(
            f"CodeInterpreter(packages=…): {', '.join(absent)} not installed; pip install {' '.join(absent)}"
        )
    # Without a sandbox there is a network.
    is_open_world = config.sandbox == "none"
    # The container's own limit comes first: it says what happened.
    limits = interpreter.machine.limits
    tool = Tool.from_function(
        interpreter.run,
        name=config.key,
        key=config.key,
        is_open_world=is_open_world,
        on_interruption=interpreter.machine.on_interruption,
        timeout_s=limits.cell_s + limits.start_s + _GRACE_S,
    )
    if tells:
        tool = replace(tool, description=f"{tool.description}\n\n{_told(config, limits)}")
    if config.files:
        given = ", ".join(names_of(config.files))
        tool = replace(tool, description=f"{tool.description}\n\nFiles of the user in {FOLDER}: {given}.")
    return Functions(config.key, [tool], interpreter.machine.containers.aclose)


_GRACE_S = 30.0
"""Seconds of a call besides the code's own and the container's start, e.g. to put files into it."""
_TOLD = ("auto", "bubblewrap", "runsc", "none")
"""Sandboxes whose packages and limits are known."""


def _told(config: CodeInterpreter, limits: SandboxLimits) -> str:
    """Describe the container for the model."""
    names = installed_packages(None if config.packages is None else tuple(config.packages))
    return (
        f"Installed besides the standard library: {', '.join(names) or 'nothing'}. A call may take "
        f"{limits.cell_s:g} s, {limits.memory_bytes // MIB} MiB of memory and {limits.disk_bytes // MIB} MiB of files. "
        f"You see {limits.log_bytes // 1024} kB of its output."
    )


class _Interpreter:
    def __init__(self, config: CodeInterpreter) -> None:
        self.machine = Machine(config)

    async def run(self, context: ToolContext, code: str) -> ToolOutcome:
        """Runs Python code in a sandbox and returns what it printed. Variables live on between calls.

        The working folder is /mnt/data. Files that the user attached are there; files that the code writes there, and
        matplotlib figures, are handed to the user. To refer to one in the answer, link to it, e.g.
        [a.csv](sandbox:/mnt/data/a.csv). There is no network and nothing can be installed.

        Args:
            code: The code, as in a notebook: the value of a last expression is printed, and figures are shown.
        """  # noqa: D401 (sent to models)
        async with self.machine.place(context) as place:
            outcome = await place.kept.container.run(code, lambda text: _logs(context, text))
            return report(self.machine, context, place, outcome)


def _logs(context: ToolContext, text: str) -> None:
    # Hosted tools have no such event: providers report the output when the code has ended.
    emit_event(context, "code_interpreter_call", "logs", logs=text)


def report(machine: Machine, context: ToolContext, place: Place, outcome: CellOutcome) -> ToolOutcome:
    """Emit a cell's deliverables, and return its result in the format of a hosted call."""
    images = _named(place, outcome.images)
    deliver(context, place, (*images, *outcome.files))
    reason = machine.explained(outcome.ending)
    status = "completed" if reason is None else "failed"
    outputs: list[JsonObject] = [{"type": "logs", "logs": outcome.logs}] if outcome.logs else []
    # The bytes are in the file parts; in a result they would fill the model's context.
    outputs += [{"type": "image", "url": f"sandbox:{image.path}"} for image in images]
    result: JsonObject = {"status": status, "container_id": place.container_id, "outputs": outputs}
    if outcome.files:
        result["files"] = [file.path for file in outcome.files]
    notes = [*place.notes, *outcome.notes, *([f"{reason}. Its variables and files are lost"] if reason else [])]
    if notes:
        result["notes"] = notes
    return ToolOutcome(result, is_error=reason is not None)


def _named(place: Place, images: tuple[bytes, ...]) -> list[CodeFile]:
    names = [f"output_{place.kept.calls}_{number}.png" for number in range(len(images))]
    return [CodeFile(name, data, f"{FOLDER}/{name}") for name, data in zip(names, images, strict=True)]
