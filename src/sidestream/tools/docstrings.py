"""Descriptions of a tool and its parameters, from the docstring of its function.

griffe is loaded when the first docstring is parsed, not when this module is imported.
"""

from collections.abc import Container
from typing import Literal


def parse_docstring(text: str, names: Container[str]) -> tuple[str, dict[str, str]]:
    """The description, and those of the parameters; the style is the one that documents most of the names.

    Sections about results, exceptions and examples are for programmers and are left out.
    """
    import griffe

    best: tuple[int, str, dict[str, str]] = (-1, text, {})
    styles: tuple[Literal["google", "numpy", "sphinx"], ...] = ("google", "numpy", "sphinx")
    for style in styles:
        sections = griffe.Docstring(text, lineno=1).parse(style, warnings=False)
        prose: list[str] = []
        documented: dict[str, str] = {}
        for section in sections:
            if isinstance(section, griffe.DocstringSectionText):
                prose.append(section.value)
            elif isinstance(section, griffe.DocstringSectionAdmonition):
                prose.append(f"{section.title}:\n{section.value.description}")
            elif isinstance(section, griffe.DocstringSectionParameters):
                documented |= {item.name: item.description for item in section.value if item.name in names}
        score = 2 * len(documented) + (len(sections) > 1)
        if score > best[0]:
            best = (score, "\n\n".join(filter(None, prose)), documented)
    return best[1], best[2]
