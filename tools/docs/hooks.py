"""Adds pages to the site that are not in docs/: those of the project's root, and the generated reference."""

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
"""Files of the project, by page of the site."""

_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that have no file in docs/."""
    for name, source in ROOT_PAGES.items():
        path = ROOT / source
        files.append(File.generated(config, name, content=relinked(path.read_text("utf-8"), path.parent, Path())))
    for name, text in reference.pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links from docs/ to the project's root at the site's own pages."""
    markdown = _titled(markdown)
    if page.file.generated_by:
        return markdown
    here = (ROOT / "docs" / page.file.src_uri).parent
    return relinked(markdown, here, Path(page.file.src_uri).parent)


def _titled(text: str) -> str:
    """Give programs their file names as titles, and remove marks on code fences that only tests read."""
    text = re.sub(
        r"^```python(?: no-run)?\n# file: ([\w-]+\.py)\n", r'```python title="\1"\n', text, flags=re.MULTILINE
    )
    return text.replace("```python no-run\n", "```python\n")


def relinked(text: str, folder: Path, page_folder: Path) -> str:
    """Return the text with its links pointing at pages of the site.

    A link to a file that is not on the site becomes the file's name.
    """
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
    """Replace links to source files, which are not part of the site, by their text."""

    def plain(match: re.Match[str]) -> str:
        path = (folder / match[2].partition("#")[0]).resolve()
        outside = path.exists() and not path.is_relative_to(ROOT / "docs")
        return match[1] if outside and "://" not in match[2] else match[0]

    return re.sub(r"\[([^\]]+)\]\(([^)#\s][^)\s]*)\)", plain, text)
