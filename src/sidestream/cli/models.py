"""`sidestream models`: lists the providers, or the models of one."""

import sys
from typing import TYPE_CHECKING

import click

from sidestream.cli import exit_codes, key_file
from sidestream.cli.terminal import one_line, write

if TYPE_CHECKING:
    from sidestream.providers.installed import ProviderInfo
    from sidestream.providers.protocol import ModelInfo


@click.command()
@click.option("-m", "--model", "provider", metavar="PROVIDER", help="List the models of this provider.")
@click.option("--base-url", metavar="URL", help="Base URL of the provider's API.")
@click.option("--json", "as_json", is_flag=True, help="Print each entry as a line of JSON.")
def models(provider: str | None, base_url: str | None, as_json: bool) -> int:
    """List the providers, or the models of one with -m."""
    key_file.load()
    if provider is None:
        _list_providers(as_json)
    else:
        _list_models(provider, base_url, as_json)
    return exit_codes.OK


def _list_providers(as_json: bool) -> None:
    from sidestream.providers.installed import installed_providers

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
    if not provider.key_variables:
        return "none needed"
    return f"{' or '.join(provider.key_variables)} {'is set' if provider.has_key else 'is not set'}"


def _list_models(name: str, base_url: str | None, as_json: bool) -> None:
    from sidestream.agent.agent import Agent
    from sidestream.cli.process import run_async

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

    for value in values:
        write(sys.stdout.buffer, jsontext.dumps(value) + b"\n")
