"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.server.app import create_app as create_app
from sidestream.server.settings import Caps as Caps, Page as Page, ServerSettings as ServerSettings
