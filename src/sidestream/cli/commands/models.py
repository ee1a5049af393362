"""The `sidestream models` commands, `sidestream tools` with what models host, and `sidestream completion`."""

import sys
from typing import TYPE_CHECKING, Any

import click

from sidestream.cli import exit_codes, key_file
from sidestream.cli.inputs.options import MODEL

if TYPE_CHECKING:
    from sidestream.providers.protocol import ModelInfo
    from sidestream.providers.registry import ProviderInfo

VARIABLE = "_SIDESTREAM_COMPLETE"
"""Variable with which the script requests completions, by click's convention."""


@click.group(invoke_without_command=True)
@click.option("-m", "--model", "provider", type=MODEL, metavar="PROVIDER", help="List the models of this provider.")
@click.option("--base-url", metavar="URL", help="Base URL of the provider's API.")
@click.option("--json", "as_json", is_flag=True, help="Print each entry as a line of JSON.")
@click.pass_context
def models(ctx: click.Context, provider: str | None, base_url: str | None, as_json: bool) -> Any:
    """List providers and models, set the default model and aliases.

    Without a command, it lists the providers, or with -m the models of one.
    """
    if ctx.invoked_subcommand is not None:
        return None
    return ctx.invoke(list_all, provider=provider, base_url=base_url, as_json=as_json)


@models.command("list")
@click.argument("provider", type=MODEL, required=False)
@click.option("--base-url", metavar="URL", help="Base URL of the provider's API.")
@click.option("--json", "as_json", is_flag=True, help="Print each entry as a line of JSON.")
def list_all(provider: str | None = None, base_url: str | None = None, as_json: bool = False) -> int:
    """List the providers, or the models of PROVIDER."""
    from sidestream.cli import key_file

    key_file.load()
    if provider is None:
        _list_providers(as_json)
    else:
        _list_models(provider, base_url, as_json)
    return exit_codes.OK


@models.command("default")
@click.argument("model", type=MODEL, required=False)
@click.option("--clear", is_flag=True, help="Clear the default.")
def default(model: str | None, clear: bool) -> int:
    """Set the default model to MODEL. Without MODEL, print it."""
    from sidestream.cli import key_file, preferences
    from sidestream.cli.inputs.default_model import check_model, chosen_model

    key_file.load()
    if clear:
        preferences.change(model=None)
    elif model is not None:
        check_model(model)
        preferences.change(model=model)
        click.echo(f"default model: {model}", err=True)
        return exit_codes.OK
    chosen = chosen_model()
    click.echo(chosen.name)
    if chosen.reason is not None:
        click.echo(f"not set; {chosen.reason}", err=True)
    return exit_codes.OK


@models.command("options")
@click.argument("model", type=MODEL, required=False)
def list_options(model: str | None) -> int:
    """List what -o can set for MODEL: portable settings, then its provider's own options."""
    from sidestream.cli import key_file
    from sidestream.cli.display.screen import write
    from sidestream.cli.inputs.default_model import check_model, default_model
    from sidestream.cli.inputs.field_values import described_options

    key_file.load()
    name = model or default_model()
    check_model(name)
    for title, rows in described_options(name):
        write(sys.stdout, f"{title}\n")
        width = max(map(len, rows), default=0)
        for name, option in rows.items():
            write(sys.stdout, f"  {name:<{width}}  {option.values}\n")
            if option.description:
                write(sys.stdout, f"  {'':<{width}}  {option.description}\n")
    return exit_codes.OK


@models.group("alias", invoke_without_command=True)
@click.pass_context
def alias(ctx: click.Context) -> Any:
    """Manage aliases for models.

    `sidestream models alias add fast google:gemini-flash-latest` adds one. Use it as `-m fast`, or wherever else you
    name a model.
    """
    return ctx.invoke(list_aliases) if ctx.invoked_subcommand is None else None


@alias.command("list")
def list_aliases() -> int:
    """List the aliases."""
    from sidestream.cli import preferences
    from sidestream.cli.display.screen import write

    aliases = preferences.load().aliases
    width = max(map(len, aliases), default=0)
    for name, model in sorted(aliases.items()):
        write(sys.stdout, f"{name:<{width}}  {model}\n")
    if not aliases:
        click.echo("No aliases yet. Add one with: sidestream models alias add NAME MODEL", err=True)
    return exit_codes.OK


@alias.command("add")
@click.argument("name")
@click.argument("model", type=MODEL)
def add_alias(name: str, model: str) -> int:
    """Make NAME an alias for MODEL, replacing an existing alias."""
    from sidestream.cli.inputs import default_model as model_aliases

    click.echo(f"{name} is {model_aliases.add(name, model)}", err=True)
    return exit_codes.OK


@alias.command("remove")
@click.argument("name")
def remove_alias(name: str) -> int:
    """Remove the alias NAME."""
    from sidestream.cli.inputs import default_model as model_aliases

    model_aliases.remove(name)
    click.echo(f"{name} removed", err=True)
    return exit_codes.OK


def _list_providers(as_json: bool) -> None:
    from sidestream.cli.display.screen import write
    from sidestream.providers.registry import installed_providers

    installed = installed_providers()
    if as_json:
        _print_json(installed)
        return
    for provider in installed:
        names = ", ".join(f"{kind} {name}" for kind, name in provider.default_models.items())
        write(sys.stdout, f"{provider.name}: {provider.display_name}\n")
        write(sys.stdout, f"  models: {names or 'no default; use -m ' + provider.name + ':NAME'}\n")
        write(sys.stdout, f"  key: {_key_status(provider)}\n")
        if provider.server_side_tools:
            write(sys.stdout, f"  tools: {', '.join(provider.server_side_tools)}\n")


def _key_status(provider: "ProviderInfo") -> str:
    keys = f"{' or '.join(provider.key_variables)} {'is set' if provider.has_key else 'is not set'}"
    found = [keys] if provider.key_variables else []
    if provider.credentials:
        found.append(f"{provider.credentials} work too" if found else provider.credentials)
    found += [f"{variable} is not set" for variable in provider.missing_variables]
    return "; ".join(found) or "none needed"


def _list_models(name: str, base_url: str | None, as_json: bool) -> None:
    from sidestream.agent.agent import Agent
    from sidestream.cli.display.screen import one_line, write
    from sidestream.cli.inputs.default_model import check_model
    from sidestream.cli.interrupts import run_async

    check_model(name)
    agent = Agent(name, base_url=base_url)

    async def work() -> "list[ModelInfo]":
        async with agent:
            return await agent.list_models()

    found = run_async(work())
    if as_json:
        _print_json(found)
        return
    width = max((len(info.name) for info in found), default=0)
    for info in found:
        write(sys.stdout, f"{one_line(info.name):<{width}}  {one_line(_description(info))}".rstrip() + "\n")


def _description(info: "ModelInfo") -> str:
    limits = [
        f"{count:,} tokens {direction}"
        for count, direction in ((info.max_input_tokens, "in"), (info.max_output_tokens, "out"))
        if count is not None
    ]
    title = [info.display_name] if info.display_name and info.display_name != info.name else []
    return "; ".join([", ".join(info.kinds), *limits, *title])


def _print_json(values: "list[ProviderInfo] | list[ModelInfo]") -> None:
    from sidestream import jsontext
    from sidestream.cli.display.screen import write

    for value in values:
        write(sys.stdout.buffer, jsontext.dumps(value) + b"\n")


@click.command()
@click.option("-m", "--model", type=MODEL, metavar="MODEL", help="Model to check. Defaults to the default model.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
def tools(model: str | None, as_json: bool) -> int:
    """Show where each server-side tool runs.

    At the provider (hosted), on this machine (here), or by another model. For a tool that needs something first, an
    engine or a package, the line says what.
    """
    from sidestream.cli.display.screen import one_line, write
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


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print a shell's completion script.

    \b
    bash:  source <(sidestream completion bash)        in ~/.bashrc
    zsh:   source <(sidestream completion zsh)         in ~/.zshrc
    fish:  sidestream completion fish > ~/.config/fish/completions/sidestream.fish
    """  # noqa: D301 - click needs the backspace
    from click.shell_completion import get_completion_class

    from sidestream.cli.display.screen import write

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "sidestream", VARIABLE)
    # Not `source()`, which starts bash to check its version: another shell may install the script.
    write(sys.stdout, script.source_template % script.source_vars() + "\n")
    return exit_codes.OK
