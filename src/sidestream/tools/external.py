"""External tools: functions whose calls somebody else executes, e.g. the client of a server."""

import copy
from typing import Any, NoReturn

from msgspec import Struct, field

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, is_object
from sidestream.tools.arguments import fits_strict, make_strict
from sidestream.tools.outcome import ToolError
from sidestream.tools.tool import Tool


class ExternalTool(Struct, frozen=True):
    """A function that the model can call and that this process does not run: its calls wait for their results.

    `approval.answer(output)` of the pending call gives the result. Approval policies are not asked about it.

    ```python
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    agent = Agent("openai-responses", tools=[ExternalTool("weather", "The weather in a city.", schema)])
    result = await agent.send("Is it raining in Bern?")
    result = await agent.resume(result.run_state, [call.answer("dry, 12 °C") for call in result.approvals])
    ```
    """

    name: str
    description: str = ""
    schema: JsonObject = field(default_factory=dict[str, Any])
    """The JSON schema of its arguments, which is an object's."""
    strict: bool | None = None
    """None: strict if that does not change the schema."""
    is_open_world: bool = False
    """True: its results are untrusted, as web pages are."""
    reads_outside: bool = False
    """True: `WebFetch` may fetch URLs in its results unasked."""

    def __post_init__(self) -> None:
        self.as_tool()

    def as_tool(self) -> Tool:
        """The tool as a run has it. Raises ConfigurationError for a name or a schema that no model could use."""
        if not is_object(self.schema) or self.schema.get("type", "object") != "object":
            raise ConfigurationError(f"tool {self.name!r}: the schema must be that of an object, with type 'object'")
        schema: JsonObject = {"type": "object", "properties": {}, **copy.deepcopy(self.schema)}
        strict = fits_strict(schema) if self.strict is None else self.strict
        if strict:
            make_strict(schema, self.name)
        return Tool(
            name=self.name,
            description=self.description,
            parameters=schema,
            strict=strict,
            is_external=True,
            is_open_world=self.is_open_world,
            reads_outside=self.reads_outside,
            function=_not_here,
            bind=lambda arguments, context: {},
        )


def _not_here() -> NoReturn:
    raise ToolError("This tool does not run here; its result comes from outside.")
