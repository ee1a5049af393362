"""Generate the tables of docs/providers.md from the providers' own data.

`python tools/docs/provider_matrix.py` prints them; with `--write` it updates the page.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from sidestream import MissingKeyError
from sidestream.portable.here import DELEGATION, MODULES
from sidestream.portable.where import is_there, place_of
from sidestream.providers import Capabilities, ModelSettings, Provider, Settings, caps_of, find_provider, providers
from sidestream.providers.anthropic.clouds import HOSTS
from sidestream.providers.capabilities import instead_of
from sidestream.providers.openai import responses
from sidestream.providers.openai.chat import PRESETS
from sidestream.providers.shared.settings_mapping import PORTABLE
from sidestream.tools.server_side import TOOLS, ServerSideTool

PAGE = Path(__file__).resolve().parents[2] / "docs" / "providers.md"
COLUMNS = {
    "`openai-responses`": ("openai-responses", ""),
    "`openai`": ("openai", ""),
    "`anthropic`": ("anthropic", ""),
    "`google`": ("google", ""),
    "`google:interactions/…`": ("google", "interactions/"),
    "`xai`": ("xai", ""),
    "`local`": ("local", ""),
    "presets": (PRESETS[0].name, ""),
}
"""Provider and model name prefix, by column heading."""
LABELS = {
    "streaming": "streaming",
    "client_tools": "your functions as tools",
    "parallel_tool_calls": "parallel tool calls",
    "typed_output": "typed output",
    "typed_output_with_tools": "typed output with tools",
    "images_in": "image input",
    "documents_in": "document (PDF) input",
    "audio_in": "audio input",
    "thinking": "reasoning shown",
    "server_sessions": "sessions on the server",
    "background": "background responses",
    "embeddings": "embeddings",
    "media": "file generation",
    "list_models": "model listing",
}
"""Labels in the table, by capability."""
MAIN = ("openai-responses", "openai", "anthropic", "google", "xai", "local")
_URL = re.compile(r"https://[^\s),]+")


def capabilities() -> str:
    """Return the table of what each API supports. A number refers to a note on what happens instead."""
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


def settings() -> str:
    """Return the table of the portable settings that each API supports."""
    rows = ["| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    caps = [caps_of(find_provider(name), model) for name, model in COLUMNS.values()]
    rows += [
        f"| `{name}` | " + " | ".join("yes" if name in entry.settings else "" for entry in caps) + " |"
        for name in ModelSettings.__struct_fields__
        if name in PORTABLE
    ]
    return "\n".join([*rows, ""])


def server_side_tools() -> str:
    """Return the table of where each portable server-side tool runs, by provider."""
    notes: list[str] = []
    rows = ["| tool | " + " | ".join(f"`{name}`" for name in MAIN) + " |", "|---" * (len(MAIN) + 1) + "|"]
    for tool in sorted(TOOLS.values(), key=lambda tool: tool.__name__):
        cells = [_place(tool, find_provider(name), notes) for name in MAIN]
        rows.append(f"| `{tool.__name__}` | " + " | ".join(cells) + " |")
    numbered = [f"{number}. {note[0].upper()}{note[1:]}." for number, note in enumerate(notes, start=1)]
    return "\n".join([*rows, "", *numbered, ""])


def _place(tool: type[ServerSideTool], provider: Provider, notes: list[str]) -> str:
    if tool in provider.server_side_tools:
        return "hosted"
    if MODULES.get(tool.key) == DELEGATION:
        return "by delegation"
    place = place_of(tool, ())
    if is_there(place):
        return place
    if place not in notes:
        notes.append(place)
    return f"no ({notes.index(place) + 1})"


def keys() -> str:
    """Return the table of API keys and base URLs."""
    rows = ["| provider | key | where to get one | base URL | variable |", "|---|---|---|---|---|"]
    names = dict.fromkeys([*MAIN, *(host.name for host in (*HOSTS, *responses.PRESETS, *PRESETS))])
    assert {*names, "replay"} == providers().keys()
    return "\n".join([*rows, *(_key_row(find_provider(name)) for name in names), ""])


def _key_row(provider: Provider) -> str:
    called = ", ".join(f"`{name}`" for name in (provider.name, *provider.aliases))
    variables: tuple[str, ...] = getattr(provider, "key_variables", ())
    credentials: str = getattr(provider, "credentials", "")
    key = " or ".join([*(f"`{variable}`" for variable in variables), *filter(None, [credentials])]) or "none"
    declared: Mapping[str, str] = getattr(provider, "base_urls", {})
    variable = next(iter(declared), None)
    return f"| {called} | {key} | {_where(provider)} | {_base_url(provider)} | {f'`{variable}`' if variable else ''} |"


def _where(provider: Provider) -> str:
    """Return the URL at which keys are created, or the one in the error for a missing key."""
    if hasattr(provider, "keys_at"):
        return f"<{provider.keys_at}>" if provider.keys_at else ""
    try:
        _plain(lambda: provider.chat_model(_any_model(provider), Settings()))
    except MissingKeyError as error:
        found = _URL.search(str(error))
        return f"<{found[0]}>" if found else ""
    return ""


def _base_url(provider: Provider) -> str:
    if provider.name == "local":
        return "this machine"
    template: str = getattr(provider, "base_url", "")
    if "{" in template:
        return f"`{re.sub(r'[|][^}]*', '', template)}`"
    model = _plain(lambda: provider.chat_model(_any_model(provider), Settings(auth=dict)))
    return f"`{model.base_url}`"  # type: ignore[attr-defined]


def _any_model(provider: Provider) -> str:
    return provider.default_models.get("chat", "model")


def _plain(make: Callable[[], object]) -> object:
    """Return the result of `make` without this machine's settings."""
    kept = dict(os.environ)
    for name in [name for name in kept if name.endswith(("_API_KEY", "_AUTH_TOKEN", "_BASE_URL", "_API_VERSION"))]:
        del os.environ[name]
    try:
        return make()
    finally:
        os.environ.update(kept)


TABLES = {"capabilities": capabilities, "settings": settings, "server-side-tools": server_side_tools, "keys": keys}


def filled(page: str) -> str:
    """Return the page with its tables regenerated, each between its two markers."""
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
