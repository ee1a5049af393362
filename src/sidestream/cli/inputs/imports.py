"""Import of the user's Python objects, by `module:name`, or all functions of a file or of given code."""

import difflib
import importlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sidestream.cli.display.screen import one_line
from sidestream.errors import ConfigurationError
from sidestream.tools.tool import Tool

if TYPE_CHECKING:
    from sidestream.agent.agent import Agent

_CODE = re.compile(r"^\s*(?:(?:async\s+def|def|from|import)\s+\w|@\w)|\n")
"""Matches Python code, as opposed to a path."""
NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def import_object(name: str) -> Any:
    """Import `module:name`, also from the current folder. Raises ConfigurationError if that fails."""
    module_name, _, path = name.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # Console scripts do not search the current folder.
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise _import_error(name, error) from error
    for part in path.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [other for other in dir(found) if other[0] != "_"], n=1)
            hint = f"; did you mean {module_name}:{near[0]}?" if near else ""
            raise ConfigurationError(f"{module_name} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def import_agent(name: str) -> "Agent[Any]":
    """Import the agent `module:name`. Raises ConfigurationError if it is not an Agent."""
    from sidestream.agent.agent import Agent

    found = import_object(name)
    if not isinstance(found, Agent):
        raise ConfigurationError(f"--agent: {name} is {type(found).__name__}, not an Agent")
    return found  # pyright: ignore[reportUnknownVariableType]


def import_functions(source: str) -> list[Tool | Callable[..., Any]]:
    """Import the public functions and tools of a Python file, or of Python code.

    Raises ConfigurationError if there are none.
    """
    is_code = _CODE.search(source) is not None
    path = "--functions" if is_code else source
    module = _run_code(source) if is_code else _load(source)
    found: list[Tool | Callable[..., Any]] = [
        value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Tool) or (inspect.isfunction(value) and value.__module__ == module.__name__))
    ]
    if not found:
        raise ConfigurationError(f"{path} defines no function that a model could call; private names are skipped")
    return found


def _run_code(code: str) -> ModuleType:
    name = f"sidestream_functions_{len(sys.modules)}"
    module = sys.modules[name] = ModuleType(name)
    # Without its lines, neither a traceback nor `inspect` could show the code.
    linecache.cache[f"<{name}>"] = (len(code), None, code.splitlines(keepends=True), f"<{name}>")
    try:
        exec(compile(code, f"<{name}>", "exec"), vars(module))
    except Exception as error:
        raise _import_error("--functions", error) from error
    return module


def _load(path: str) -> ModuleType:
    name = f"sidestream_functions_{re.sub(r'[^a-zA-Z0-9]', '_', path)}"
    spec = importlib.util.spec_from_file_location(name, os.path.expanduser(path))
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses and annotations look the module up.
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:
        raise _import_error(path, error) from error
    return module


def _import_error(name: str, error: Exception) -> ConfigurationError:
    if isinstance(error, ModuleNotFoundError) and error.name and name.startswith(error.name):
        return ConfigurationError(f"no module {error.name!r}: is it in this folder, or installed?")
    what = one_line(f"{type(error).__name__}: {error}", 400)
    return ConfigurationError(f"{name} could not be imported: {what} (--debug shows where)")
