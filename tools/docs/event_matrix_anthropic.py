"""Print the parts that each event, block and delta emits, from the decoder's tables.

Run: `python tools/docs/event_matrix_anthropic.py`.
"""

from sidestream.providers.anthropic.decode.blocks import BLOCKS, DELTAS
from sidestream.providers.anthropic.decode.decoder import EVENTS, IGNORED
from sidestream.providers.anthropic.decode.results import RESULTS

KEYS = {**RESULTS, "mcp_tool_use": "mcp", "mcp_tool_listing": "mcp", "container_upload": "code_execution"}
BY_NAME = {"server_tool_use": "depends on its name"}
CALLS = {"tool_use": "the client", "server_tool_use": "the provider", "mcp_tool_use": "the provider"}


def first_line(function: object) -> str:
    return (function.__doc__ or "").strip().split("\n")[0]


def event_rows() -> list[str]:
    rows = ["| event | effect |", "|---|---|"]
    rows += [f"| `{name}` | {first_line(row.handler)} |" for name, row in EVENTS.items()]
    rows += [f"| `{name}` | nothing: it {reason} |" for name, reason in IGNORED.items()]
    return rows


def block_rows() -> list[str]:
    rows = ["| block | tool event of | executed by | when it starts | when it stops |", "|---|---|---|---|---|"]
    for name, row in BLOCKS.items():
        key = BY_NAME.get(name) or KEYS.get(name, "")
        rows.append(f"| `{name}` | {key} | {CALLS.get(name, '')} | {first_line(row.start)} | {first_line(row.stop)} |")
    return rows


def delta_rows() -> list[str]:
    rows = ["| delta | of | effect |", "|---|---|---|"]
    for name, row in DELTAS.items():
        blocks = ", ".join(f"`{block}`" for block in sorted(row.blocks))
        rows.append(f"| `{name}` | {blocks} | {first_line(row.handler)} |")
    return rows


def matrix() -> str:
    sections = {"Events": event_rows(), "Content blocks": block_rows(), "Deltas": delta_rows()}
    return "\n".join(line for title, rows in sections.items() for line in (f"### {title}", "", *rows, ""))


if __name__ == "__main__":
    print(matrix(), end="")
