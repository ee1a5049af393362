"""Prints the tables of docs/providers.md, from what the providers say of themselves.

Run: `python docs/provider_matrix.py` prints them; with `--write` it puts them into the page.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from sidestream.errors import MissingKeyError
from sidestream.providers.capabilities import Capabilities, caps_of, instead_of
from sidestream.providers.openai_chat import PRESETS
from sidestream.providers.protocol import Provider, Settings
from sidestream.providers.registry import find_provider, providers

PAGE = Path(__file__).with_name("providers.md")
COLUMNS = {
    "`openai-responses`": ("openai-responses", ""),
    "`openai`": ("openai", ""),
    "`anthropic`": ("anthropic", ""),
    "`google`": ("google", ""),
    "`google:interactions/…`": ("google", "interactions/"),
    "`local`": ("local", ""),
    "presets": (PRESETS[0].name, ""),
}
"""Heading → provider and the beginning of a model's name."""
LABELS = {
    "streaming": "streaming",
    "client_tools": "your functions as tools",
    "parallel_tool_calls": "several calls at once",
    "typed_output": "typed output",
    "typed_output_with_tools": "typed output beside tools",
    "images_in": "images in",
    "documents_in": "documents (PDF) in",
    "audio_in": "audio in",
    "thinking": "thinking shown",
    "server_sessions": "server keeps the conversation",
    "background": "background",
    "embeddings": "embeddings",
    "media": "files made to order",
    "list_models": "list of models",
}
"""Capability → how the table calls it."""
MAIN = ("openai-responses", "openai", "anthropic", "google", "local")
BASE_URL_VARIABLES = {
    "openai-responses": "OPENAI_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
}
_URL = re.compile(r"https://[^\s),]+")


def capabilities() -> str:
    """What each API takes and gives; a number points to what happens instead."""
    notes: list[str] = []
    rows = ["| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    caps = [caps_of(find_provider(name), model) for name, model in COLUMNS.values()]
    for field, label in LABELS.items():
        rows.append(f"| {label} | " + " | ".join(_cell(entry, field, notes) for entry in caps) + " |")
    numbered = [f"{number}. {note[0].upper()}{note[1:]}." for number, note in enumerate(notes, start=1)]
    return "\n".join([*rows, "", *numbered, ""])


def _cell(caps: Capabilities, field: str, notes: list[str]) -> str:
    value = getattr(caps, field)
    if value not in (False, "none"):
        return "yes" if value is True else str(value)
    note = instead_of(caps, field)
    if note is None:
        return "no"
    if note not in notes:
        notes.append(note)
    return f"no ({notes.index(note) + 1})"


def hosted() -> str:
    """Which server-side tools each provider hosts."""
    hosts = [name for name in MAIN if find_provider(name).server_side_tools]
    tools = sorted(
        {tool for name in hosts for tool in find_provider(name).server_side_tools}, key=lambda tool: tool.__name__
    )
    rows = ["| tool | " + " | ".join(f"`{name}`" for name in hosts) + " |", "|---" * (len(hosts) + 1) + "|"]
    for tool in tools:
        marks = ["yes" if tool in find_provider(name).server_side_tools else "" for name in hosts]
        rows.append(f"| `{tool.__name__}` | " + " | ".join(marks) + " |")
    return "\n".join([*rows, ""])


def keys() -> str:
    """How each provider is reached."""
    rows = ["| provider | key | where to get one | base URL | its variable |", "|---|---|---|---|---|"]
    names = [*MAIN, *(preset.name for preset in PRESETS)]
    assert {*names, "replay"} == providers().keys()
    return "\n".join([*rows, *(_key_row(find_provider(name)) for name in names), ""])


def _key_row(provider: Provider) -> str:
    called = ", ".join(f"`{name}`" for name in (provider.name, *provider.aliases))
    variables: tuple[str, ...] = getattr(provider, "key_variables", ())
    key = " or ".join(f"`{variable}`" for variable in variables) or "none"
    variable = BASE_URL_VARIABLES.get(provider.name)
    return f"| {called} | {key} | {_where(provider)} | {_base_url(provider)} | {f'`{variable}`' if variable else ''} |"


def _where(provider: Provider) -> str:
    """The address that the error names where there is no key."""
    try:
        _plain(lambda: provider.chat_model(_any_model(provider), Settings()))
    except MissingKeyError as error:
        found = _URL.search(str(error))
        return f"<{found[0]}>" if found else ""
    return ""


def _base_url(provider: Provider) -> str:
    if provider.name == "local":
        return "this machine"
    model = _plain(lambda: provider.chat_model(_any_model(provider), Settings(auth=dict)))
    return f"`{model.base_url}`"  # type: ignore[attr-defined]


def _any_model(provider: Provider) -> str:
    return provider.default_models.get("chat", "model")


def _plain(make: Callable[[], object]) -> object:
    """What is made without the settings of this machine."""
    kept = dict(os.environ)
    for name in [name for name in kept if name.endswith(("_API_KEY", "_AUTH_TOKEN", "_BASE_URL", "_API_VERSION"))]:
        del os.environ[name]
    try:
        return make()
    finally:
        os.environ.update(kept)


TABLES = {"capabilities": capabilities, "hosted": hosted, "keys": keys}


def filled(page: str) -> str:
    """The page with its tables made anew, each between its two marks."""
    for name, table in TABLES.items():
        before, rest = page.split(f"<!-- {name} -->\n")
        after = rest.split(f"<!-- /{name} -->")[1]
        page = f"{before}<!-- {name} -->\n{table()}<!-- /{name} -->{after}"
    return page


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
    else:
        print("\n".join(table() for table in TABLES.values()), end="")
