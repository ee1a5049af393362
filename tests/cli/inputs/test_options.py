"""What is given on the command line: options, tools, functions, schemas, templates, fragments, the default model."""

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import click
import pytest

from cli.command import KEY, Run
from requirements import requirement
from sidestream.cli.inputs import options
from sidestream.cli.inputs.default_model import suggestion
from sidestream.cli.inputs.field_values import described_options, read_fields, read_tool
from sidestream.cli.inputs.named_files import Template, to_toml
from sidestream.cli.inputs.schema_syntax import read_schema
from sidestream.errors import ConfigurationError
from sidestream.providers.openai.responses import OpenAIResponsesOptions
from sidestream.testing import FakeProvider, ResponsesScript, pixel_png, responses_text, sse
from sidestream.tools.approvals import Verdict
from sidestream.tools.configs import Config
from sidestream.tools.server_side import (
    CodeInterpreter,
    Comparison,
    FileSearch,
    Location,
    Network,
    RemoteMCP,
    WebSearch,
)

FUNCTIONS = '''
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def _private() -> str:
    return "no"
'''
AGENT = """
from sidestream import Agent

def double(n: int) -> int:
    return 2 * n

agent = Agent("openai-responses:gpt-agent", system="From the module.", tools=[double])
"""


@requirement("R170")
@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("web_search", WebSearch()),
        ("web-search:context_size=high", WebSearch(context_size="high")),
        ("google_search:max_uses=2", WebSearch(max_uses=2)),
        (
            "web_search:allowed_domains=a.example,b.example,location.city=Rome",
            WebSearch(allowed_domains=["a.example", "b.example"], location=Location(city="Rome")),
        ),
        ('web_search:{"location": {"city": "Rome"}}', WebSearch(location=Location(city="Rome"))),
        ("file_search:stores=vs_1,vs_2,max_results=3", FileSearch(stores=["vs_1", "vs_2"], max_results=3)),
        (
            'file_search:{"stores": ["vs_1"], "filters": {"type": "comparison", "attribute": "a", "value": 1}}',
            FileSearch(stores=["vs_1"], filters=Comparison(attribute="a", value=1)),
        ),
        (
            "mcp:label=docs,url=https://a.example/x,approval=ask",
            RemoteMCP(label="docs", url="https://a.example/x", require_approval="always"),
        ),
        (
            "code_interpreter:network.allowed_domains=a.example,memory_limit=4g",
            CodeInterpreter(network=Network(allowed_domains=["a.example"]), memory_limit="4g"),
        ),
    ],
)
def test_tool_is_parsed_with_its_parameters(text: str, tool: Any):
    assert read_tool(text) == tool


@requirement("R170")
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("web_serch", "web_search"),
        ("web_serch:a=b", "web_search"),
        ("web_search:context=high", "context_size"),
        ("web_search:context_size=huge", "medium"),
        ("web_search:max_uses=none", "at least 1"),
        ("web_search:nonsense", "NAME=VALUE"),
        ("web_search:{broken", "JSON"),
        ("mcp", "label=docs"),
        ("mcp:label=docs", "url"),
        ("mcp:url=https://a.example", "label"),
        ("nowhere_at_all:function", "nowhere_at_all"),
        ("json:dumbs", "json:dumps"),
        ("json:__name__", "not a function"),
    ],
)
def test_invalid_tool_suggests_nearest_valid_one(text: str, hint: str):
    with pytest.raises(ConfigurationError, match=hint):
        read_tool(text)


@requirement("R170")
def test_options_are_typed_by_their_fields():
    given = [
        ("reasoning.effort", "low"),
        ("include", "a,b"),
        ("include", "c"),
        ("store", "false"),
        ("metadata.team", "x"),
        ("extra_body", '{"n": 1}'),
        ("max-output-tokens", "5"),
    ]
    fields = read_fields(OpenAIResponsesOptions, given, "-o")
    made = OpenAIResponsesOptions(**fields)
    assert made.reasoning is not None
    assert (made.reasoning.effort, made.include, made.store) == ("low", ("a", "b", "c"), False)
    assert (made.metadata, made.extra_body, made.max_output_tokens) == ({"team": "x"}, {"n": 1}, 5)


class Keyed(Config, frozen=True, kw_only=True):
    """A config with a secret."""

    secrets = frozenset({"key"})

    key: int = 0


def test_secret_value_is_not_shown():
    with pytest.raises(ConfigurationError) as raised:
        read_fields(Keyed, [("key", KEY)], "-o")
    assert KEY not in str(raised.value)


@requirement("R170")
def test_settings_options_and_limits_reach_request(sidestream: Run):
    given = [("temperature", "0.5"), ("seed", "7"), ("reasoning.effort", "low"), ("max_steps", "3")]
    args = [word for name, value in given if name != "seed" for word in ("-o", name, value)]
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake:
        done = sidestream(*args, "-s", "Be brief.", "Hi", base_url=fake.base_url)
    assert done.returncode == 0, done.stderr
    sent = fake.requests[0].json
    assert (sent["temperature"], sent["reasoning"], sent["instructions"]) == (0.5, {"effort": "low"}, "Be brief.")


@requirement("R170")
@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("-o", "temperatur", "0"), "did you mean temperature"),
        (("-o", "temperature", "hot"), "at least 0"),
        (("-o", "max_steps", "many"), "int"),
        (("-o", "reasoning.efort", "low"), "effort"),
        (("-m", "gpt-5"), "openai-responses:gpt-5"),
        (("-m", "openai/gpt-5"), "openai-responses:gpt-5"),
        (("-m", "antropic:claude-x"), "anthropic:claude-x"),
        (("--functions", "nowhere.py"), "nowhere.py"),
        (("--functions", "notes.txt"), ".py"),
        (("--functions", "empty.py"), "no function"),
        (("--functions", "broken.py"), "SyntaxError"),
        (("--agent", "json:dumps"), "not an Agent"),
        (("--agent", "nowhere_at_all:agent"), "nowhere_at_all"),
        (("-f", "nowhere.txt"), "nowhere.txt"),
        (("-f", "binary.bin"), "UTF-8"),
        (("-t", "nothing"), "no template"),
        (("-p", "a", "b"), "-t"),
        (("--cid", "nothing"), "store is empty"),
        (("-c", "--cid", "x"), "use one"),
        (("-n", "-c"), "--no-log"),
        (("--schema", "name, age integer"), "int"),
        (("--schema", '{"type": "objekt"}'), "object"),
        (("--schema", "json:dumps"), "not a class"),
        (("-a", "-", "-f", "-"), "only once"),
    ],
)
def test_bad_input_prints_one_line_with_hint(sidestream: Run, tmp_path: Path, args: tuple[str, ...], hint: str):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty.py").write_text("_x = 1")
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "binary.bin").write_bytes(b"\xff\xfe\x00")
    done = sidestream(*args, "Hi", base_url="http://127.0.0.1:9/v1")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert hint in line


def test_debug_shows_traceback(environment: dict[str, str], tmp_path: Path):
    import subprocess

    from cli.command import COMMAND

    done = subprocess.run(
        [*COMMAND, "Hi", "-m", "nobody", "--debug"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@requirement("R170")
def test_functions_of_file_or_module_are_called_without_asking(sidestream: Run, tmp_path: Path):
    (tmp_path / "mytools.py").write_text(FUNCTIONS)
    calls = ResponsesScript().function_call("add", {"a": 2, "b": 3}, "call_1")
    script = [calls.reply(), sse(responses_text("5")), calls.reply(), sse(responses_text("5"))]
    with FakeProvider(script).in_thread() as fake:
        of_file = sidestream("--functions", "mytools.py", "2 + 3?", base_url=fake.base_url)
        of_module = sidestream("-T", "mytools:add", "2 + 3?", base_url=fake.base_url)
        asked = sidestream("-T", "mytools:add", "--approve", "deny", "2 + 3?", base_url="http://127.0.0.1:9/v1")
    assert (of_file.returncode, of_file.stdout, of_module.stdout) == (0, "5\n", "5\n")
    assert asked.returncode == 1  # nobody is there
    assert 'add  {"a":2,"b":3}' in of_file.stderr
    first, second, *_ = fake.requests
    assert [tool["name"] for tool in first.json["tools"]] == ["add"]
    assert second.json["input"][-1]["output"] == "5"


@requirement("R170")
def test_agent_of_module_brings_its_model_and_tools(sidestream: Run, tmp_path: Path):
    (tmp_path / "bot.py").write_text(AGENT)
    with FakeProvider([sse(responses_text("One")), sse(responses_text("Two"))]).in_thread() as fake:
        plain = sidestream("--agent", "bot:agent", "Hi", base_url=fake.base_url)
        changed = sidestream("--agent", "bot:agent", "-s", "Mine.", "-o", "top_p", "1", "Hi", base_url=fake.base_url)
        refused = sidestream("--agent", "bot:agent", "-T", "web_search", "Hi", base_url=fake.base_url)
    assert (plain.stdout, changed.stdout, refused.returncode) == ("One\n", "Two\n", 2)
    first, second = (request.json for request in fake.requests)
    assert (first["model"], first["instructions"]) == ("gpt-agent", "From the module.")
    assert [tool["name"] for tool in first["tools"]] == ["double"]
    assert (second["instructions"], second["top_p"]) == ("Mine.", 1)


def test_short_schema_has_typed_fields():
    schema = read_schema("name, age int: in years, is_tall bool")
    assert schema["required"] == ["name", "age", "is_tall"]
    assert schema["properties"]["age"] == {"type": "integer", "description": "in years"}
    assert read_schema("\nname: a, b\nage int\n")["properties"]["name"]["description"] == "a, b"
    assert read_schema("collections:Counter") is __import__("collections").Counter
    with pytest.raises(click.UsageError):
        read_schema(" , ")


@requirement("R170")
def test_fragments_precede_prompt(sidestream: Run, tmp_path: Path):
    (tmp_path / "a.txt").write_text("first\n")
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake:
        done = sidestream("-f", "a.txt", "-f", "-", "Hi", input="second\n", base_url=fake.base_url)
    assert done.returncode == 0, done.stderr
    assert fake.requests[0].json["input"] == [{"role": "user", "content": "first\n\nsecond\n\nHi"}]


@requirement("R170")
@pytest.mark.parametrize("command", ["prompt", "chat"])
def test_system_fragments_precede_system_prompt(command: str, sidestream: Run, tmp_path: Path):
    (tmp_path / "style.md").write_text("Be brief.\n")
    (tmp_path / "facts.md").write_text("We sell tea.\n")
    given = ("--sf", "style.md", "--sf", "facts.md")
    with FakeProvider([sse(responses_text("Hello"))] * 2).in_thread() as fake:
        alone = sidestream(command, *given, "Hi", base_url=fake.base_url)
        both = sidestream(command, *given, "-s", "Answer in $French.", "Hi", base_url=fake.base_url)
    assert (alone.returncode, both.returncode) == (0, 0), alone.stderr + both.stderr
    first, second = (request.json["instructions"] for request in fake.requests)
    assert first == "Be brief.\n\nWe sell tea."
    assert second == "Be brief.\n\nWe sell tea.\n\nAnswer in $French."


@requirement("R170")
def test_template_keeps_system_fragments(sidestream: Run, tmp_path: Path):
    (tmp_path / "style.md").write_text("Be brief.\n")
    assert sidestream("--save", "shop", "--sf", "style.md", "-s", "Sell $ware.", "$input").returncode == 0
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake:
        done = sidestream("-t", "shop", "-p", "ware", "tea", "Hi", base_url=fake.base_url)
    assert done.returncode == 0, done.stderr
    assert fake.requests[0].json["instructions"] == "Be brief.\n\nSell tea."


@requirement("R170")
def test_template_keeps_prompt_with_its_options(sidestream: Run):
    save = ("--save", "brief", "-s", "In $words words.", "-T", "web_search", "-o", "top_p", "1", "About $input")
    assert sidestream(*save).returncode == 0
    with FakeProvider([sse(responses_text("One")), sse(responses_text("Two"))]).in_thread() as fake:
        done = sidestream("-t", "brief", "-p", "words", "5", "rain", base_url=fake.base_url)
        piped = sidestream("-t", "brief", "-p", "words", "9", "-s", "Mine.", input="snow", base_url=fake.base_url)
        missing = sidestream("-t", "brief", "rain", base_url=fake.base_url)
        unknown = sidestream("-t", "brief", "-p", "words", "5", "-p", "tone", "x", "rain", base_url=fake.base_url)
    assert (done.stdout, piped.stdout) == ("One\n", "Two\n")
    first, second = (request.json for request in fake.requests)
    assert first["instructions"] == "In 5 words."
    assert first["input"] == [{"role": "user", "content": "About rain"}]
    assert (first["top_p"], first["tools"][0]["type"]) == (1, "web_search")
    assert (second["instructions"], second["input"][0]["content"]) == ("Mine.", "About snow")
    assert (missing.returncode, "-p words" in missing.stderr) == (2, True)
    assert (unknown.returncode, "$tone" in unknown.stderr) == (2, True)
    assert "About $input" in sidestream("templates").stdout
    assert 'prompt = "About $input"' in sidestream("templates", "show", "brief").stdout
    near = sidestream("-t", "brif", "Hi")
    assert (near.returncode, "brief" in near.stderr) == (2, True)
    assert sidestream("templates", "remove", "brief").returncode == 0
    assert sidestream("templates", "list").stdout == ""


@pytest.mark.parametrize("text", ["a\nb", "it's 'quoted'\n'''", "tab\tand \x00\x7f", 'say "hi" \\ there', "é✓\n'"])
def test_template_round_trips_through_toml(text: str):
    import tomllib

    import msgspec

    template = Template(prompt=text, options={"a.b": text, "n": 1, "is_on": True}, tools=["web_search", text])
    assert msgspec.convert(tomllib.loads(to_toml(template)), Template) == template


def fresh(tmp_path: Path) -> None:
    """As on a machine on which nothing was ever set."""
    (tmp_path / ".config/sidestream/settings.json").unlink()


@requirement("R170")
def test_default_model_and_prompt_logging_are_noted_once(sidestream: Run, tmp_path: Path):
    fresh(tmp_path)
    with FakeProvider([sse(responses_text("Hi"))] * 3).in_thread() as fake:
        first = sidestream("a", base_url=fake.base_url)
        second = sidestream("b", base_url=fake.base_url)
        skipped = sidestream("-n", "c", base_url=fake.base_url)
    assert "model: openai-responses (OPENAI_API_KEY is set" in first.stderr
    assert "note: prompts are logged in" in first.stderr
    assert "logged" not in second.stderr + skipped.stderr
    rows = sidestream("logs").stdout.splitlines()
    assert [row.split()[-1] for row in rows] == ["b", "a"]
    assert sidestream("logs", "off").returncode == 0
    with FakeProvider([sse(responses_text("Hi"))] * 2).in_thread() as fake:
        sidestream("d", base_url=fake.base_url)
        assert len(sidestream("logs").stdout.splitlines()) == 2
        sidestream("--cid", rows[0].split()[0], "e", base_url=fake.base_url)
    sent = [item["content"] for item in fake.requests[1].json["input"]]
    assert (sent[0], sent[-1]) == ("b", "e")


@requirement("R170")
def test_default_model_is_saved(sidestream: Run, tmp_path: Path):
    fresh(tmp_path)
    no_key = {"OPENAI_API_KEY": ""}
    unset = sidestream("models", "default", env=no_key)
    assert (unset.stdout, "no API key" in unset.stderr) == ("local\n", True)
    wrong = sidestream("models", "default", "gpt-5")
    assert (wrong.returncode, "openai-responses:gpt-5" in wrong.stderr) == (2, True)
    assert sidestream("models", "default", "openai-responses:gpt-saved").returncode == 0
    with FakeProvider([sse(responses_text("Hi"))]).in_thread() as fake:
        done = sidestream("-n", "Hi", base_url=fake.base_url)
    assert (done.stderr, fake.requests[0].json["model"]) == ("", "gpt-saved")
    assert sidestream("models", "default", "--clear", env=no_key).stdout == "local\n"


@requirement("R170")
def test_alias_replaces_model_in_every_command(sidestream: Run):
    assert "No aliases" in sidestream("models", "alias").stderr
    assert sidestream("models", "alias", "add", "fast", "openai-responses:gpt-fast").returncode == 0
    assert sidestream("models", "alias", "list").stdout == "fast  openai-responses:gpt-fast\n"
    assert sidestream("models", "alias", "add", "faster", "fast").returncode == 0  # It stands for what that one does.
    assert sidestream("--save", "short", "-m", "faster", "Hi").returncode == 0
    with FakeProvider([sse(responses_text("Hi"))] * 3).in_thread() as fake:
        sidestream("-n", "-m", "fast", "Hi", base_url=fake.base_url)
        sidestream("-n", "Hi", env={"SIDESTREAM_MODEL": "fast"}, base_url=fake.base_url)
        sidestream("-n", "-t", "short", base_url=fake.base_url)
    assert [request.json["model"] for request in fake.requests] == ["gpt-fast"] * 3
    assert sidestream("models", "default", "fast").returncode == 0
    assert sidestream("models", "default").stdout == "openai-responses:gpt-fast\n"
    assert sidestream("tools", "-m", "fast").stdout.startswith("openai-responses")
    assert "temperature" in sidestream("models", "options", "fast").stdout
    for words, mark in (
        (("models", "alias", "add", "google", "anthropic"), "provider"),
        (("models", "alias", "add", "a:b", "anthropic"), "a:b"),
        (("models", "alias", "add", "other", "gpt-5"), "openai-responses:gpt-5"),
        (("models", "alias", "remove", "fats"), "fast"),
        (("-m", "fastt", "Hi"), "did you mean fast"),
    ):
        refused = sidestream(*words)
        assert (refused.returncode, mark in refused.stderr) == (2, True), words
    assert sidestream("models", "alias", "remove", "fast").returncode == 0
    assert sidestream("models", "alias").stdout == "faster  openai-responses:gpt-fast\n"


@requirement("R170")
def test_chat_model_may_be_alias(sidestream: Run):
    sidestream("models", "alias", "add", "fast", "openai-responses:gpt-fast")
    with FakeProvider([sse(responses_text("Hi"))]).in_thread() as fake:
        done = sidestream("chat", "-n", input="/model fast\nHello\n", base_url=fake.base_url)
    assert "model: openai-responses:gpt-fast" in done.stderr
    assert fake.requests[0].json["model"] == "gpt-fast"


@requirement("R170")
def test_schema_is_stored_by_name(sidestream: Run, tmp_path: Path):
    (tmp_path / "places.py").write_text("import dataclasses\n@dataclasses.dataclass\nclass City:\n    name: str\n")
    assert sidestream("schemas", "save", "person", "name, age int: in years").returncode == 0
    assert sidestream("schemas", "save", "city", "places:City", env={"PYTHONPATH": str(tmp_path)}).returncode == 0
    assert sidestream("schemas").stdout == "city    name\nperson  name, age int\n"
    shown = json.loads(sidestream("schemas", "show", "person").stdout)
    assert shown["properties"]["age"] == {"type": "integer", "description": "in years"}
    with FakeProvider([sse(responses_text('{"name": "Ada", "age": 36}'))]).in_thread() as fake:
        done = sidestream("-n", "--schema", "person", "Invent one", base_url=fake.base_url)
    assert json.loads(done.stdout) == {"name": "Ada", "age": 36}
    assert fake.requests[0].json["text"]["format"]["schema"]["required"] == ["name", "age"]
    unknown = sidestream("schemas", "show", "persn")
    assert (unknown.returncode, "did you mean person" in unknown.stderr) == (2, True)
    wrong = sidestream("schemas", "save", "bad", "age nteger")
    assert (wrong.returncode, "int" in wrong.stderr) == (2, True)
    assert sidestream("schemas", "remove", "person").returncode == 0
    assert sidestream("schemas", "list").stdout == "city  name\n"


def test_unwritable_log_does_not_fail_prompt(sidestream: Run, tmp_path: Path):
    fresh(tmp_path)
    (tmp_path / "taken").write_text("a file")
    with FakeProvider([sse(responses_text("Hi"))]).in_thread() as fake:
        done = sidestream("--store", "taken/log.db", "a", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (0, "Hi\n")
    assert "warning: the conversation is not logged" in done.stderr


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("gpt-5", "openai-responses:gpt-5"),
        ("openai/gpt-5", "openai-responses:gpt-5"),
        ("anthropic/claude-x", "anthropic:claude-x"),
        ("gemini-3-pro", "google:gemini-3-pro"),
        ("opneai:gpt-5", "openai:gpt-5"),
        ("zzz", None),
    ],
)
def test_invalid_model_suggests_intended_string(text: str, meant: str | None):
    assert suggestion(text) == meant


def test_approve_option_values_match_library():
    from typing import get_args

    assert get_args(Verdict) == options.VERDICTS


@pytest.mark.parametrize("provider", ["openai-responses", "openai", "anthropic", "google"])
def test_every_model_option_has_description(provider: str):
    found = {name: option for _, options in described_options(provider) for name, option in options.items()}
    assert len(found) > 30
    assert [name for name, option in found.items() if not option.description] == []


@requirement("R170")
def test_model_options_are_listed_without_key(sidestream: Run):
    done = sidestream("models", "options", "anthropic", env={"OPENAI_API_KEY": ""})
    assert done.returncode == 0, done.stderr
    assert "temperature  at least 0" in done.stdout
    assert "AnthropicOptions" in done.stdout
    assert re.search(r"^  temperature +at least 0.*\n +Sampling temperature\.", done.stdout, re.MULTILINE)
    listed = sidestream("models", "--json").stdout.splitlines()
    assert "openai-responses" in [json.loads(line)["name"] for line in listed]


@requirement("R170")
@pytest.mark.parametrize("kind", ["text", "image"])
def test_clipboard_is_attached_through_available_program(sidestream: Run, tmp_path: Path, kind: str):
    picture = tmp_path / "picture.png"
    picture.write_bytes(pixel_png())
    programs = tmp_path / "programs"
    programs.mkdir()
    paste = programs / "wl-paste"
    types = "image/png" if kind == "image" else "text/plain"
    paste.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f"  --list-types) echo {types} ;;\n"
        f'  --type) test "$2" = image/png && cat "{picture}" ;;\n'
        "  --no-newline) printf 'copied words' ;;\n"
        "esac\n"
    )
    paste.chmod(0o755)
    path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with FakeProvider([sse(responses_text("Seen."))]).in_thread() as fake:
        done = sidestream("-a", "clipboard", "What is this?", base_url=fake.base_url, env=path)
    assert (done.returncode, done.stdout.strip()) == (0, "Seen.")
    sent = json.dumps(fake.requests[0].json["input"])
    assert (base64.b64encode(pixel_png()).decode() if kind == "image" else "copied words") in sent


def test_missing_clipboard_program_error_names_some(sidestream: Run, tmp_path: Path):
    done = sidestream("-a", "clipboard", "What is this?", env={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert "install one of wl-paste, xclip" in done.stderr
