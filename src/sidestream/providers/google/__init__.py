"""Google Gemini: generateContent and the Interactions API."""

from sidestream.providers.google.embeddings import GoogleEmbeddingOptions
from sidestream.providers.google.interactions.options import (
    Environment,
    EnvironmentSource,
    GoogleInteractionsOptions,
)
from sidestream.providers.google.options import (
    FunctionOptions,
    GoogleComputerUse,
    GoogleFileSearch,
    GoogleMaps,
    GoogleOptions,
    GoogleSearch,
    GoogleServerSideTool,
    ImageOutput,
    SafetySetting,
    Thinking,
)
from sidestream.providers.google.provider import PROVIDER

__all__ = [
    "PROVIDER",
    "Environment",
    "EnvironmentSource",
    "FunctionOptions",
    "GoogleComputerUse",
    "GoogleEmbeddingOptions",
    "GoogleFileSearch",
    "GoogleInteractionsOptions",
    "GoogleMaps",
    "GoogleOptions",
    "GoogleSearch",
    "GoogleServerSideTool",
    "ImageOutput",
    "SafetySetting",
    "Thinking",
]
