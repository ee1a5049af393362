"""Web fetch for every model: pages and documents as Markdown, under an egress policy."""

import os
import re
from typing import Any
from urllib.parse import urlsplit

from sidestream.errors import FetchError, SidestreamError
from sidestream.parts import File
from sidestream.portable.documents import why_empty
from sidestream.portable.documents.document import HTML_TYPES
from sidestream.portable.fetch import EgressPolicy, Fetched, Fetcher
from sidestream.portable.fetch.policy import MAX_HOPS, KnownAddresses
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.text.urls import host_of
from sidestream.tools.approvals import PendingApproval, Suspended, digest_of
from sidestream.tools.execution import ToolOutcome
from sidestream.tools.server_side import WebFetch
from sidestream.tools.tool import Tool, ToolContext
from sidestream.tools.toolset import Toolset

CHARS_PER_TOKEN = 4
MAX_CHARS = 100_000
"""Default maximum characters of a page: the length of a large page, which most models can still read."""


def toolset(config: WebFetch, services: Services) -> Toolset:
    """Create the tool `web_fetch`."""
    fetch = _WebFetch(config)
    # The tool suspends itself for URLs that need an approval.
    tool = Tool.from_function(
        fetch.run, name=config.key, key=config.key, is_open_world=True, reads_outside=True, on_interruption="retry"
    )
    return Functions(config.key, [tool])


class _WebFetch:
    def __init__(self, config: WebFetch) -> None:
        self._config = config
        self._guard = FetchGuard(config)
        self._fetcher = Fetcher(self._guard.policy)
        self._uses: dict[str, int] = {}

    async def run(self, context: ToolContext, url: str) -> ToolOutcome:
        """Fetches a web page or document and returns its content as Markdown.

        Args:
            url: The complete address, from the conversation, a search result or a page that was fetched.
        """  # noqa: D401 (sent to models)
        try:
            self._count(context)
            if (pending := self._guard.question(context, url)) is not None:
                return pending
            page = await self._fetcher.fetch(url)
        except FetchError as error:
            return _failure(error.code or "unavailable", error.message)
        except SidestreamError as error:
            return _failure("unavailable", str(error))
        limit = (self._config.max_content_tokens or 0) * CHARS_PER_TOKEN or MAX_CHARS
        if page.document.text.strip() or page.document.mime_type not in HTML_TYPES:
            context.emit(_file(page, context))
        return ToolOutcome(_result(page, limit, has_citations=self._config.citations))

    def _count(self, context: ToolContext) -> None:
        if context.suspended is not None:  # Counted before it was suspended.
            return
        used = self._uses[context.run_id] = self._uses.pop(context.run_id, 0) + 1
        for old in list(self._uses)[:-64]:
            del self._uses[old]
        if self._config.max_uses is not None and used > self._config.max_uses:
            raise FetchError(f"this run has used its {self._config.max_uses} fetches", code="max_uses_exceeded")


class FetchGuard:
    """Decides whether a URL may be fetched, by its domain and its origin."""

    def __init__(self, config: WebFetch) -> None:
        self._config = config
        self.policy = EgressPolicy(
            allowed_domains=config.allowed_domains,
            blocked_domains=config.blocked_domains,
            allow_hosts=config.allow_hosts,
            max_hops=MAX_HOPS if config.max_hops is None else config.max_hops,
        )

    def question(self, context: ToolContext, url: str) -> ToolOutcome | None:
        """Return the suspended outcome if the user must decide first, else None.

        Raises FetchError if the URL is denied or not allowed.
        """
        policy = self.policy
        policy.check(url)
        if policy.is_named(url):
            return None
        if context.suspended is not None:
            if not all(decision.is_approved for decision in context.suspended.decisions):
                raise FetchError("fetching this address was denied", code="url_not_allowed")
            return None
        known = KnownAddresses(context.history)
        if known.verdict(url, policy.max_hops) != "ask":
            return None
        if self._config.approval == "deny":
            raise FetchError(_UNKNOWN, code="url_not_in_prior_context")
        if self._config.approval == "run":
            return None
        host = host_of(url) or "?"
        approval = PendingApproval(
            approval_id=f"approval_{os.urandom(16).hex()}",
            run_id=context.run_id,
            call_id=context.call_id,
            tool=context.name,
            input={"url": url},
            digest=digest_of(context.name, {"url": url}),
            provenance=f"fetches an address of {host} that neither the user nor a search gave; "
            "its text may hold what was read",
        )
        return ToolOutcome(None, suspended=Suspended(QUESTION, (approval,)))


QUESTION = "{}"
"""State of a call that waits for a decision on its URL, and has done nothing yet."""


_UNKNOWN = (
    "only addresses that the user gave, that a search found, or that a fetched page links to on its own host can be "
    "fetched"
)


def _result(page: Fetched, limit: int, *, has_citations: bool) -> dict[str, Any]:
    """Return the result in the format of Anthropic's tool."""
    document = page.document
    text = document.text[:limit]
    content: dict[str, Any] = {
        "type": "document",
        "title": document.title,
        "source": {"type": "text", "media_type": "text/plain", "data": text},
    }
    if has_citations:
        content["citations"] = {"enabled": True}
    result: dict[str, Any] = {
        "type": "web_fetch_result",
        "url": page.url,
        "retrieved_at": page.retrieved_at,
        "content": content,
    }
    if page.final_url != page.url:
        result["final_url"] = page.final_url
    notes = list(document.warnings)
    if len(document.text) > limit or document.is_cut:
        notes.append(f"only the first {len(text)} characters")
    if not text.strip():
        notes.append(why_empty(document.mime_type, len(page.body)))
    return result | ({"notes": notes} if notes else {})


def _file(page: Fetched, context: ToolContext) -> File:
    """Return the document as a deliverable: a PDF or Word file verbatim, a page as Markdown."""
    document = page.document
    is_page = document.mime_type in HTML_TYPES
    ending = "md" if is_page else urlsplit(page.final_url).path.rpartition(".")[2][:5] or "txt"
    stem = document.title or urlsplit(page.final_url).path.rstrip("/").rpartition("/")[2] or "document"
    stem = re.sub(rf"\.{re.escape(ending)}$", "", stem)
    return File(
        f"{context.call_id}:document",
        "text/markdown" if is_page else document.mime_type,
        f"{stem}.{ending}",
        document.text.encode("utf-8", "replace") if is_page else page.body,
        provider_metadata={"sidestream": {"url": page.final_url, "retrieved_at": page.retrieved_at}},
    )


def _failure(code: str, message: str) -> ToolOutcome:
    return ToolOutcome({"type": "web_fetch_tool_result_error", "error_code": code, "message": message}, is_error=True)
