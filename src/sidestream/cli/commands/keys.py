"""The `sidestream keys` commands, which list and store API keys."""

import difflib
import os
import sys

import click

from sidestream.cli import exit_codes, key_file

_KEY_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


@click.group(invoke_without_command=True)
@click.pass_context
def keys(ctx: click.Context) -> None:
    """Manage the providers' API keys.

    Keys are stored in a file that only you can read. Environment variables take precedence. No command prints a key.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_keys)


@keys.command("list")
def list_keys() -> None:
    """List the key variables, where each is set, and which providers use it."""
    from sidestream.providers.registry import providers_by_key_variable

    stored, providers = key_file.read(), providers_by_key_variable()
    names = sorted({*providers, *stored})
    width = max(map(len, names), default=0)
    for name in names:
        place = "environment" if os.environ.get(name) else "file" if name in stored else "not set"
        used_by = ", ".join(providers.get(name, [])) or "no installed provider"
        click.echo(f"{name:<{width}}  {place:<11}  used by {used_by}")
    key_file.warn_if_readable()


@keys.command("set")
@click.argument("name")
def set_key(name: str) -> int:
    """Store a key. NAME is a variable, e.g. OPENAI_API_KEY, or a provider.

    The key is prompted for without echo, or read from standard input.
    """
    variable = _variable(name)
    if sys.stdin is not None and sys.stdin.isatty():
        value = str(click.prompt(f"{variable} (not shown)", hide_input=True, err=True, default="", show_default=False))
    else:
        value = sys.stdin.read(2 * key_file.MAX_VALUE) if sys.stdin is not None else ""
    key_file.store(variable, value)
    click.echo(f"{variable} stored in {key_file.path()}", err=True)
    if os.environ.get(variable):
        click.echo(f"note: {variable} is also set in the environment, which takes precedence", err=True)
    return exit_codes.OK


@keys.command()
@click.argument("name")
def remove(name: str) -> int:
    """Remove a key from the file."""
    variable = name if name in key_file.read() else _variable(name)
    if not key_file.remove(variable):
        raise click.UsageError(f"{variable} is not in {key_file.path()}")
    click.echo(f"{variable} removed", err=True)
    return exit_codes.OK


@keys.command()
def path() -> None:
    """Print the path of the file."""
    click.echo(key_file.path())


def _variable(name: str) -> str:
    """Return the key variable for a variable or provider name. Raises UsageError if the name is neither."""
    from sidestream.providers.registry import installed_providers, providers_by_key_variable

    variables = providers_by_key_variable()
    if name.upper() in variables:
        return name.upper()
    for provider in installed_providers():
        if name.lower() in (provider.name, *provider.aliases):
            if not provider.key_variables:
                raise click.UsageError(f"{provider.name} needs no key")
            return provider.key_variables[0]
    if key_file.NAME.fullmatch(name) and any(word in name.upper() for word in _KEY_WORDS):
        similar = difflib.get_close_matches(name.upper(), variables, n=1, cutoff=0.8)
        if similar:
            click.echo(f"note: no installed provider uses {name}; did you mean {similar[0]}?", err=True)
        return name
    known = ", ".join(sorted(variables))
    raise click.UsageError(f"{name!r} is neither a provider nor a key variable; known variables: {known}")
