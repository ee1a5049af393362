"""OpenAI's Chat Completions, and the many servers that speak them."""

from sidestream.providers.openai.chat.options import AudioOutput, ChatPromptCache, OpenAIChatOptions
from sidestream.providers.openai.chat.presets import PRESETS, PROVIDER

__all__ = ["PRESETS", "PROVIDER", "AudioOutput", "ChatPromptCache", "OpenAIChatOptions"]
