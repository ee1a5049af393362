"""Tables of the tool versions that models support, and of the beta headers that requests need."""

import re
from collections.abc import Mapping

Generation = tuple[int, int]

API_VERSION = "2026-10-21"

_NEWEST: Generation = (99, 0)
_OLDEST: Generation = (0, 0)
_NUMBERS = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")

VERSIONS: dict[str, tuple[tuple[Generation, str], ...]] = {
    "web_search": (((5, 0), "20260318"), ((4, 6), "20260209"), (_OLDEST, "20250305")),
    "web_fetch": (((5, 0), "20260318"), ((4, 6), "20260209"), (_OLDEST, "20250910")),
    "code_execution": (((4, 5), "20260120"), (_OLDEST, "20250825")),
    "tool_search_tool_bm25": ((_OLDEST, "20251119"),),
    "tool_search_tool_regex": ((_OLDEST, "20251119"),),
    "memory": ((_OLDEST, "20250818"),),
    "bash": ((_OLDEST, "20250124"),),
    "text_editor": (((4, 0), "20250728"), (_OLDEST, "20250124")),
    "computer": (((4, 6), "20251124"), (_OLDEST, "20250124")),
    "browser_toolset": ((_OLDEST, "20260801"),),
    "advisor": ((_OLDEST, "20260301"),),
}
"""Tool → its versions, each with the first generation of models that supports it. The first match counts."""

BETAS: dict[str, str] = {
    "mcp_toolset": "mcp-client-2025-11-20",
    "mcp_toolset.tools": "mcp-client-2026-09-15",
    "mcp_tool_listing": "mcp-client-2026-09-15",
    "advisor_20260301": "advisor-tool-2026-03-01",
    "computer_20241022": "computer-use-2024-10-22",
    "computer_20250124": "computer-use-2025-01-24",
    "computer_20251124": "computer-use-2025-11-24",
    "context_management": "context-management-2025-06-27",
    "compact_20260112": "compact-2026-01-12",
    "compaction": "compact-2026-09-04",
    "fallbacks": "server-side-fallback-2026-07-01",
    "fallback_credit_token": "fallback-credit-2026-07-01",
    "task_budget": "task-budgets-2026-03-13",
    "thread": "message-threads-2026-08-12",
    "tool_addition": "inline-tools-2026-09-15",
    "block_binding": "thinking-binding-controls-2026-08-01",
    "display.updates": "thinking-display-updates-2026-08-18",
    "speed.fast": "fast-mode-2026-02-01",
}
"""Feature of a request (a tool's type or a parameter) → the beta header that it needs.

Files, skills, code execution, web fetch, typed output, tool search and memory need none."""

_NATIVE_OUTPUT: Generation = (4, 1)
_INLINE_TOOLS: Generation = (5, 0)


def generation(model: str) -> Generation | None:
    """Return the model's version, or None for another provider's model."""
    if "claude" not in model:
        return None
    found = _NUMBERS.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else _NEWEST


def family(model: str) -> str:
    """Return the model's name without its date. Models of one family can read each other's signatures."""
    return re.sub(r"(-\d{8}|-latest|@\d+)$", "", model)


def version_of(tool: str, model: str, chosen: Mapping[str, str]) -> str:
    """Return the chosen version of a tool, or the default for the model."""
    if tool in chosen:
        return chosen[tool]
    numbers = generation(model) or _OLDEST
    return next(version for first, version in VERSIONS[tool] if numbers >= first)


def has_native_output(model: str) -> bool:
    """Return whether the model supports a JSON schema for its output."""
    numbers = generation(model)
    return numbers is not None and numbers >= _NATIVE_OUTPUT


def has_inline_tools(model: str) -> bool:
    """Return whether tools can be added to a conversation with the model."""
    numbers = generation(model)
    return numbers is not None and numbers >= _INLINE_TOOLS
