"""Adds what the site has beside the pages of docs/: pages of the project's root, and the generated reference."""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
sys.path[:0] = [str(SITE), str(ROOT / "src")]

import reference  # noqa: E402  # beside this file

ROOT_PAGES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "examples.md": "examples/README.md",
}
"""Page of the site → file of the project."""

_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that have no file in docs/."""
    for name, source in ROOT_PAGES.items():
        path = ROOT / source
        files.append(File.generated(config, name, content=relinked(path.read_text("utf-8"), path.parent, Path())))
    for name, text in reference.pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links from docs/ to the project's root lead to the site's own pages."""
    markdown = _titled(markdown)
    if page.file.generated_by:
        return markdown
    here = (ROOT / "docs" / page.file.src_uri).parent
    return relinked(markdown, here, Path(page.file.src_uri).parent)


def _titled(text: str) -> str:
    """Programs have their file names as titles, and fences no marks that only tests read."""
    text = re.sub(
        r"^```python(?: no-run)?\n# file: ([\w-]+\.py)\n", r'```python title="\1"\n', text, flags=re.MULTILINE
    )
    return text.replace("```python no-run\n", "```python\n")


def relinked(text: str, folder: Path, page_folder: Path) -> str:
    """The text with links to files as the site has them; links to files that it lacks become their names."""
    pages = {(ROOT / source).resolve(): name for name, source in ROOT_PAGES.items()}
    up = "../" * len(page_folder.parts)

    def target(match: re.Match[str]) -> str:
        link, mark, anchor = match[1].partition("#")
        if not link or "://" in link:
            return match[1]
        path = (folder / link).resolve()
        if path in pages:
            return up + pages[path] + mark + anchor
        if path.is_relative_to(ROOT / "docs"):
            return up + path.relative_to(ROOT / "docs").as_posix() + mark + anchor
        return match[1]

    return _unlinked(_LINK.sub(target, text), folder)


def _unlinked(text: str, folder: Path) -> str:
    """A source file is not part of the site: its link becomes the text alone."""

    def plain(match: re.Match[str]) -> str:
        path = (folder / match[2].partition("#")[0]).resolve()
        outside = path.exists() and not path.is_relative_to(ROOT / "docs")
        return match[1] if outside and "://" not in match[2] else match[0]

    return re.sub(r"\[([^\]]+)\]\(([^)#\s][^)\s]*)\)", plain, text)
