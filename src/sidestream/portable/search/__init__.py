"""Web search through interchangeable engines: SearXNG, keyed APIs, any MCP tool, a local corpus.

`engine_named` returns the engine for a name such as `brave` or `searxng:http://…`. Another provider's hosted search is
not an engine: it is delegated, see `sidestream.portable.tools.web_search`.
"""

from sidestream.portable.search.engine import Hit, Query, SearchEngine
from sidestream.portable.search.engines import CHOICES, VARIABLE, engine_named

__all__ = ["CHOICES", "VARIABLE", "Hit", "Query", "SearchEngine", "engine_named"]
