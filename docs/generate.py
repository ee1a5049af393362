"""Updates every generated table of the docs: `python docs/generate.py`."""

import re
import runpy
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
MATRICES = {
    "openai-responses.md": "event_matrix.py",
    "openai-chat.md": "event_matrix_openai_chat.py",
    "anthropic.md": "event_matrix_anthropic.py",
    "google.md": "event_matrix_google.py",
}
MARKER = "<!-- matrix -->\n"
PRESETS = re.compile(r"(?<=<!-- presets -->\n).*?(?=<!-- /presets -->)", re.DOTALL)


def updated(page: str, generator: dict[str, Any]) -> str:
    """The page with its matrix, and its presets if it has them, regenerated."""
    if "presets" in generator:
        page = PRESETS.sub(lambda _: generator["presets"](), page)
    return page.partition(MARKER)[0] + MARKER + generator["matrix"]()


def main() -> None:
    for name, script in MATRICES.items():
        path = DOCS / name
        path.write_text(updated(path.read_text("utf-8"), runpy.run_path(str(DOCS / script))), "utf-8")
    providers = DOCS / "providers.md"
    tables = runpy.run_path(str(DOCS / "provider_matrix.py"))
    providers.write_text(tables["filled"](providers.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
