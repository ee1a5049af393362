"""Update every generated table in the docs: `python tools/docs/generate.py`."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCS = ROOT / "docs"
MATRICES = {
    "openai-responses.md": "event_matrix.py",
    "openai-chat.md": "event_matrix_openai_chat.py",
    "anthropic.md": "event_matrix_anthropic.py",
    "google.md": "event_matrix_google.py",
}
MARKER = "<!-- matrix -->\n"
ENDPOINTS = re.compile(r"(?<=<!-- endpoints -->\n).*?(?=<!-- /endpoints -->)", re.DOTALL)
PRESETS = re.compile(r"(?<=<!-- presets -->\n).*?(?=<!-- /presets -->)", re.DOTALL)


def updated(page: str, generator: dict[str, Any]) -> str:
    """Return the page with its matrix, and its presets if it has any, regenerated."""
    if "presets" in generator:
        page = PRESETS.sub(lambda _: generator["presets"](), page)
    return page.partition(MARKER)[0] + MARKER + generator["matrix"]()


def filled(page: str) -> str:
    """Return the page with the table of escape attempts regenerated. The sandbox tests check that table."""
    command = [sys.executable, str(ROOT / "tests/escapes.py"), "--markdown"]
    table = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return page.partition(MARKER)[0] + MARKER + table


def with_endpoints(page: str) -> str:
    """Return the page with the table of the server's endpoints regenerated."""
    from sidestream.server import create_app
    from sidestream.server.openapi import endpoints

    app = create_app("local", store=HERE / "unused.db")  # Opened with the first request.
    found = endpoints(app.routes)
    rows = "".join(f"| `{endpoint}` | {summary} |\n" for endpoint, summary in found.items())
    return ENDPOINTS.sub(lambda _: f"| request | what it does |\n|---|---|\n{rows}", page)


def main() -> None:
    server = DOCS / "server.md"
    server.write_text(with_endpoints(server.read_text("utf-8")), "utf-8")
    for name, script in MATRICES.items():
        path = DOCS / name
        path.write_text(updated(path.read_text("utf-8"), runpy.run_path(str(HERE / script))), "utf-8")
    escapes = DOCS / "escapes.md"
    escapes.write_text(filled(escapes.read_text("utf-8")), "utf-8")
    providers = DOCS / "providers.md"
    tables = runpy.run_path(str(HERE / "provider_matrix.py"))
    providers.write_text(tables["filled"](providers.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
