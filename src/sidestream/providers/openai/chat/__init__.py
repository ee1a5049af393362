"""OpenAI's Chat Completions API, and compatible servers."""

from sidestream.providers.openai.chat.options import AudioOutput, ChatPromptCache, OpenAIChatOptions
from sidestream.providers.openai.chat.presets import PRESETS, PROVIDER

__all__ = ["PRESETS", "PROVIDER", "AudioOutput", "ChatPromptCache", "OpenAIChatOptions"]
