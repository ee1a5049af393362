"""The provider under its names, whether or not it is installed as an entry point."""

from sidestream.providers.google import PROVIDER
from sidestream.providers.registry import register_provider

register_provider(PROVIDER)
