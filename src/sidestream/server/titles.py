"""Titles of chats: the first question, the user's own name, or what a model makes of the question."""

import asyncio
import re
from collections.abc import Iterable

from sidestream.agent.agent import Agent
from sidestream.errors import SidestreamError
from sidestream.limits import Limits
from sidestream.logs import get_logger
from sidestream.store.log.follow import PublishedStore
from sidestream.store.log.summary import first_title, texts_with, title_line
from sidestream.store.records import Row
from sidestream.text.redaction import redact

MAX_QUESTION = 4000
"""Maximum characters of the question that the model reads."""
TIMEOUT_S = 60.0
SNIPPET = 60
"""Maximum characters on each side of the words found."""
_SYSTEM = (
    "You name conversations. Answer with a title of at most six words for a conversation that begins with the user's "
    "message, in the language of the message. Write only the title, without quotation marks. Do not answer the message."
)
_MARKUP: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^[ \t]*(?:`{3,}|~{3,}).*$", re.MULTILINE), ""),
    (re.compile(r"^[ \t]*(?:(?:#{1,6}|>|[-*+]|\d{1,9}[.)])[ \t]+)+", re.MULTILINE), ""),
    (re.compile(r"!?\[([^\[\]\n]+)\]\([^()\s]*\)"), r"\1"),
    (re.compile(r"(?<![\w*])([*_])(?=[^\s*_])([^*_\n]+)(?<!\s)\1(?![\w*])"), r"\2"),
    (re.compile(r"\*\*\*(?=[^\s*])([^*\n]+)(?<!\s)\*\*\*"), r"\1"),
    (re.compile(r"(\*\*|~~)(?=[^\s*~])([^*~\n]+)(?<!\s)\1"), r"\2"),
    (re.compile(r"`([^`\n]+)`"), r"\1"),
)
"""Markdown's marks and what replaces them: fences, line starts, links, emphasis and code."""

_log = get_logger(__name__)


class Titles:
    """The titles of a server's chats. With a model, new chats get a title that it makes."""

    def __init__(self, store: PublishedStore, model: str | None) -> None:
        self._store = store
        self._agent = None if model is None else Agent(model, system=_SYSTEM, limits=Limits(max_steps=1))
        self._making: set[asyncio.Task[None]] = set()

    def begin(self, conversation: str, question: str) -> None:
        """Make a title for a new chat in the background, if there is a model for it."""
        if self._agent is not None and (question := question.strip()):
            making = asyncio.create_task(self._make(self._agent, conversation, question[:MAX_QUESTION]))
            self._making.add(making)
            making.add_done_callback(self._making.discard)

    async def _make(self, agent: Agent[str], conversation: str, question: str) -> None:
        try:
            first = await self._store.title_of(conversation)
            async with asyncio.timeout(TIMEOUT_S):
                answer = (await agent.send(question)).text
            if title := title_line(answer.strip().strip("\"'“”„«».#*")):
                await self._store.rename(conversation, title, old=first)  # The user may have named it meanwhile.
        except (SidestreamError, TimeoutError) as error:
            _log.warning("conversation %s: could not make a title: %s", conversation, redact(str(error) or "timed out"))

    async def made(self) -> None:
        """Wait for the titles that are being made."""
        if making := [*self._making]:
            await asyncio.wait(making)

    async def rename(self, conversations: Iterable[str], title: str) -> str:
        """Change the title of a chat with these branches, and return it. Without one, restore the first question."""
        title = title_line(title)
        for conversation in conversations:
            title = title or first_title(await self._store.said(conversation))
            await self._store.rename(conversation, title)
        return title

    async def carry_over(self, rows: Iterable[Row], parent: str, branch: str) -> None:
        """Give a new branch its parent's title, unless that is the question with which the parent's log begins."""
        title = await self._store.title_of(parent)
        if title and title != first_title(rows):
            await self._store.rename(branch, title)

    async def snippet(self, conversation: str, text: str) -> str | None:
        """Return what a chat says around this string, on one line, or None if only its title contains it."""
        said, text = next(texts_with(await self._store.said(conversation), text), None), _one_line(text)
        if said is None:
            return None
        at = (line := _one_line(_plain(said))).casefold().find(text.casefold())
        if at < 0:  # The string contains the marks.
            at = max((line := _one_line(said)).casefold().find(text.casefold()), 0)
        start, end = max(at - SNIPPET, 0), at + len(text) + SNIPPET
        return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"

    async def aclose(self) -> None:
        """Stop making titles."""
        for task in self._making:
            task.cancel()
        await self.made()
        if self._agent is not None:
            await self._agent.aclose()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain(markdown: str) -> str:
    """Return Markdown without its marks. Arithmetic and names such as `__init__` stay as they are."""
    for mark, replacement in _MARKUP:
        markdown = mark.sub(replacement, markdown)
    return markdown
