"""Print the parts that fields, parts, events and steps emit, from the decoders' tables.

Run: `python tools/docs/event_matrix_google.py`.
"""

from collections.abc import Mapping

from sidestream.providers.google.decode.content import BESIDE, PARTS, PASSED_ON
from sidestream.providers.google.decode.decoder import CANDIDATE_FIELDS, CHUNK_FIELDS, FieldRow
from sidestream.providers.google.decode.grounding import SOURCES
from sidestream.providers.google.decode.outcome import REASONS
from sidestream.providers.google.interactions.decode import EVENTS, STATUSES
from sidestream.providers.google.interactions.steps import (
    DELTAS,
    IGNORED_DELTAS,
    IGNORED_STEPS,
    NO_SOURCES,
    SOURCES as CITATIONS,
    STEPS,
)


def first_line(function: object) -> str:
    return (function.__doc__ or "").strip().split("\n")[0]


def field_rows(name: str, fields: Mapping[str, FieldRow]) -> list[str]:
    rows = [f"| field of {name} | tool event of | effect |", "|---|---|---|"]
    return rows + [f"| `{field}` | {row.tool or ''} | {first_line(row.handler)} |" for field, row in fields.items()]


def part_rows() -> list[str]:
    rows = ["| part | tool event of | effect |", "|---|---|---|"]
    rows += [f"| `{name}` | {row.tool or ''} | {first_line(row.handler)} |" for name, row in PARTS.items()]
    rows += [f"| `{name}` | | `raw`: {reason} |" for name, reason in PASSED_ON.items()]
    return rows + [f"| `{name}` | | {reason} |" for name, reason in BESIDE.items()]


def event_rows() -> list[str]:
    rows = ["| event | effect |", "|---|---|"]
    return rows + [f"| `{name}` | {first_line(row.handler)} |" for name, row in EVENTS.items()]


def step_rows() -> list[str]:
    rows = ["| step | tool events of | when it starts | when it stops |", "|---|---|---|---|"]
    for name, row in STEPS.items():
        rows.append(f"| `{name}` | {row.tool or ''} | {first_line(row.start)} | {first_line(row.stop)} |")
    return rows + [f"| `{name}` | | nothing: it {reason} | |" for name, reason in IGNORED_STEPS.items()]


def delta_rows() -> list[str]:
    rows = ["| delta | effect |", "|---|---|"]
    rows += [f"| `{name}` | {first_line(row.handler)} |" for name, row in DELTAS.items()]
    return rows + [f"| `{name}` | nothing: it {reason} |" for name, reason in IGNORED_DELTAS.items()]


def reason_rows() -> list[str]:
    rows = ["| Google | Sidestream |", "|---|---|"]
    rows += [f"| `{name}` | {reason} |" for name, reason in REASONS.items()]
    return rows + [f"| status `{name}` | {reason} |" for name, reason in STATUSES.items()]


def source_rows() -> list[str]:
    kinds = [f"`{name}`" for name in (*SOURCES, *CITATIONS)]
    rows = [f"These become `source` parts: {', '.join(kinds)}."]
    return rows + [f"`{name}` {reason}." for name, reason in NO_SOURCES.items()]


def matrix() -> str:
    sections = {
        "Chunks of generateContent": field_rows("a chunk", CHUNK_FIELDS),
        "Candidates": field_rows("a candidate", CANDIDATE_FIELDS),
        "Parts": part_rows(),
        "Events of an interaction": event_rows(),
        "Steps": step_rows(),
        "Deltas": delta_rows(),
        "Sources": source_rows(),
        "Finish reasons": reason_rows(),
    }
    return "\n".join(line for title, rows in sections.items() for line in (f"### {title}", "", *rows, ""))


if __name__ == "__main__":
    print(matrix(), end="")
