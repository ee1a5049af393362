"""The `sidestream schemas` commands, which manage named schemas for answers."""

import json
import sys
from typing import Any

import click

from sidestream.cli import exit_codes


@click.group(invoke_without_command=True)
@click.pass_context
def schemas(ctx: click.Context) -> Any:
    """Manage stored schemas.

    `sidestream schemas save person 'name, age int'` stores one, `sidestream --schema person` uses it.
    """
    return ctx.invoke(list_schemas) if ctx.invoked_subcommand is None else None


@schemas.command("list")
def list_schemas() -> int:
    """List the schemas with their fields."""
    from sidestream.cli.inputs.named_files import list_names
    from sidestream.cli.inputs.schema_syntax import STORED, short_form_of

    hint = "No schemas yet. Store one with: sidestream schemas save NAME 'name, age int'"
    list_names(STORED, short_form_of, if_none=hint)
    return exit_codes.OK


@schemas.command()
@click.argument("name")
def show(name: str) -> int:
    """Print a schema as JSON."""
    from sidestream.cli.display.screen import strip_controls, write
    from sidestream.cli.inputs.schema_syntax import STORED

    write(sys.stdout, strip_controls(STORED.read(name)))
    return exit_codes.OK


@schemas.command()
@click.argument("name")
@click.argument("schema")
def save(name: str, schema: str) -> int:
    """Store SCHEMA, in any form that --schema accepts, replacing one of the same name."""
    from sidestream.cli.inputs.schema_syntax import STORED, read_schema
    from sidestream.jsontext import as_object
    from sidestream.output import output_type

    # Store a Python type as the schema that a provider would get.
    found: Any = read_schema(schema)
    content = output_type(found).schema.schema if isinstance(found, type) else as_object(found)
    file = STORED.write(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    click.echo(f"Saved as {file}. Use it with: sidestream --schema {name}", err=True)
    return exit_codes.OK


@schemas.command()
@click.argument("name")
def remove(name: str) -> int:
    """Remove a schema."""
    from sidestream.cli.inputs.schema_syntax import STORED

    STORED.remove(name)
    click.echo(f"{name} removed", err=True)
    return exit_codes.OK
