"""Print the parts that each event and item emits, from the decoder's tables: `python tools/docs/event_matrix.py`."""

from sidestream.providers.openai.responses.decode.decoder import EVENTS, IGNORED, PASSED_ON, PASSED_ON_ITEMS
from sidestream.providers.openai.responses.decode.items import ITEMS


def first_line(function: object) -> str:
    return (function.__doc__ or "").strip().split("\n")[0]


def event_rows() -> list[str]:
    rows = ["| event | tool event of | effect |", "|---|---|---|"]
    rows += [f"| `{name}` | {row.tool or ''} | {first_line(row.handler)} |" for name, row in EVENTS.items()]
    rows += [f"| `{name}` | | `raw`: {reason} |" for name, reason in PASSED_ON.items()]
    rows += [f"| `{name}` | | nothing: it {reason} |" for name, reason in IGNORED.items()]
    return rows


EITHER = {
    "shell_call": "either, depending on its environment",
    "tool_search_call": "either, depending on its `execution`",
}


def item_rows() -> list[str]:
    rows = ["| item | tool event of | executed by | when added | when done |", "|---|---|---|---|---|"]
    for name, row in ITEMS.items():
        is_call = name.endswith("_call") or name == "program"
        by = EITHER.get(name) or ("the provider" if row.hosted else "the client") if is_call else ""
        added = first_line(row.added) if row.added else ""
        rows.append(f"| `{name}` | {row.tool or ''} | {by} | {added} | {first_line(row.done)} |")
    rows += [f"| `{name}` | | the provider | | `raw`: {reason} |" for name, reason in PASSED_ON_ITEMS.items()]
    return rows


def matrix() -> str:
    return "\n".join(["### Events", "", *event_rows(), "", "### Output items", "", *item_rows(), ""])


if __name__ == "__main__":
    print(matrix(), end="")
