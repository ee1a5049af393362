"""The provider under its names, whether or not it is installed as an entry point."""

from sidestream.models import register_provider
from sidestream.providers.google import PROVIDER

register_provider(PROVIDER)
