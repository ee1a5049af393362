"""Search engines with an HTTP API: SearXNG, Brave, Exa, Tavily."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from sidestream import errors, jsontext
from sidestream.jsontext import JsonObject, as_list, as_object, without_none
from sidestream.limits import Limits
from sidestream.portable.search.engine import DAYS, Hit, Query, filtered, hits_in, parsed, with_sites
from sidestream.text.redaction import redact_url, register_secret
from sidestream.transport.calls import HttpCall, Transport

TIMEOUT_S = 30.0
"""Timeout of one search in seconds. Slow engines answer within ten."""
_HTML = "content-type"
"""Error code of an HTML response to a request for data."""


class Api(Struct, frozen=True, kw_only=True):
    """Request and response format of one engine."""

    name: str
    base_url: str
    key_variable: str | None = None
    base_variable: str | None = None
    request: Callable[[str, str, Query], HttpCall]
    """Builds the request from base URL, key and query."""
    hits: Callable[[JsonObject], list[Hit]]
    """Extracts the hits from an answer."""


class ApiEngine:
    """An engine with an HTTP API."""

    def __init__(self, api: Api, transport: Callable[[], Transport], limits: Limits) -> None:
        self._api = api
        self._transport = transport
        self._limits = limits

    @property
    def name(self) -> str:
        return self._api.name

    async def search(self, query: Query) -> list[Hit]:
        try:
            answer = await self._ask(query)
        except errors.SearchError as error:
            if query.freshness != "week" or error.status != 400:
                raise
            # Older versions of SearXNG know no week. Dated hits are filtered below.
            answer = await self._ask(replace(query, freshness="month"))
        found = filtered(self._api.hits(answer), query)
        if not found and (problem := _unresponsive(answer)):
            raise errors.SearchError(f"{self.name} found nothing: {problem}", code="unavailable", retryable=True)
        return found

    async def _ask(self, query: Query) -> JsonObject:
        return await self._answer(self._api.request(self._base_url(), self._key(), query))

    async def aclose(self) -> None:
        """Do nothing, since there is nothing to stop."""

    def _base_url(self) -> str:
        named = os.environ.get(self._api.base_variable or "", "").strip()
        return (named or self._api.base_url).rstrip("/")

    def _key(self) -> str:
        if self._api.key_variable is None:
            return ""
        key = os.environ.get(self._api.key_variable, "").strip()
        if not key:
            raise errors.MissingKeyError(f"the search engine {self.name} needs a key: set {self._api.key_variable}")
        register_secret(key)
        return key

    async def _answer(self, call: HttpCall) -> JsonObject:
        try:
            response = await self._transport().open(call, self._limits)
            try:
                body = await response.body()
            finally:
                await response.aclose()
        except errors.RunError as error:
            failed = self._failure(error, call)
        else:
            answer = as_object(parsed(body))
            if answer:
                return answer
            failed = errors.SearchError(
                f"{self.name} answered with something else than a JSON object", code="unavailable"
            )
        # Raised outside of `except`, which keeps the request out of its traceback.
        raise failed

    def _failure(self, error: errors.RunError, call: HttpCall) -> errors.SearchError:
        where = f"the search engine {self.name} at {redact_url(self._base_url())}"
        if isinstance(error, errors.ProviderError) and error.code == _HTML:
            return errors.SearchError(
                f"{where} answered with a page instead of data. If it is SearXNG, its JSON format is off, as by "
                "default: add `json` to search.formats in its settings.yml and restart it",
                code="unavailable",
            )
        if isinstance(error, errors.RateLimitedError):
            return errors.SearchError(
                f"{where} limits the rate of requests; try again later",
                code="too_many_requests",
                status=429,
                retryable=True,
                retry_after=error.retry_after,
            )
        if isinstance(error, errors.AuthenticationError):
            check = f"check {self._api.key_variable}" if self._api.key_variable else "it may block the JSON format"
            return errors.SearchError(f"{where} refused the request ({error.status}); {check}", code="unavailable")
        return errors.SearchError(
            f"{where} failed: {error.message}", code="unavailable", status=error.status, retryable=error.retryable
        )


def _unresponsive(answer: JsonObject) -> str | None:
    """Describe the engines behind SearXNG that failed, or return None."""
    failed = [": ".join(map(str, as_list(entry))) for entry in as_list(answer.get("unresponsive_engines"))]
    return f"the engines behind it failed ({'; '.join(failed[:5])})" if failed else None


def _get(url: str, parameters: dict[str, Any], headers: dict[str, str] | None = None) -> HttpCall:
    query = urlencode(without_none(parameters))
    return HttpCall(method="GET", url=f"{url}?{query}", headers=headers or {})


def _post(url: str, body: JsonObject, headers: dict[str, str]) -> HttpCall:
    kept = {name: value for name, value in body.items() if value not in (None, [], ())}
    return HttpCall(url=url, headers=headers, body=jsontext.dumps(kept))


def _searxng(base: str, key: str, query: Query) -> HttpCall:
    locale = f"{query.language}-{query.country}" if query.language and query.country else query.language
    parameters = {"q": with_sites(query), "format": "json", "language": locale}
    return _get(f"{base}/search", parameters | {"time_range": query.freshness})


def _brave(base: str, key: str, query: Query) -> HttpCall:
    freshness = {"day": "pd", "week": "pw", "month": "pm", "year": "py"}
    parameters = {
        "q": with_sites(query),
        "count": min(query.count, 20),
        "freshness": freshness.get(query.freshness or ""),
        "country": query.country,
        "search_lang": query.language,
    }
    return _get(f"{base}/res/v1/web/search", parameters, {"X-Subscription-Token": key})


def _exa(base: str, key: str, query: Query) -> HttpCall:
    since = datetime.now(UTC) - timedelta(days=DAYS[query.freshness]) if query.freshness else None
    body: JsonObject = {
        "query": query.text,
        "numResults": query.count,
        "includeDomains": list(query.allowed_domains),
        "excludeDomains": list(query.blocked_domains),
        "startPublishedDate": since and since.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "userLocation": query.country,
        "contents": {"highlights": {"maxCharacters": 1000}},
    }
    return _post(f"{base}/search", body, {"x-api-key": key})


def _tavily(base: str, key: str, query: Query) -> HttpCall:
    body: JsonObject = {
        "query": query.text,
        "max_results": min(query.count, 20),
        "include_domains": list(query.allowed_domains),
        "exclude_domains": list(query.blocked_domains),
        "time_range": query.freshness,
    }
    return _post(f"{base}/search", body, {"Authorization": f"Bearer {key}"})


_CONTENT = {"url": "url", "title": "title", "snippet": "content", "score": "score"}

SEARXNG = Api(
    name="searxng",
    base_url="",
    request=_searxng,
    hits=lambda answer: hits_in(answer.get("results"), _CONTENT | {"published": "publishedDate"}),
)
KEYED: dict[str, Api] = {
    "brave": Api(
        name="brave",
        base_url="https://api.search.brave.com",
        key_variable="BRAVE_API_KEY",
        base_variable="BRAVE_BASE_URL",
        request=_brave,
        hits=lambda answer: hits_in(
            as_object(answer.get("web")).get("results"),
            {"url": "url", "title": "title", "snippet": "description", "published": "page_age"},
        ),
    ),
    "exa": Api(
        name="exa",
        base_url="https://api.exa.ai",
        key_variable="EXA_API_KEY",
        base_variable="EXA_BASE_URL",
        request=_exa,
        hits=lambda answer: hits_in(
            answer.get("results"),
            {"url": "url", "title": "title", "snippet": "highlights", "published": "publishedDate", "score": "score"},
        ),
    ),
    "tavily": Api(
        name="tavily",
        base_url="https://api.tavily.com",
        key_variable="TAVILY_API_KEY",
        base_variable="TAVILY_BASE_URL",
        request=_tavily,
        hits=lambda answer: hits_in(answer.get("results"), _CONTENT | {"published": "published_date"}),
    ),
}
"""Name → engine whose key is in the environment."""
