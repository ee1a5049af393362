"""The fake provider behind the programs and commands of the docs, which name real ones."""

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import sidestream.testing
from sidestream.testing import FakeProvider

_FAKE = re.compile(r"<!-- fake: ((?:(?!-->).)*?) -->\s*\Z", re.DOTALL)
_LONGEST = 4000


def fake_before(text: str, at: int) -> str | None:
    """The script in the comment that ends right before this place of a page."""
    found = _FAKE.search(text, max(0, at - _LONGEST), at)
    return found[1] if found else None


@contextmanager
def faked(script: str | None) -> Generator[dict[str, str]]:
    """The variables with which every provider is the fake one; none without a script."""
    if script is None:
        yield {}
        return
    made: Any = eval(f"({script})", {name: getattr(sidestream.testing, name) for name in sidestream.testing.__all__})
    scripts: Iterable[Any] = made if isinstance(made, list) else [made]
    replies = [entry.reply() if hasattr(entry, "reply") else entry for entry in scripts]
    with FakeProvider(replies).in_thread() as fake:
        urls = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL")
        keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")
        yield dict.fromkeys(urls, fake.base_url) | dict.fromkeys(keys, "fake")
