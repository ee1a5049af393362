"""OpenAI's Responses API."""

from sidestream.providers.openai import Moderation
from sidestream.providers.openai_responses.options import (
    AccessPrograms,
    ContextManagement,
    FunctionOptions,
    ImageContext,
    OpenAIResponsesOptions,
    OpenAIServerSideTool,
    Prompt,
    PromptCache,
    Reasoning,
    ToolNamespace,
)
from sidestream.providers.openai_responses.provider import PROVIDER

__all__ = [
    "PROVIDER",
    "AccessPrograms",
    "ContextManagement",
    "FunctionOptions",
    "ImageContext",
    "Moderation",
    "OpenAIResponsesOptions",
    "OpenAIServerSideTool",
    "Prompt",
    "PromptCache",
    "Reasoning",
    "ToolNamespace",
]
