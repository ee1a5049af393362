"""The findings as JSON, and as the Markdown table that the README shows."""

import json
from pathlib import Path
from typing import Any

from bench.environments import ROOT
from bench.losses.libraries import LIBRARIES
from bench.report import FOLDER

NAME = "losses"
README = ROOT / "README.md"
BEGIN, END = "<!-- losses -->", "<!-- /losses -->"


def table(found: dict[str, Any]) -> str:
    """One row for each probe, one column for each library."""
    names = list(found["libraries"])
    heads = [names[0], *(f"{name} {found['libraries'][name]['version']}" for name in names[1:])]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(names)]
    for row in found["rows"].values():
        cells = [row["cells"][library]["text"] for library in names]
        lines.append(f"| {row['title']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def markdown(found: dict[str, Any]) -> str:
    """The report: the table, the APIs that were used, and what each cell was read from."""
    lines = [
        "# What is lost",
        "",
        f"{found['date']}, Python {found['python']}, made by `make losses`. How to read it: docs/performance.md.",
        "",
        table(found),
        "",
        "## The APIs",
        "",
        *(f"- {name} {entry['version']}: {entry['api']}" for name, entry in found["libraries"].items()),
    ]
    for row in found["rows"].values():
        lines += ["", f"## {row['title'][0].upper()}{row['title'][1:]}", ""]
        lines += [f"- {name}: {cell['text']}. `{_code(cell['evidence'])}`" for name, cell in row["cells"].items()]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")


def write(found: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Writes both forms."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    path = folder / f"{NAME}.md"
    path.write_text(markdown(found), "utf-8")
    return path


def block(found: dict[str, Any]) -> str:
    """What the README shows: the table, and when it was made."""
    return f"{table(found)}\n\nMade by `make losses` on {found['date']}."


def in_readme(text: str) -> str:
    """What stands between the markers of a README."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def with_table(text: str, found: dict[str, Any]) -> str:
    """The README with this table between its markers."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{block(found)}\n\n{END}{tail}"


def is_whole(found: dict[str, Any]) -> bool:
    """True if every library was observed."""
    return set(found["libraries"]) == {library.title for library in LIBRARIES}
