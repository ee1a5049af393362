"""Anthropic's Messages API."""

from sidestream.providers.anthropic.options import (
    AnthropicOptions,
    AnthropicServerSideTool,
    ClearThinking,
    ClearToolUses,
    Compact,
    Compaction,
    FunctionOptions,
    Skill,
    TaskBudget,
    Thinking,
)
from sidestream.providers.anthropic.provider import PROVIDER
from sidestream.providers.anthropic.server_side import Advisor, AnthropicTool, Memory, TextEditor

__all__ = [
    "PROVIDER",
    "Advisor",
    "AnthropicOptions",
    "AnthropicServerSideTool",
    "AnthropicTool",
    "ClearThinking",
    "ClearToolUses",
    "Compact",
    "Compaction",
    "FunctionOptions",
    "Memory",
    "Skill",
    "TaskBudget",
    "TextEditor",
    "Thinking",
]
