"""Code interpreter for every model: Python in a local container, with the events and results of a hosted one."""

from msgspec.structs import replace

from sidestream.jsontext import JsonObject
from sidestream.messages.container_files import names_of
from sidestream.portable.sandbox.port import FOLDER, CellOutcome, CodeFile
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.portable.tools.machine import Machine, Place, deliver, emit_event
from sidestream.tools.server_side import CodeInterpreter
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.tools.toolset import Toolset


def toolset(config: CodeInterpreter, services: Services) -> Toolset:
    """Create the tool `code_interpreter`."""
    interpreter = _Interpreter(config)
    # Without a sandbox there is a network.
    is_open_world = config.sandbox == "none"
    tool = Tool.from_function(interpreter.run, name=config.key, key=config.key, is_open_world=is_open_world)
    if config.files:
        given = ", ".join(names_of(config.files))
        tool = replace(tool, description=f"{tool.description}\n\nFiles of the user in {FOLDER}: {given}.")
    return Functions(config.key, [tool], interpreter.machine.containers.aclose)


class _Interpreter:
    def __init__(self, config: CodeInterpreter) -> None:
        self.machine = Machine(config)

    async def run(self, context: ToolContext, code: str) -> ToolOutcome:
        """Runs Python code in a sandbox and returns what it printed. Variables live on between calls.

        The working folder is /mnt/data. Files that the user attached are there; files that the code writes there, and
        matplotlib figures, are handed to the user. To refer to one in the answer, link to it, e.g.
        [a.csv](sandbox:/mnt/data/a.csv). There is no network and nothing can be installed.

        Args:
            code: The code. The value of a last expression is printed, as in a notebook.
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
