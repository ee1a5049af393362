"""Conversion of a function's signature and docstring to a tool's description and schema.

pydantic and griffe are loaded when the first function is read, not when this module is imported.
"""

import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Container
from pathlib import PurePath
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.tools.arguments import (
    ArgumentBinder,
    ArgumentBinding,
    Parameter,
    arguments_model,
    fits_strict,
    make_strict,
)
from sidestream.tools.context import ToolContext


def parse_docstring(text: str, names: Container[str]) -> tuple[str, dict[str, str]]:
    """Return the description of a tool and those of its parameters.

    Uses the docstring style that documents most of the names. Sections about results, exceptions and examples are left
    out, since they are for programmers.
    """
    import griffe

    best: tuple[int, str, dict[str, str]] = (-1, text, {})
    styles: tuple[Literal["google", "numpy", "sphinx"], ...] = ("google", "numpy", "sphinx")
    for style in styles:
        sections = griffe.Docstring(text, lineno=1).parse(style, warnings=False)
        prose: list[str] = []
        documented: dict[str, str] = {}
        for section in sections:
            if isinstance(section, griffe.DocstringSectionText):
                prose.append(section.value)
            elif isinstance(section, griffe.DocstringSectionAdmonition):
                prose.append(f"{section.title}:\n{section.value.description}")
            elif isinstance(section, griffe.DocstringSectionParameters):
                documented |= {item.name: item.description for item in section.value if item.name in names}
        score = 2 * len(documented) + (len(sections) > 1)
        if score > best[0]:
            best = (score, "\n\n".join(filter(None, prose)), documented)
    return best[1], best[2]


class FunctionSchema(Struct, frozen=True):
    """A function as a model sees it, and the conversion of the model's arguments to the function's."""

    description: str
    parameters: JsonObject
    strict: bool
    bind: ArgumentBinder


def read_function(function: Callable[..., Any], label: str, strict: bool | None) -> FunctionSchema:
    """Read a function's signature and docstring.

    Raises ConfigurationError, naming the parameter at fault, if the function cannot be a tool.
    """
    hints = _signature(function, label)
    contexts = [name for name, (annotation, _) in hints.items() if _is_context(annotation)]
    described = {name: hint for name, hint in hints.items() if name not in contexts}
    description, documented = parse_docstring(_docstring(function), described)
    parameters = [
        Parameter(name, annotation, default, _annotated_text(annotation) or documented.get(name))
        for name, (annotation, default) in described.items()
    ]
    model, schema = arguments_model(parameters, label)
    is_strict = fits_strict(schema) if strict is None else strict
    if is_strict:
        make_strict(schema, label)
    return FunctionSchema(description, schema, is_strict, ArgumentBinding(model, schema, parameters, contexts, label))


def implementation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Unwrap partials and return the function, method or callable object."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def origin_of(function: Callable[..., Any]) -> list[str]:
    """Return the module and name of a callable, and the paths bound by partials.

    The result is the same whether the module is imported or run as the main program.
    """
    target = implementation(function)
    named = target if hasattr(target, "__qualname__") else type(target)
    module = str(named.__module__)
    if module == "__main__":
        program = sys.modules.get("__main__")
        spec, path = getattr(program, "__spec__", None), getattr(program, "__file__", None) or module
        module = spec.name if spec is not None else os.path.splitext(os.path.basename(path))[0]
    origin = [module, str(named.__qualname__)]
    while isinstance(function, functools.partial):
        bound = cast("functools.partial[Any]", function)
        # Other values may be secrets, or differ from call to call.
        values = [*enumerate(bound.args), *sorted(bound.keywords.items())]
        origin += [f"{name}={value}" for name, value in values if isinstance(value, PurePath)]
        function = bound.func
    return origin


def routine_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function or method that runs when the callable is called."""
    target = implementation(function)
    return target if inspect.isroutine(target) else type(target).__call__


def _signature(function: Callable[..., Any], label: str) -> dict[str, tuple[Any, Any]]:
    bound = _bound_names(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(f"{label} has no readable signature: wrap it in a function") from error
    found: dict[str, tuple[Any, Any]] = {}
    for index, parameter in enumerate(signature.parameters.values()):
        if parameter.name in bound:
            continue
        where = f"{label}: parameter {parameter.name!r}"
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigurationError(f"{where} is positional-only, but arguments are passed by name: remove the '/'")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(f"{where} has no names that a model could use: declare a list or a dict instead")
        if index == 0 and parameter.name in ("self", "cls") and parameter.annotation is parameter.empty:
            raise ConfigurationError(f"{where} is not bound: create the tool from a bound method")
        found[parameter.name] = (_resolve(function, parameter, where), parameter.default)
    return found


def _bound_names(function: Callable[..., Any]) -> Container[str]:
    """Return the names that a partial binds.

    The model must neither see nor set them, since they may be secrets.
    """
    return cast("functools.partial[Any]", function).keywords if isinstance(function, functools.partial) else ()


def _resolve(function: Callable[..., Any], parameter: inspect.Parameter, where: str) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    scope = getattr(inspect.unwrap(routine_of(function)), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        try:
            hints = typing.get_type_hints(holder, globalns=scope, include_extras=True)
        except NameError:
            # The type is local to the function that creates the tool, or ToolContext is imported for type checkers
            # only.
            scope = {"ToolContext": ToolContext, **_caller_locals(), **scope}
            hints = typing.get_type_hints(holder, globalns=scope, include_extras=True)
    except Exception as error:
        raise ConfigurationError(f"{where} has a type that cannot be resolved: {error}") from error
    return hints[parameter.name]


def _caller_locals() -> dict[str, Any]:
    frame = inspect.currentframe()
    package = __name__.partition(".")[0]
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}


def _is_context(annotation: Any) -> bool:
    if get_origin(annotation) in (Annotated, typing.Union, types.UnionType):
        return any(_is_context(argument) for argument in get_args(annotation))
    return annotation is ToolContext or get_origin(annotation) is ToolContext


def _annotated_text(annotation: Any) -> str | None:
    if get_origin(annotation) is not Annotated:
        return None
    return next((note for note in annotation.__metadata__ if isinstance(note, str)), None)


def _docstring(function: Callable[..., Any]) -> str:
    target = implementation(function)
    if inspect.isroutine(target):
        return inspect.getdoc(target) or ""
    return inspect.cleandoc(type(target).__call__.__doc__ or type(target).__doc__ or "")
