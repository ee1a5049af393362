"""The bench measures what it says: its streams are legal on every wire, and a short run of it gives figures."""

# pyright: reportMissingImports=false

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sidestream import Agent, File, Source, ToolResult
from sidestream.parts import Error, Raw, TextDelta, ToolEvent
from sidestream.stream.grammar import check
from sidestream.testing import FakeProvider, sse

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the bench is no part of the package

from bench.cases import CASES  # noqa: E402
from bench.payloads import WIRES, answer, payload  # noqa: E402
from bench.processes import environment  # noqa: E402
from bench.publishing import END, publish, with_block  # noqa: E402
from bench.runner import FailedError, check_seen  # noqa: E402
from bench.targets import TARGETS, Target  # noqa: E402

MODELS = {
    "responses": ("openai-responses", "/v1"),
    "messages": ("anthropic", ""),
    "generate": ("google", ""),
    "chat": ("openai", "/v1"),
}
PATIENCE_S = 120


async def parts_of(wire: str, frames: tuple[bytes, ...]) -> list:
    """What a run over this wire makes of the frames; the stream is legal, or GrammarError is raised."""
    model, base_path = MODELS[wire]
    async with FakeProvider([sse(frames)], base_path=base_path) as fake:
        agent = Agent(model, base_url=fake.base_url, api_key="none")
        async with agent.stream("Say it.") as run:
            parts = [part async for part in run]
    check(parts)
    assert not [part for part in parts if isinstance(part, Error | Raw)]
    return parts


def text_of(parts: list) -> str:
    return "".join(part.delta for part in parts if isinstance(part, TextDelta))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", ["text-50", "single-text-50", "bulk-1", "tools-60"])
async def test_every_payload_decodes_to_valid_stream_with_all_text(wire: str, name: str):
    made = payload(wire, name)
    assert made.chars == len(made.text) > 0
    assert text_of(await parts_of(wire, made.frames)) == made.text


@pytest.mark.parametrize(
    ("wire", "kinds"),
    [
        ("responses", {ToolEvent, ToolResult, Source, File}),
        ("messages", {ToolEvent, ToolResult, Source}),
        ("generate", {ToolResult, Source, File}),
        ("chat", {Source}),
    ],
)
async def test_tools_mix_has_parts_its_api_supports(wire: str, kinds: set[type]):
    parts = await parts_of(wire, payload(wire, "tools-60").frames)
    assert kinds <= {type(part) for part in parts}
    if wire == "responses":
        previews = [part for part in parts if isinstance(part, ToolResult) and part.preliminary]
        assert [len(str(part.result)) > 100_000 for part in previews] == [True] * 3


async def test_hosted_tool_is_called_as_often_as_payload_says():
    parts = await parts_of("responses", payload("responses", "hosted-add-7").frames)
    assert len([part for part in parts if isinstance(part, ToolResult)]) == 7


def test_loop_step_follows_from_request():
    def text(body: bytes) -> str:
        return answer("responses", "calls-add-2", body).text

    assert text(b"{}") == ""
    assert text(b'{"input": [{"type": "function_call_output"}]}') == ""
    assert text(b'{"input": [{"type": "function_call_output"}, {"type": "function_call_output"}]}')
    assert text(b'{"previous_response_id": "resp_step1", "input": [{"type": "function_call_output"}]}')


def test_check_seen_rejects_missing_work():
    check_seen({"program": "loop"}, {"calls": 20})
    with pytest.raises(FailedError):
        check_seen({"program": "loop"}, {"calls": 19})
    with pytest.raises(FailedError):
        check_seen({"program": "history", "messages": 1000}, {"said": "messages=1000 bytes=9"})


def test_target_compares_metrics_of_one_run():
    figures = {"text": {"ours": {"cpu": 6.0}, "floor": {"cpu": 2.0}}}
    target = Target("", ("text", "ours", "cpu"), ("text", "floor", "cpu"), at_most=2.9)
    value = target.measured(figures)
    assert value == 3.0
    assert not target.is_met(value)
    assert Target("", ("text", "ours", "cpu"), ("text", "peer", "cpu"), at_least=2).measured(figures) is None


def test_every_target_names_existing_metrics():
    known = {(case.name, way.key, metric.key) for case in CASES for way in case.ways for metric in case.metrics}
    named = {place for target in TARGETS for place in (target.figure, target.against, *target.less) if place}
    assert named <= known


def test_published_run_replaces_figures_of_both_pages(tmp_path: Path):
    found = json.loads((ROOT / "bench" / "results" / "bench.json").read_text("utf-8"))
    pages = [tmp_path / "README.md", tmp_path / "docs" / "performance.md"]
    pages[1].parent.mkdir()
    for page in pages:
        page.write_text(f"before\n<!-- bench -->\nearlier figures\n{END}\nafter\n", "utf-8")
    assert publish(found, tmp_path) == pages
    readme, performance = (page.read_text("utf-8") for page in pages)
    for text in (readme, performance):
        assert text.startswith("before\n")
        assert text.endswith(f"{END}\nafter\n")
        assert "earlier figures" not in text
        assert found["date"] in text
    assert "| `agent.stream` |" in readme
    missed = [row["target"] for row in found["targets"] if not row["met"]]
    assert [target for target in missed if target not in performance] == []


def test_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="bench"):
        with_block("no markers", "figures")


def test_quick_run_reports_metrics_for_floor_and_sidestream():
    command = [sys.executable, "-m", "bench", "--quick", "--json", "--peers", "none", "--case", "text-responses"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    case = found["cases"]["text-responses"]
    assert case["failed"] == {}
    assert case["medians"].keys() == {"floor", "stream", "send_stream", "send", "chat"}
    assert all(figures["cpu"] > 0 and figures["wall"] > 0 for figures in case["medians"].values())
    assert {row["target"] for row in found["targets"]} >= {"text-responses: stream to floor"}
    assert found["versions"].keys() >= {"sidestream", "aiohttp", "msgspec"}
    assert found["machine"]["python"].startswith("3.")


def test_measured_process_imports_sources_of_its_tree(tmp_path: Path) -> None:
    (tmp_path / "src" / "sidestream").mkdir(parents=True)
    (tmp_path / "src" / "sidestream" / "__init__.py").write_text("", "utf-8")
    command = [sys.executable, "-c", "import sidestream; print(sidestream.__file__)"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_S)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path), done.stderr
