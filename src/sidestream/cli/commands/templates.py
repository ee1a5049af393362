"""The `sidestream templates` and `sidestream schemas` commands, which manage named prompts and schemas."""

import json
import sys
from typing import Any

import click

from sidestream.cli import exit_codes


@click.group(invoke_without_command=True)
@click.pass_context
def templates(ctx: click.Context) -> Any:
    """Manage stored prompts.

    `sidestream --save NAME …` stores a prompt with its options, `sidestream -t NAME` uses it. Prompts may contain
    variables: $input is the command's prompt, and -p NAME VALUE sets others.
    """
    return ctx.invoke(list_templates) if ctx.invoked_subcommand is None else None


@templates.command("list")
def list_templates() -> int:
    """List the templates with the beginning of their prompts."""
    from sidestream.cli.inputs import named_files
    from sidestream.cli.inputs.named_files import list_names
    from sidestream.errors import ConfigurationError

    def text_of(name: str) -> str:
        try:
            template = named_files.load(name)
        except ConfigurationError as error:
            return f"unreadable: {error}"
        return template.prompt or f"system: {template.system or ''}"

    list_names(named_files.STORED, text_of, if_none='No templates yet. Store one with: sidestream --save NAME "prompt"')
    return exit_codes.OK


@templates.command()
@click.argument("name")
def show(name: str) -> int:
    """Print a template."""
    from sidestream.cli.display.screen import strip_controls, write
    from sidestream.cli.inputs import named_files

    write(sys.stdout, strip_controls(named_files.to_toml(named_files.load(name))))
    return exit_codes.OK


@templates.command()
@click.argument("name")
def edit(name: str) -> int:
    """Open a template in your editor, creating it if it does not exist."""
    from sidestream.cli.inputs import named_files

    file = named_files.STORED.path_of(name)
    if not file.exists():
        named_files.save(name, named_files.Template(prompt="Summarise this in three sentences:\n\n$input\n"))
    click.edit(filename=str(file))
    named_files.load(name)  # Report errors in the edited file.
    return exit_codes.OK


@templates.command()
@click.argument("name")
def remove(name: str) -> int:
    """Remove a template."""
    from sidestream.cli.inputs import named_files

    named_files.STORED.remove(name)
    click.echo(f"{name} removed", err=True)
    return exit_codes.OK


@templates.command()
def path() -> None:
    """Print the folder of the templates."""
    from sidestream.cli.inputs import named_files

    click.echo(named_files.STORED.folder)


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


@schemas.command("show")
@click.argument("name")
def show_schema(name: str) -> int:
    """Print a schema as JSON."""
    from sidestream.cli.display.screen import strip_controls, write
    from sidestream.cli.inputs.schema_syntax import STORED

    write(sys.stdout, strip_controls(STORED.read(name)))
    return exit_codes.OK


@schemas.command("save")
@click.argument("name")
@click.argument("schema")
def save_schema(name: str, schema: str) -> int:
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


@schemas.command("remove")
@click.argument("name")
def remove_schema(name: str) -> int:
    """Remove a schema."""
    from sidestream.cli.inputs.schema_syntax import STORED

    STORED.remove(name)
    click.echo(f"{name} removed", err=True)
    return exit_codes.OK
