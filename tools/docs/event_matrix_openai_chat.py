"""Print the presets and the parts that each field of a response emits, from the decoder's tables.

Run: `python tools/docs/event_matrix_openai_chat.py`.
"""

import re

from sidestream.providers.openai.chat import PRESETS, PROVIDER
from sidestream.providers.openai.chat.decode.decoder import FIELDS, IGNORED, PLACED
from sidestream.providers.openai.chat.decode.outcome import REASONS


def first_line(function: object) -> str:
    return (function.__doc__ or "").strip().split("\n")[0]


def names(values: object) -> str:
    return ", ".join(f"`{value}`" for value in sorted(values))


def preset_rows() -> list[str]:
    rows = ["| name | server | base URL | key | default model | not sent |", "|---|---|---|---|---|---|"]
    for server in (PROVIDER, *PRESETS):
        key = f"`{server.key_variable}`" if server.key_variable else "none"
        model = f"`{server.default_models['chat']}`" if "chat" in server.default_models else "none"
        called = ", ".join(f"`{name}`" for name in (server.name, *server.aliases))
        lacks = names(server.dialect.lacks)
        url = re.sub(r"[|][^}]*", "", server.base_url)
        rows.append(f"| {called} | {server.display_name} | `{url}` | {key} | {model} | {lacks} |")
    return rows


def field_rows() -> list[str]:
    rows = ["| field of a response or a choice | effect |", "|---|---|"]
    rows += [f"| `{name}` | {what} |" for name, what in PLACED.items()]
    rows += [f"| `{name}` | nothing: it {reason} |" for name, reason in IGNORED.items()]
    rows.append("| any other | metadata of `finish`, under its own name; the last one is used |")
    return rows


def delta_rows() -> list[str]:
    rows = ["| field of a delta or message | effect |", "|---|---|"]
    for name, row in FIELDS.items():
        unless = f" Ignored if `{row.unless}` is present." if row.unless else ""
        rows.append(f"| `{name}` | {first_line(row.handler)}{unless} |")
    rows.append("| any other | `raw` with the whole chunk, in addition to its known fields. |")
    return rows


def reason_rows() -> list[str]:
    rows = ["| finish reason of the server | Sidestream |", "|---|---|"]
    rows += [f"| `{name}` | `{reason}` |" for name, reason in REASONS.items()]
    rows.append("| any other | `other` |")
    return rows


def presets() -> str:
    return "\n".join([*preset_rows(), ""])


def matrix() -> str:
    sections = {"Responses": field_rows(), "Deltas and messages": delta_rows(), "Finish reasons": reason_rows()}
    return "\n".join(line for title, rows in sections.items() for line in (f"### {title}", "", *rows, ""))


if __name__ == "__main__":
    print(presets())
    print(matrix(), end="")
