"""Imports on first use, for public names of packages and for libraries with their own threads."""

import atexit
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

THREADS_END_S = 0.1
"""Time that a library's threads get at the end of the program, in seconds."""


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package. `homes` maps modules to their public names.

    Type checkers cannot evaluate the table, so the package's `__init__.pyi` repeats it as imports, and
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

    return names, load, lambda: names


@cache
def outlast_threads() -> None:
    """Let the threads of a library written in Rust finish before the interpreter exits. Call it with the import.

    Such a thread takes the GIL to release objects just after the program has its result. Before Python 3.14, doing
    that while the interpreter exits aborts the process.
    """
    if sys.version_info < (3, 14):
        atexit.register(time.sleep, THREADS_END_S)
