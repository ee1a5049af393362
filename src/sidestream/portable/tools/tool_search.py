"""Tool search for every model: a ranked search over the names and descriptions of deferred tools."""

import math
import re
from collections.abc import Sequence

from sidestream.jsontext import JsonObject, as_object
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.tools.server_side import ToolSearch
from sidestream.tools.spec import ToolSpec
from sidestream.tools.tool import Tool, ToolContext
from sidestream.tools.toolset import Toolset

MAX_FOUND = 5
"""Maximum tools that one search loads. More would fill the context that deferring is meant to save."""
_NAME_WEIGHT = 3.0
"""Weight of a word in a tool's name, relative to one in its description."""
_K1, _B = 1.2, 0.75
"""The usual constants of BM25."""
_COMMON = frozenset(
    {"a", "an", "and", "as", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or", "the", "this", "to", "with"}
)
"""Words that say nothing about a tool."""
_WORD = re.compile(r"[a-z]+|\d+|[^\W\d_]+")


def toolset(config: ToolSearch, services: Services) -> Toolset:
    """Create the tool `tool_search`."""
    return Functions(
        config.key,
        [
            Tool.from_function(
                _search, name=config.key, description=config.description, key=config.key, on_interruption="retry"
            )
        ],
    )


async def _search(context: ToolContext, query: str) -> JsonObject:
    """Finds tools that are not listed here. Those that it finds can be called from your next turn on.

    Args:
        query: What the tool is to do, in a few words, or its name.
    """  # noqa: D401 (sent to models)
    found = ranked(query, context.deferred())[:MAX_FOUND]
    tools = [{"type": "function", "name": spec.name, "description": spec.description} for spec in found]
    return {"status": "completed", "tools": tools}


def ranked(query: str, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return the tools that match a query, best first, by BM25 over names, descriptions and arguments."""
    wanted = set(_words(query))
    documents = [_document(spec) for spec in tools]
    average = sum(sum(words.values()) for words in documents) / len(documents) if documents else 0.0
    holding = {word: sum(word in words for words in documents) for word in wanted}
    scored: list[tuple[float, int]] = []
    for place, words in enumerate(documents):
        length = sum(words.values()) / (average or 1.0)
        score = 0.0
        for word in wanted & words.keys():
            rarity = math.log(1 + (len(documents) - holding[word] + 0.5) / (holding[word] + 0.5))
            count = words[word]
            score += rarity * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length))
        if score > 0:
            scored.append((-score, place))
    return [tools[place] for _, place in sorted(scored)]


def _document(spec: ToolSpec) -> dict[str, float]:
    """Return the words of a tool, with their weights."""
    words: dict[str, float] = {}
    properties = as_object(spec.parameters.get("properties"))
    described = [str(as_object(value).get("description") or "") for value in properties.values()]
    for text, weight in ((spec.name, _NAME_WEIGHT), (" ".join([spec.description, *properties, *described]), 1.0)):
        for word in _words(text):
            words[word] = words.get(word, 0.0) + weight
    return words


def _words(text: str) -> list[str]:
    """Split text into words, without plural endings. `getWeather` and `get_weather` are two words."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).lower()
    found = (word for word in _WORD.findall(spaced) if word not in _COMMON)
    return [word.removesuffix("s") if len(word) > 3 else word for word in found]
