"""Google Gemini: generateContent and the Interactions API."""

from sidestream.providers.google.embeddings import GoogleEmbeddingOptions
from sidestream.providers.google.interactions.credentials import (
    GoogleBearerCredential,
    GoogleOAuthCredential,
    GoogleVariableCredential,
    read_credential,
    read_credentials,
)
from sidestream.providers.google.interactions.options import (
    GoogleAllowedDomain,
    GoogleEnvironment,
    GoogleEnvironmentSource,
    GoogleInteractionsOptions,
)
from sidestream.providers.google.options import (
    GoogleComputerUse,
    GoogleFileSearch,
    GoogleFunctionOptions,
    GoogleImageOutput,
    GoogleMaps,
    GoogleOptions,
    GoogleSafetySetting,
    GoogleSearch,
    GoogleServerSideTool,
    GoogleThinking,
)
from sidestream.providers.google.provider import PROVIDER

__all__ = [
    "PROVIDER",
    "GoogleAllowedDomain",
    "GoogleBearerCredential",
    "GoogleComputerUse",
    "GoogleEmbeddingOptions",
    "GoogleEnvironment",
    "GoogleEnvironmentSource",
    "GoogleFileSearch",
    "GoogleFunctionOptions",
    "GoogleImageOutput",
    "GoogleInteractionsOptions",
    "GoogleMaps",
    "GoogleOAuthCredential",
    "GoogleOptions",
    "GoogleSafetySetting",
    "GoogleSearch",
    "GoogleServerSideTool",
    "GoogleThinking",
    "GoogleVariableCredential",
    "read_credential",
    "read_credentials",
]
