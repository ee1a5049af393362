"""Packages whose public names are imported on first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package. `homes` maps modules to their public names.

    Type checkers cannot evaluate the table: a package repeats it as imports under `TYPE_CHECKING`, and
    tests/test_public_surface.py compares the two.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    names = sorted(home_of)
    module = sys.modules[package]

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"sidestream.{home}"), name)
        setattr(module, name, value)
        return value

    return names, load, lambda: sorted({*vars(module), *names})
