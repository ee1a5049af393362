"""Writes the figures of a full run into the README and docs/performance.md, between markers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.report import number

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- bench -->", "<!-- /bench -->"

_STREAMS = (
    ("text-responses", "OpenAI text", "openai"),
    ("tools-responses", "OpenAI tools mix", "openai"),
    ("text-messages", "Anthropic text", "anthropic"),
    ("text-generate", "Gemini text", "google-genai"),
)
"""Cases, titles and the vendor's SDK of the README's columns."""
_WAYS = (
    ("floor", "floor"),
    ("stream", "`agent.stream`"),
    ("send_stream", "`agent.send_stream`"),
    ("vendor", "the vendor's SDK"),
    ("litellm", "litellm"),
    ("pydantic-ai", "pydantic-ai `Agent`"),
)
_PROGRAMS = (
    ("loop", "cpu", "ours", "a loop of 20 tool calls (by hand with the openai SDK), CPU"),
    ("history", "cpu", "ours", "a turn on 1,000 messages, CPU"),
    ("streams-1000", "p99", "stream", "1,000 concurrent streams of ten events per second each, p99 delay of an event"),
)
_PROGRAM_WAYS = ("floor", "openai", "openai-agents", "pydantic-ai")


def publish(found: dict[str, Any], root: Path = ROOT) -> list[Path]:
    """Write the figures into both pages, and return their paths."""
    pages = {root / "README.md": _readme(found), root / "docs" / "performance.md": _performance(found)}
    for path, block in pages.items():
        path.write_text(with_block(path.read_text("utf-8"), block), "utf-8")
    return list(pages)


def with_block(text: str, block: str) -> str:
    """Return the page with this block between its markers."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{block}\n\n{END}{tail}"


def _readme(found: dict[str, Any]) -> str:
    medians = {name: case["medians"] for name, case in found["cases"].items()}
    rows: list[list[str]] = []
    for way, title in _WAYS:
        cells = [title]
        for case, _, vendor in _STREAMS:
            value = _figure(medians, case, vendor if way == "vendor" else way, "cpu")
            floor = _figure(medians, case, "floor", "cpu")
            ratio = "" if value is None or floor is None or way == "floor" else f" ({_ratio(value / floor)} ×)"  # noqa: RUF001
            cells.append("" if value is None else f"{number(value)}{ratio}")
        rows.append(cells)
    programs = [
        [title, *(_time(_figure(medians, case, way, metric)) for way in (ours, *_PROGRAM_WAYS))]
        for case, metric, ours, title in _PROGRAMS
    ]
    machine = found["machine"]
    return "\n\n".join(
        (
            f"Measured {found['date']} on {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}. "
            "CPU µs per stream event:",
            _table(["", *(title for _, title, _ in _STREAMS)], rows),
            _table(["", "Sidestream", "floor", "openai SDK", "openai-agents", "pydantic-ai"], programs),
        )
    )


def _performance(found: dict[str, Any]) -> str:
    machine, targets = found["machine"], found["targets"]
    missed = [row for row in targets if not row["met"]]
    said = (
        f"The latest full run ({found['date']}, {machine['cpu']}, {machine['cores']} cores, load {machine['load']} at "
        f"the start, {found['seconds'] / 60:.0f} minutes) meets {len(targets) - len(missed)} of {len(targets)} targets."
    )
    if not missed:
        return said
    rows = [[row["target"], row["bound"], number(row["measured"])] for row in missed]
    return f"{said} Not met:\n\n{_table(['target', 'bound', 'measured'], rows)}"


def _figure(medians: dict[str, Any], case: str, way: str, metric: str) -> float | None:
    return medians.get(case, {}).get(way, {}).get(metric)


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _time(ms: float | None) -> str:
    if ms is None:
        return ""
    return f"{number(ms)} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]).replace("|  |", "| |")
