"""The `sidestream tools` command, which shows where a model's server-side tools run."""

import sys

import click

from sidestream.cli import exit_codes, key_file
from sidestream.cli.display.screen import one_line, write
from sidestream.cli.inputs.options import MODEL


@click.command()
@click.option("-m", "--model", type=MODEL, metavar="MODEL", help="Model to check. Defaults to the default model.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
def tools(model: str | None, as_json: bool) -> int:
    """Show where each server-side tool runs.

    At the provider (hosted), on this machine (here), or by another model. For a tool that needs something first, an
    engine or a package, the line says what.
    """
    from sidestream.cli.inputs.default_model import default_model
    from sidestream.jsontext import dumps
    from sidestream.portable.where import HERE, is_there, missing_here, places
    from sidestream.tools.server_side import TOOLS

    key_file.load()
    name = model or default_model()
    found = places(_hosted_by(name))
    missing = {key: lack for key, place in found.items() if place == HERE and (lack := missing_here(TOOLS[key]))}
    if as_json:
        write(sys.stdout, f"{dumps({'model': name, 'tools': found, 'missing': missing}).decode()}\n")
        return exit_codes.OK
    write(sys.stdout, f"{name}\n")
    width = max(map(len, found))
    for key, place in found.items():
        shown = place if is_there(place) else f"no: {place}"
        shown = f"not yet: {missing[key]}" if key in missing else shown
        write(sys.stdout, f"  {key:<{width}}  {one_line(shown)}\n")
    return exit_codes.OK


def _hosted_by(name: str) -> "frozenset[type]":
    from sidestream.errors import ConfigurationError
    from sidestream.providers.protocol import HostsTools, Settings
    from sidestream.providers.registry import ModelString, find_provider

    parsed = ModelString.parse(name)
    provider = find_provider(parsed.provider)
    chat = parsed.models.get("chat") or provider.default_models.get("chat", "")
    try:
        model = provider.chat_model(chat, Settings(auth=dict))
    except ConfigurationError:  # a variable for the URL is not set, which does not matter here
        return provider.server_side_tools
    return frozenset(model.hosted_tools if isinstance(model, HostsTools) else provider.server_side_tools)
