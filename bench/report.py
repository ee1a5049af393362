"""Formats the results as Markdown and JSON."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cases import Case, Metric
from bench.runner import Sample
from bench.targets import TARGETS, Figures

FOLDER = Path(__file__).resolve().parent / "results"


def middle(
    case: Case, samples: dict[str, list[Sample]], of: Callable[[list[float]], float] = statistics.median
) -> dict[str, dict[str, float]]:
    """Return the median of the samples, or another statistic, by way and metric."""
    return {
        way: {
            metric.key: of([_value(metric, sample) for sample in taken])
            for metric in case.metrics
            if all(metric.field in sample for sample in taken)
        }
        for way, taken in samples.items()
        if taken
    }


def _value(metric: Metric, sample: Sample) -> float:
    value = sample[metric.field] * metric.scale
    return value / sample["events"] if metric.is_per_event else value


def table(case: Case, figures: dict[str, dict[str, float]], failed: dict[str, str]) -> str:
    """Format the case as a Markdown table, comparing all ways with the first."""
    titles: list[str] = []
    for metric in case.metrics:
        titles += [metric.title, "ratio"] if metric.has_ratio else [metric.title]
    lines = [f"### {case.name}: {case.title}", ""]
    if case.note:
        lines += [case.note, ""]
    lines += [f"| | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    base = figures.get(case.ways[0].key, {})
    for way in case.ways:
        if way.key in failed:
            lines.append(
                f"| {way.label} | failed: {failed[way.key].replace('|', '/')[:120]} |{' |' * (len(titles) - 1)}"
            )
        elif way.key in figures:
            cells: list[str] = []
            for metric in case.metrics:
                value, floor = figures[way.key].get(metric.key), base.get(metric.key)
                cells.append("" if value is None else number(value))
                if metric.has_ratio:
                    cells.append(number(value / floor) if value is not None and floor else "")
            lines.append(f"| {way.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def number(value: float) -> str:
    """Format a figure with three digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def judged(figures: Figures) -> list[dict[str, Any]]:
    """Check the targets for which there are measurements."""
    rows: list[dict[str, Any]] = []
    for target in TARGETS:
        value = target.measured(figures)
        if value is not None:
            met = target.is_met(value)
            rows.append({"target": target.text, "bound": target.bound, "measured": value, "met": met})
    return rows


def markdown(found: dict[str, Any], tables: list[str]) -> str:
    """Format the whole report as Markdown."""
    machine = found["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    lines = [
        "# Benchmark",
        "",
        f"{found['date']}, {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, "
        f"{machine['system']}, load {machine['load']} at the start. "
        "Medians of interleaved rounds; CPU of the client's process. "
        "How to read it: docs/performance.md.",
        "",
        versions + ".",
        "",
    ]
    if found["left_out"]:
        named = ", ".join(f"{name} ({reason})" for name, reason in found["left_out"].items())
        lines += [f"Left out: {named}.", ""]
    lines += ["## Targets", "", *_targets(found["targets"]), "", "## Figures", ""]
    return "\n".join(lines) + "\n\n".join(tables) + "\n"


def _targets(rows: list[dict[str, Any]]) -> list[str]:
    met = sum(row["met"] for row in rows)
    lines = [f"{met} of {len(rows)} are met.", "", "| target | bound | measured | |", "|---|---:|---:|---|"]
    lines += [
        f"| {row['target']} | {row['bound']} | {number(row['measured'])} | {'met' if row['met'] else '**not met**'} |"
        for row in rows
    ]
    return lines


def write(name: str, found: dict[str, Any], text: str) -> Path:
    """Write both formats, and return the path of the Markdown. Partial runs go to the folder `raw`."""
    folder = FOLDER if name == "bench" else FOLDER / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    path = folder / f"{name}.md"
    path.write_text(text, "utf-8")
    return path
