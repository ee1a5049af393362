"""Citations and findings beside the text: Perplexity's lists in every chunk, and its steps of deep research."""

from collections.abc import Callable
from typing import Any

from sidestream.jsontext import JsonObject, as_list, as_object, objects, text_in
from sidestream.providers.openai.chat.decode.state import CompletionsState

FOUND = frozenset({"citations", "search_results"})
"""Fields of a response that list what a search found."""


def on_found(s: CompletionsState, fields: JsonObject) -> None:
    """Emit the search behind these lists, once. Their sources follow, each where the text cites it as `[n]`."""
    lists = (fields.get("citations"), fields.get("search_results"))
    if lists == s.lists:
        return
    s.lists = lists
    results = objects(fields.get("search_results"))
    titles = {url: text_in(found, "title") for found in results if (url := text_in(found, "url"))}
    cited = [url for url in as_list(fields.get("citations")) if isinstance(url, str)] or [*titles]
    if not cited:
        return
    s.facts["citations"] = cited
    s.cites(cited, titles)
    if results:
        found = {"search_results": results}
        s.begin_search(found, found)


def on_reasoning_steps(s: CompletionsState, value: list[JsonObject]) -> None:
    """Emit `reasoning-delta` for each thought, and `tool-call` and `tool-result` for what the step did."""
    for step in value:
        if thought := text_in(step, "thought"):
            s.reasoning_delta(thought)
        for tool, given in step.items():
            read = STEPS.get(tool)
            if read is not None and (done := as_object(given)):
                asked, result = read(done)
                s.hosted_result(s.hosted_call(tool, asked, step), result, step)
            elif tool not in ("thought", "type") and given:
                s.raw_chunk()


def _searched(done: JsonObject) -> tuple[JsonObject, Any]:
    return {"queries": as_list(done.get("search_keywords"))}, {"search_results": objects(done.get("search_results"))}


def _fetched(done: JsonObject) -> tuple[JsonObject, Any]:
    pages = objects(done.get("contents"))
    return {"urls": [url for page in pages if (url := text_in(page, "url"))]}, {"results": pages}


def _ran(done: JsonObject) -> tuple[JsonObject, Any]:
    return {"code": text_in(done, "code") or ""}, {"output": done.get("result")}


STEPS: dict[str, Callable[[JsonObject], tuple[JsonObject, Any]]] = {
    "web_search": _searched,
    "fetch_url_content": _fetched,
    "execute_python": _ran,
}
"""Field of a step → the input and the result of what it did."""
