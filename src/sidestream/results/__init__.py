"""Folds of parts to chunks, results, tool runs and citations, without I/O.

May import `stream`, `messages`, `turn` and what is below them.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "agent.media": "MediaResult",
        "portable.fetch.cited": "check_evidence",
        "results.citations": "CitedClaim CitedSource CitedText",
        "results.content": "Link",
        "results.tool_runs": "ToolStage",
        "results.tool_text": "ToolText",
        "results.typed_results": (
            "CodeInterpreterResult FileSearchResult FoundHit ImageGenerationResult MCPResult ShellResult "
            "ToolSearchResult TypedResult WebFetchResult WebSearchResult"
        ),
    },
)
