"""`sidestream keys`: which keys are there, and a file for those that are not in the environment."""

import difflib
import os
import sys

import click

from sidestream.cli import exit_codes, key_file

_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


@click.group(invoke_without_command=True)
@click.pass_context
def keys(ctx: click.Context) -> None:
    """Keep the providers' keys in a file that only you can read.

    The environment goes before the file. No command ever prints a key.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_keys)


@keys.command("list")
def list_keys() -> None:
    """Say which variables are set, where, and which providers read them."""
    from sidestream.cli.provider_info import variables

    kept, readers = key_file.read(), variables()
    names = sorted({*readers, *kept})
    width = max(map(len, names), default=0)
    for name in names:
        place = "environment" if os.environ.get(name) else "file" if name in kept else "not set"
        who = ", ".join(readers.get(name, [])) or "no installed provider"
        click.echo(f"{name:<{width}}  {place:<11}  read by {who}")
    if not key_file.is_private():
        click.echo(f"warning: others can read {key_file.path()}; chmod 600 it", err=True)


@keys.command("set")
@click.argument("name")
def set_key(name: str) -> int:
    """Keep a key: NAME is a variable, e.g. OPENAI_API_KEY, or a provider.

    The key is typed without being shown, or read from standard input.
    """
    variable = _variable(name)
    if sys.stdin is not None and sys.stdin.isatty():
        value = str(click.prompt(f"{variable} (not shown)", hide_input=True, err=True, default="", show_default=False))
    else:
        value = sys.stdin.read(2 * key_file.MAX_VALUE) if sys.stdin is not None else ""
    key_file.store(variable, value)
    click.echo(f"{variable} is kept in {key_file.path()}", err=True)
    if os.environ.get(variable):
        click.echo(f"note: {variable} is also set in the environment, which goes first", err=True)
    return exit_codes.OK


@keys.command()
@click.argument("name")
def remove(name: str) -> int:
    """Forget a key."""
    variable = name if name in key_file.read() else _variable(name)
    if not key_file.remove(variable):
        raise click.UsageError(f"there is no {variable} in {key_file.path()}")
    click.echo(f"{variable} is forgotten", err=True)
    return exit_codes.OK


@keys.command()
def path() -> None:
    """Print where the file is."""
    click.echo(key_file.path())


def _variable(name: str) -> str:
    """The variable that is meant. Raises UsageError for what holds no key."""
    from sidestream.cli.provider_info import facts, variables

    readers = variables()
    if name.upper() in readers:
        return name.upper()
    for provider in facts():
        if name.lower() in (provider.name, *provider.aliases):
            if not provider.key_variables:
                raise click.UsageError(f"{provider.name} needs no key")
            return provider.key_variables[0]
    if key_file.NAME.fullmatch(name) and any(word in name.upper() for word in _WORDS):
        near = difflib.get_close_matches(name.upper(), readers, n=1, cutoff=0.8)
        if near:
            click.echo(f"note: no installed provider reads {name}; is {near[0]} meant?", err=True)
        return name
    known = ", ".join(sorted(readers))
    raise click.UsageError(f"{name!r} is neither a provider nor a variable for a key; known: {known}")
