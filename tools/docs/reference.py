"""Generates the site's reference pages from the code: public names, docstrings, fields and defaults."""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import click
import msgspec

from sidestream import Limits, parts
from sidestream.providers import anthropic, google, openai
from sidestream.tools.server_side import TOOLS

PACKAGES = (
    "sidestream",
    "sidestream.actions",
    "sidestream.durable",
    "sidestream.errors",
    "sidestream.mcp",
    "sidestream.messages",
    "sidestream.parts",
    "sidestream.portable.sandbox",
    "sidestream.prices",
    "sidestream.providers",
    "sidestream.providers.anthropic",
    "sidestream.providers.google",
    "sidestream.providers.openai",
    "sidestream.evidence",
    "sidestream.results",
    "sidestream.server",
    "sidestream.store",
    "sidestream.telemetry",
    "sidestream.testing",
    "sidestream.tools",
    "sidestream.turn",
    "sidestream.wire",
)
OPTIONS = {
    "OpenAI Responses": openai.OpenAIResponsesOptions,
    "OpenAI Responses, one function": openai.OpenAIFunctionOptions,
    "Chat Completions": openai.OpenAIChatOptions,
    "OpenAI, embeddings": openai.OpenAIEmbeddingOptions,
    "Anthropic": anthropic.AnthropicOptions,
    "Anthropic, one function": anthropic.AnthropicFunctionOptions,
    "Google, generateContent": google.GoogleOptions,
    "Google, Interactions": google.GoogleInteractionsOptions,
    "Google, one function": google.GoogleFunctionOptions,
    "Google, embeddings": google.GoogleEmbeddingOptions,
}
"""The providers' options classes, by heading."""

Pages = dict[str, str]


def pages() -> Pages:
    """Return the Markdown of all pages, by path."""
    return {
        **api_pages(),
        "reference/parts.md": parts_page(),
        "reference/tools.md": tools_page(),
        "reference/options.md": options_page(),
        "reference/settings.md": settings_page(),
        "reference/limits.md": limits_page(),
        "reference/errors.md": errors_page(),
        "reference/cli.md": cli_page(),
    }


def api_pages() -> Pages:
    """Return one page per public package, with every name in its `__all__`."""
    found: Pages = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        lines = [f"# `{package}`", "", _first_paragraphs(module.__doc__), ""]
        for name in sorted(module.__all__):
            lines += [f"::: {package}.{name}", ""]
        found[f"reference/api/{package}.md"] = "\n".join(lines)
    return found


def parts_page() -> str:
    """Return the page with every part and its fields."""
    kinds = sorted(parts.StreamPart.__args__, key=_line_of)
    lines = [
        "# Parts",
        "",
        "Every part of the stream, with its fields. [The stream](../stream.md) explains their order.",
        "",
    ]
    for kind in kinds:
        tag = kind.__struct_config__.tag
        lines += [f"## `{tag}`", "", f"`sidestream.parts.{kind.__name__}`. {_doc(kind)}", "", *fields_table(kind), ""]
    return "\n".join(lines)


def tools_page() -> str:
    """Return the page with every server-side tool and its fields."""
    lines = [
        "# Server-side tools",
        "",
        "Every tool config, with its fields. A field left at its default is not sent.",
        "",
    ]
    for key, kind in sorted(TOOLS.items()):
        lines += [
            f"## `{kind.__name__}`",
            "",
            f"On the command line: `{key}`. {_doc(kind)}",
            "",
            *fields_table(kind),
            "",
        ]
    return "\n".join(lines)


def options_page() -> str:
    """Return the page with the options of each provider."""
    lines = [
        "# Options by provider",
        "",
        "`Agent(…, options=…)` takes the options of its provider; so does each call.",
        "",
    ]
    for heading, kind in OPTIONS.items():
        home = ".".join(kind.__module__.split(".")[:3])
        lines += [f"## {heading}", "", f"`{home}.{kind.__name__}`. {_doc(kind)}", "", *fields_table(kind), ""]
    return "\n".join(lines)


def settings_page() -> str:
    """Return the page with the keyword arguments of agents and calls."""
    from sidestream.agent import settings

    sections = {
        "Portable settings": settings.PortableSettings,
        "Of agents and calls": settings.CommonSettings,
        "Of agents": settings.AgentSettings,
        "Of calls": settings.CallSettings,
    }
    lines = ["# Settings", "", "Keyword arguments of `Agent(model, …)`, and of `send`, `stream` and their kin.", ""]
    for heading, kind in sections.items():
        lines += [f"## {heading}", "", _doc(kind), "", *fields_table(kind), ""]
    return "\n".join(lines)


def limits_page() -> str:
    """Return the page with every limit."""
    return "\n".join(["# Limits", "", _doc(Limits), "", *fields_table(Limits), ""])


def errors_page() -> str:
    """Return the page with the tree of errors."""
    module = importlib.import_module("sidestream.errors")
    lines = ["# Errors", "", "```text", *_tree(module.SidestreamError), "```", ""]
    for kind in _subclasses(module.SidestreamError):
        lines += [f"## `{kind.__name__}`", "", _doc(kind), ""]
    return "\n".join(lines)


def cli_page() -> str:
    """Return the page with the help of every command."""
    from sidestream.cli.main import commands

    lines = [
        "# Command line",
        "",
        "What `--help` prints, command by command. [The guide](../cli.md) shows how to use it.",
        "",
    ]
    for path, command in _commands(commands, ("sidestream",)):
        context = click.Context(command, info_name=" ".join(path), max_content_width=100, terminal_width=100)
        lines += [f"## `{' '.join(path)}`", "", "```text", command.get_help(context).rstrip(), "```", ""]
    return "\n".join(lines)


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _commands(found, (*path, name))


SAME_EVERYWHERE = {
    "id": "Id, which all parts of one block or call share.",
    "delta": "Text to append.",
    "name": "Name of the function, or the provider's name of the tool.",
    "tool": "Portable name of the tool, or the function's name.",
    "call_id": "Id of the call.",
    "provider_executed": "Whether the provider runs the tool. False means that it runs here.",
    "provider_metadata": "Provider's own data about the part.",
    "provider": "Provider's name.",
    "mime_type": "Media type.",
    "data": "Bytes.",
    "step": "Number of the step, starting at 0.",
}
"""Meanings of fields that many parts have."""
SAME_IN_TOOLS = {
    "allowed_callers": "Who may call the tool: the model, or its programs.",
    "version": "Version of the provider's tool. None means the newest that the model supports.",
}
"""Meanings of fields that many tools have."""


def fields_table(kind: type[Any]) -> list[str]:
    """Return a table of the fields of a struct or TypedDict, with their types, defaults and meanings.

    Inherited fields of a TypedDict are left out.
    """
    declared = {name: entry for cls in _own_classes(kind) for name, entry in _declared(cls).items()}
    defaults = _defaults(kind)
    same = SAME_EVERYWHERE if issubclass(kind, parts.StreamPart) else SAME_IN_TOOLS
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for name, (annotation, note) in declared.items():
        rows.append(f"| `{name}` | {_code(annotation)} | {defaults.get(name, '')} | {note or same.get(name, '')} |")
    return rows


def _own_classes(kind: type[Any]) -> list[type[Any]]:
    """Return the class and its bases in this package, bases first."""
    return [base for base in reversed(kind.__mro__) if base.__module__.startswith("sidestream")]


def _declared(cls: type[Any]) -> dict[str, tuple[str, str]]:
    """Return the annotation and the docstring of each field, by name."""
    tree = _classes(cls.__module__)[cls.__qualname__]
    found: dict[str, tuple[str, str]] = {}
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) if not (text := ast.unparse(node.annotation)).startswith(
                "ClassVar"
            ):
                found[name] = (re.sub(r"^Annotated\[(.+?), Meta\(.*\)\]", r"\1", text).strip("'"), _note(after))
            case _:
                pass
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes that a module defines at its top level, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _note(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            return " ".join(text.split()).replace("|", "\\|")
        case _:
            return ""


def _defaults(kind: type[Any]) -> dict[str, str]:
    if not issubclass(kind, msgspec.Struct):
        return {}
    return {entry.name: "required" if entry.required else _default(entry) for entry in msgspec.structs.fields(kind)}


def _default(entry: Any) -> str:
    value = entry.default_factory() if entry.default is msgspec.NODEFAULT else entry.default
    return f"`{value!r}`"


def _code(text: str) -> str:
    return " or ".join(f"`{entry}`" for entry in text.split(" | ")) if text else ""


def _doc(kind: Any) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _first_paragraphs(text: str | None) -> str:
    return inspect.cleandoc(text or "").partition("\n\n    ")[0]


def _line_of(kind: type[Any]) -> int:
    return _classes(kind.__module__)[kind.__qualname__].lineno


def _subclasses(kind: type[Any]) -> Iterable[type[Any]]:
    yield kind
    for child in sorted(kind.__subclasses__(), key=lambda child: child.__name__):
        if child.__module__.startswith("sidestream") and not child.__name__.startswith("_"):
            yield from _subclasses(child)


def _tree(kind: type[Any], depth: int = 0) -> Iterable[str]:
    yield "    " * depth + kind.__name__
    for child in sorted(kind.__subclasses__(), key=lambda child: child.__name__):
        if child.__module__.startswith("sidestream") and not child.__name__.startswith("_"):
            yield from _tree(child, depth + 1)
