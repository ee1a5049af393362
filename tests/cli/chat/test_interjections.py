"""Lines that are entered while the model answers."""

from requirements import requirement
from sidestream import Agent
from sidestream.cli.chat.line_reader import TerminalReader
from sidestream.cli.chat.session import steer_by_lines
from sidestream.testing import FakeProvider, ResponsesScript


class Typed(TerminalReader):
    """A terminal at which these lines were entered."""

    def __init__(self, *lines: str) -> None:
        super().__init__(None)
        self.lines = list(lines)

    async def interjection(self) -> str | None:
        return self.lines.pop(0) if self.lines else None


@requirement("R115", "R92")
async def test_late_line_becomes_next_message() -> None:
    printed: list[str] = []
    reader = Typed("\n", "Be brief.\n", "And clear.\n")
    async with FakeProvider([ResponsesScript().text("Done.").reply()]) as fake:
        run = Agent("openai-responses", base_url=fake.base_url).stream("go")
        await run.result()
        await steer_by_lines(run, reader, lambda text, *styles: printed.append(text))
    assert printed == ["next message: Be brief."]
    assert await reader.message() == "Be brief."
    assert reader.lines == ["And clear.\n"]  # It is still with the terminal, which gives it to the prompt.


@requirement("R115", "R92")
async def test_commands_and_blank_lines_are_not_sent() -> None:
    printed: list[str] = []
    async with FakeProvider([ResponsesScript().text("Done.").reply()]) as fake:
        async with Agent("openai-responses", base_url=fake.base_url).stream("go") as run:
            lines = Typed("  \n", "/quit\n", "Look\x1b[2J at /etc.\n")
            await steer_by_lines(run, lines, lambda text, *styles: printed.append(text))
            assert [part async for part in run][-1].type == "finish"
        sent = [item["content"] for item in fake.requests[0].json["input"]]
    assert len(printed) == 2
    assert printed[0].startswith("/quit: ")
    assert printed[1] == "steer: Look at /etc. (pending)"
    assert sent == ["go", "Look\x1b[2J at /etc."]
