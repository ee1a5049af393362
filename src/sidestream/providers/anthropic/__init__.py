"""Anthropic's Messages API."""

from sidestream.providers.anthropic.options import (
    AnthropicFunctionOptions,
    AnthropicOptions,
    AnthropicServerSideTool,
    AnthropicThinking,
    ClearThinking,
    ClearToolUses,
    Compact,
    Compaction,
    Skill,
    TaskBudget,
)
from sidestream.providers.anthropic.provider import PROVIDER
from sidestream.providers.anthropic.server_side import Advisor, AnthropicTool, Browser, Memory, TextEditor

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
