"""The programs of README and first steps print the same on every provider, and with a local model and local tools.

Providers are scripted. For the local model, a stand-in for llama.cpp names the fake server: everything else is real,
including the server's process, the web search and its engine.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from docs.test_programs import Block, blocks, run_program
from requirements import requirement
from sidestream.testing import ChatScript, FakeProvider, GeminiScript, MessagesScript, ResponsesScript
from support.places import ROOT
from support.sandboxes import needs

README = next(iter(blocks("README.md", (ROOT / "README.md").read_text("utf-8"))))
QUERY = "python"
HIT = {"type": "web_search_result", "url": "https://python.example/", "title": "Python", "encrypted_content": "x"}
ANSWER = ["Ver", "sion 4."]
STAGES = "[web_search: started]\n[web_search: running]\n[web_search: completed]\n"
PRINTED = f"{STAGES}{''.join(ANSWER)}"

SCRIPTS: dict[str, list[Any]] = {
    "openai-responses": [ResponsesScript().web_search(QUERY).text(ANSWER)],
    "xai": [ResponsesScript(dialect="xai").reasoning("Hm.").web_search(QUERY).reasoning().text(ANSWER)],
    "anthropic": [MessagesScript().web_search(QUERY, results=[HIT]).text(ANSWER)],
    "google": [
        GeminiScript()
        .tool_call("GOOGLE_SEARCH_WEB", {"queries": [QUERY]}, call_id="s1")
        .tool_response("GOOGLE_SEARCH_WEB", {"found": 1}, call_id="s1")
        .text(ANSWER)
    ],
    "groq": [ChatScript().executed_tool("search", {"query": QUERY}, output="Python 4", results=[HIT]).text(ANSWER)],
    "local": [ChatScript().tool_call("web_search", {"query": QUERY}), ChatScript().text(ANSWER)],
}

FIRST_TOOL = next(iter(blocks("first-tool.md", (ROOT / "docs/start/first-tool.md").read_text("utf-8"))))
CODE = ["import math\n", "print(math.factorial(20))"]
NUMBER = "2432902008176640000\n"
FACT = "20! is 2,432,902,008,176,640,000."
CODE_SCRIPTS: dict[str, list[Any]] = {
    "openai-responses": [ResponsesScript().code_interpreter(CODE, logs=NUMBER).text(FACT)],
    "xai": [ResponsesScript(dialect="xai").code_interpreter(CODE, logs=NUMBER).text(FACT)],
    "anthropic": [MessagesScript().code_execution("".join(CODE), stdout=NUMBER).text(FACT)],
    "google": [GeminiScript().code("".join(CODE), NUMBER).text(FACT)],
    "groq": [ChatScript().executed_tool("function", "".join(CODE), name="python", output=NUMBER).text(FACT)],
    "local": [ChatScript().tool_call("code_interpreter", {"code": "".join(CODE)}), ChatScript().text(FACT)],
}

ENGINE = """
class _Values:
    def __getattr__(self, name):
        value = _Values()
        setattr(self, name, value)
        return value

CommonParams = _Values

class Server:
    def __init__(self, params):
        self.listening_address = {address!r}
"""


@contextmanager
def environment(scripts: list[Any], folder: Path) -> Iterator[dict[str, str]]:
    """Return the variables with which every provider is the fake one, and the web a folder."""
    with FakeProvider([script.reply() for script in scripts]).in_thread() as fake:
        (folder / "xllamacpp.py").write_text(ENGINE.format(address=fake.base_url), "utf-8")
        pages = folder / "pages"
        pages.mkdir()
        (pages / "python.md").write_text("url: https://python.example/\n\n# Python\n\nPython 4 is new.\n", "utf-8")
        urls = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "GROQ_BASE_URL", "XAI_BASE_URL")
        keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GROQ_API_KEY", "XAI_API_KEY")
        yield (
            dict.fromkeys(urls, fake.base_url) | dict.fromkeys(keys, "fake") | {"SIDESTREAM_SEARCH": f"corpus:{pages}"}
        )


def on(provider: str, program: Block) -> Block:
    """Return the program with another provider."""
    source, count = re.subn(r'Agent\("openai-responses"', f'Agent("{provider}"', program.source)
    assert count == 1
    return program._replace(source=source)


@requirement("R3", "R121", "R190")
@pytest.mark.parametrize("provider", SCRIPTS)
def test_readme_program_prints_same_stages(provider: str, tmp_path: Path):
    with environment(SCRIPTS[provider], tmp_path) as variables:
        done = run_program(on(provider, README), tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED


@requirement("R121")
@pytest.mark.parametrize("provider", CODE_SCRIPTS)
def test_first_tool_program_prints_same(provider: str, tmp_path: Path):
    if provider == "local":
        needs("bubblewrap")
    with environment(CODE_SCRIPTS[provider], tmp_path) as variables:
        done = run_program(on(provider, FIRST_TOOL), tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip() == (FIRST_TOOL.output or "").rstrip()


def test_readme_program_prints_stages_of_grounding_with_it(tmp_path: Path):
    grounded = (
        GeminiScript().text(ANSWER).grounding({"web": {"uri": HIT["url"], "title": "P"}}, webSearchQueries=[QUERY])
    )
    with environment([grounded], tmp_path) as variables:
        done = run_program(on("google", README), tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.replace("".join(ANSWER), "").splitlines()) == sorted(STAGES.splitlines())


def test_readme_program_without_search_engine_says_what_to_add(tmp_path: Path):
    with environment(SCRIPTS["local"], tmp_path) as variables:
        done = run_program(on("local", README), tmp_path, **variables | {"SIDESTREAM_SEARCH": ""})
    assert done.returncode != 0
    assert "engine=" in done.stderr or "SIDESTREAM_SEARCH" in done.stderr
