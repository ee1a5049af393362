"""OpenAI's Responses API."""

from sidestream.providers.openai.account import Moderation
from sidestream.providers.openai.responses.options import (
    AccessPrograms,
    ContextManagement,
    ImageContext,
    OpenAIFunctionOptions,
    OpenAIResponsesOptions,
    OpenAIServerSideTool,
    PromptCache,
    PromptTemplate,
    Reasoning,
    ToolNamespace,
)
from sidestream.providers.openai.responses.presets import PRESETS, PROVIDER

__all__ = [
    "PRESETS",
    "PROVIDER",
    "AccessPrograms",
    "ContextManagement",
    "ImageContext",
    "Moderation",
    "OpenAIFunctionOptions",
    "OpenAIResponsesOptions",
    "OpenAIServerSideTool",
    "PromptCache",
    "PromptTemplate",
    "Reasoning",
    "ToolNamespace",
]
