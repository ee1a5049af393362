"""Anthropic's Messages API."""

from sidestream.providers.anthropic.options import (
    Advisor,
    AnthropicFunctionOptions,
    AnthropicOptions,
    AnthropicServerSideTool,
    AnthropicThinking,
    AnthropicTool,
    Browser,
    ClearThinking,
    ClearToolUses,
    Compact,
    Compaction,
    Memory,
    Skill,
    TaskBudget,
    TextEditor,
)
from sidestream.providers.anthropic.provider import PROVIDER

__all__ = [
    "PROVIDER",
    "Advisor",
    "AnthropicFunctionOptions",
    "AnthropicOptions",
    "AnthropicServerSideTool",
    "AnthropicThinking",
    "AnthropicTool",
    "Browser",
    "ClearThinking",
    "ClearToolUses",
    "Compact",
    "Compaction",
    "Memory",
    "Skill",
    "TaskBudget",
    "TextEditor",
]
