"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.telemetry.settings import Telemetry as Telemetry
