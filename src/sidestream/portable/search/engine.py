"""Queries, hits and the protocol of search engines."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import as_object, objects
from sidestream.text.urls import is_allowed, is_blocked

Freshness = Literal["day", "week", "month", "year"]
MAX_SNIPPET_CHARS = 1200


class Query(Struct, frozen=True, kw_only=True):
    """One search."""

    text: str
    count: int = 8
    allowed_domains: Sequence[str] = ()
    blocked_domains: Sequence[str] = ()
    freshness: Freshness | None = None
    """Maximum age of the publication or last change."""
    language: str | None = None
    """Language code, e.g. `en`."""
    country: str | None = None
    """Country code, e.g. `US`."""


class Hit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page that was found."""

    url: str
    title: str = ""
    snippet: str = ""
    published: str | None = None
    score: float | None = None


class SearchEngine(Protocol):
    """A search engine. `name` is the one it was selected by."""

    @property
    def name(self) -> str: ...

    async def search(self, query: Query) -> list[Hit]:
        """Return the hits, best first.

        Raises SearchError if the search fails.
        """
        ...

    async def aclose(self) -> None:
        """Stop everything that the engine has started."""
        ...


def hits_in(entries: Any, names: dict[str, str]) -> list[Hit]:
    """Convert an answer's entries to hits.

    `names` maps our fields to the engine's. Entries without a URL are left out.
    """
    found: list[Hit] = []
    for entry in objects(entries):
        fields = as_object(entry)
        url = fields.get(names["url"])
        if not isinstance(url, str) or not url.startswith(("http://", "https://", "file://")):
            continue
        score = fields.get(names.get("score", ""))
        found.append(
            Hit(
                url=url,
                title=_text(fields.get(names.get("title", ""))),
                snippet=_text(fields.get(names.get("snippet", ""))),
                published=_text(fields.get(names.get("published", ""))) or None,
                score=float(score) if isinstance(score, int | float) else None,
            )
        )
    return found


def parsed(data: bytes | str) -> Any:
    """Parse JSON text, or return None if it is invalid."""
    try:
        return jsontext.loads(data)
    except ValueError:
        return None


def filtered(hits: Sequence[Hit], query: Query) -> list[Hit]:
    """Return the hits in the allowed domains that are fresh enough, each URL once.

    Engines treat domains and dates as a preference only. A hit without a date is kept.
    """
    chosen: dict[str, Hit] = {}
    for hit in hits:
        is_wanted = not query.allowed_domains or is_allowed(hit.url, query.allowed_domains)
        is_wanted = is_wanted and not _is_too_old(hit.published, query.freshness)
        # A corpus file has no domain.
        if is_wanted and (hit.url.startswith("file://") or not is_blocked(hit.url, query.blocked_domains)):
            chosen.setdefault(hit.url, hit)
    return list(chosen.values())[: query.count]


DAYS = {"day": 1, "week": 7, "month": 31, "year": 366}
"""Freshness → maximum age in days."""


def _is_too_old(published: str | None, freshness: Freshness | None) -> bool:
    """Return whether a page is older than wanted, with a day of tolerance for time zones and times of day."""
    if freshness is None or published is None:
        return False
    try:
        moment = datetime.fromisoformat(published)
    except ValueError:
        return False
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return datetime.now(UTC) - moment > timedelta(days=DAYS[freshness] + 1)


def with_sites(query: Query) -> str:
    """Return the query's text with the `site:` operators that most engines support."""
    allowed = " OR ".join(f"site:{name}" for name in query.allowed_domains)
    blocked = " ".join(f"-site:{name}" for name in query.blocked_domains)
    return " ".join(part for part in (query.text, f"({allowed})" if " OR " in allowed else allowed, blocked) if part)


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = " … ".join(str(part) for part in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return " ".join(value.split())[:MAX_SNIPPET_CHARS] if isinstance(value, str) else ""
