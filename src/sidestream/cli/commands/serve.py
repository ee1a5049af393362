"""The `sidestream serve` command, which runs the server and its web UI."""

import atexit
import os
from typing import TYPE_CHECKING, Any, Literal

import click

from sidestream.cli import exit_codes, key_file
from sidestream.cli.inputs import options
from sidestream.cli.stdio import warn_on_stderr
from sidestream.errors import MissingExtraError

if TYPE_CHECKING:
    from sidestream.agent.agent import Agent
    from sidestream.durable.log.approval_deadlines import OnExpiry
    from sidestream.mcp import MCPConfig
    from sidestream.server.settings import Panel


@click.command()
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    envvar="SIDESTREAM_MODEL",
    type=options.MODEL,
    metavar="MODEL",
    show_envvar=True,
    help="Model to serve: PROVIDER, PROVIDER:MODEL or an alias. Can be repeated; the first is for requests that name "
    "none. Defaults to the first provider with a key, else the embedded model.",
)
@options.named_agents_option
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    default=8787,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--token",
    "tokens",
    multiple=True,
    envvar="SIDESTREAM_TOKEN",
    metavar="TOKEN",
    show_envvar=True,
    help="Token for another user, at least 22 characters. Each token has its own conversations. Can be repeated.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Answer requests without a token, so that every user and program on this machine can use the server.",
)
@click.option(
    "--weak-token", is_flag=True, help="Accept a shorter --token, on a server that only this machine can reach."
)
@click.option(
    "--allow-admin",
    is_flag=True,
    help="Let everyone with a token change MCP servers, test keys and index folders, and so run programs as you.",
)
@click.option("--list", "lists", is_flag=True, help="Print the URLs of your running servers, and exit.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which clients reach the server, besides its address. Can be repeated.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="Origin of another site whose pages may call the server. Can be repeated.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    type=click.Choice(["tools", "functions", "instructions", "settings"]),
    help="Let requests add server-side tools, client functions, instructions or settings to the agents of --agent. "
    "Can be repeated.",
)
@click.option(
    "--expire-after",
    "retention_s",
    callback=options.duration,
    metavar="AGE",
    help="Delete conversations that have not changed for this long, e.g. 30d or 12h. This includes other programs' "
    "conversations in the same store.",
)
@options.approval_options
@click.option(
    "--engine",
    envvar="SIDESTREAM_ENGINE",
    metavar="ENGINE",
    show_envvar=True,
    help="Let `sidestream worker` processes execute the runs, through this engine: embedded, "
    "temporal://HOST:PORT/NAMESPACE or another package's. Without it, the server executes them.",
)
@click.option(
    "--max-runs",
    default=64,
    show_default=True,
    type=click.IntRange(min=1),
    help="Maximum concurrent runs per token, or in total on a server without tokens.",
)
@click.option(
    "--requests-per-minute",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum runs that one token may start per minute.",
)
@click.option(
    "--max-cost-per-day",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DOLLARS",
    help="Maximum cost of one token's runs in 24 hours.",
)
@click.option(
    "--mcp",
    "mcp_file",
    metavar="FILE",
    help="File of MCP servers that the page shows and changes. Defaults to the mcp.json in this folder, or a new one.",
)
@click.option(
    "--index-folder",
    "index_folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help="Folder that the page may add to the file index, with its subfolders. Can be repeated.",
)
@click.option("--title", metavar="NAME", help="Name of the page. Defaults to Sidestream.")
@click.option(
    "--icon",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Icon of the page: an SVG, PNG, ICO or WebP file.",
)
@click.option("--greeting", metavar="TEXT", help="Heading of an empty chat.")
@click.option("--example", "examples", multiple=True, metavar="TEXT", help="Prompt of an empty chat. Can be repeated.")
@click.option(
    "--panel",
    "panels",
    multiple=True,
    metavar="NAME",
    help="Part that the page has: models, thinking, tools, settings, mcp, indexes, keys or runs. Can be repeated; "
    "defaults to all. Only you ever see keys.",
)
@click.option(
    "--title-model",
    type=options.MODEL,
    metavar="MODEL",
    help="Model that makes a title from the first question of a chat. Without it, the question is the title.",
)
@click.option(
    "--dialect",
    default="openai",
    show_default=True,
    type=click.Choice(["openai", "open-responses"]),
    help="Form of the Responses API for clients that name none: OpenAI's, or that of the Open Responses specification.",
)
@options.store_option
def serve(
    models: tuple[str, ...],
    named: "dict[str, Agent[Any]]",
    host: str,
    port: int,
    tokens: tuple[str, ...],
    no_token: bool,
    weak_token: bool,
    allow_admin: bool,
    lists: bool,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    allowed: tuple[str, ...],
    retention_s: float | None,
    approval_s: float | None,
    on_expiry: "OnExpiry",
    answer_s: float | None,
    engine: str | None,
    max_runs: int,
    requests_per_minute: int | None,
    max_cost_per_day: float | None,
    mcp_file: str | None,
    index_folders: tuple[str, ...],
    title: str | None,
    icon: str | None,
    greeting: str | None,
    examples: tuple[str, ...],
    panels: "tuple[Panel, ...]",
    title_model: str | None,
    dialect: Literal["openai", "open-responses"],
    store: str | None,
) -> int:
    """Serve a chat page, the Responses API and streams for other front ends, on this machine.

    Requests need the token in the printed URL. Each start creates a new token, and `--list` prints it again.
    Conversations are kept in the store, and runs continue when a client disconnects. With `--agent`, requests name one
    of your agents as their model; add `-m` to allow model strings too. Requests cannot change your agents unless you
    `--allow` it.
    """
    from sidestream.cli.commands.running_servers import ServerFile, with_token

    if lists:
        return _list()
    if no_token and tokens:
        raise click.UsageError("--no-token cannot be combined with --token, which may come from SIDESTREAM_TOKEN")
    try:
        from sidestream.server.app import create_app
        from sidestream.server.uvicorn_runner import (
            bound_socket,
            check_exposure,
            is_every_address,
            serve as serve_app,
            shown_host,
        )
    except ImportError:
        raise MissingExtraError("server", "sidestream serve") from None
    import secrets

    from sidestream.agent.agent import Agent
    from sidestream.cli.inputs.default_model import check_model, default_model
    from sidestream.cli.interrupts import exit_now
    from sidestream.server.settings import LOOPBACK, Caps, Page

    warn_on_stderr()
    key_file.load()
    check_exposure(host, has_token=not no_token)
    mcp_file = mcp_file or _mcp_file()
    page = Page(
        title=title or Page().title,
        icon=icon,
        greeting=greeting or "",
        examples=examples,
        panels=panels or None,
        title_model=title_model,
    )
    if not named and not models:
        models = (default_model(),)
    for model in models:
        check_model(model)
        Agent(model).check()  # Report an unknown model or a missing key now, not at the first message.
    chosen = next(iter(named)) if named else models[0]
    allows_models = not named or bool(models)
    listening = bound_socket(host, port)
    port = listening.getsockname()[1]
    made = None if no_token else secrets.token_urlsafe(24)
    app = create_app(
        named or chosen,
        store=store,
        dialect=dialect,
        tokens=tokens,
        owner_token=made,
        owner_cookie=None if no_token else _page_cookie(port),
        allows_weak_tokens=weak_token,
        allows_admin=allow_admin,
        hosts=(*LOOPBACK, host.lower(), *hosts),
        origins=origins,
        allows_models=allows_models,
        allows_tools="tools" in allowed or None,
        allows_functions="functions" in allowed or None,
        allows_instructions="instructions" in allowed or None,
        allows_settings="settings" in allowed or None,
        retention_s=retention_s,
        approval_s=approval_s,
        on_expiry=on_expiry,
        answer_s=answer_s,
        engine=engine,
        caps=Caps(
            requests_per_minute=requests_per_minute,
            max_concurrent_runs=max_runs,
            max_cost_per_day=max_cost_per_day,
        ),
        mcp_file=mcp_file,
        models=models,
        index_folders=index_folders,
        page=page,
    )
    url = f"http://{shown_host(host)}:{port}/"
    file = ServerFile(url, made)

    def started() -> None:
        try:
            file.create()
        except OSError as error:
            what = "only this output has the owner's token" if made else "`sidestream serve --list` does not list it"
            click.echo(f"warning: cannot write this server's file ({error.strerror}): {what}", err=True)
        click.echo(with_token(url, tokens[0] if tokens else made))
        click.echo(
            f"{'agents' if named else 'model' if len(models) == 1 else 'models'}: {', '.join(named or models)}; "
            "press Ctrl+C to stop the server",
            err=True,
        )
        _explain(no_token=no_token, has_tokens=bool(tokens), allow_admin=allow_admin)
        if is_every_address(host) and not hosts:
            click.echo("Requests from other machines are refused. Allow their host name with --allow-host.", err=True)
        servers: MCPConfig | None = app.state.server.servers
        found = (*servers.toolsets, *servers.remote_servers) if servers is not None else ()
        if found and allows_models:  # The file may come from someone else, and its servers start on this machine.
            click.echo(f"MCP servers in {mcp_file}: {', '.join(server.label for server in found)}", err=True)

    atexit.register(file.remove)
    serve_app(app, listening, exit_now=exit_now, on_start=started, on_stop=file.remove)
    return exit_codes.OK


def _page_cookie(port: int) -> str | None:
    """Return the owner's cookie. None means that it cannot be stored, so pages must be reopened after a restart."""
    from sidestream.cli.commands.running_servers import page_cookie

    try:
        return page_cookie(port)
    except OSError:
        return None


def _list() -> int:
    from sidestream.cli.commands.running_servers import running_servers
    from sidestream.cli.display.screen import one_line

    found = list(running_servers())
    for server in found:
        click.echo(f"{server.owner_url}  pid {server.pid}  {one_line(server.folder)}")
    if not found:
        click.echo("You have no running servers.", err=True)
    return exit_codes.OK


def _explain(*, no_token: bool, has_tokens: bool, allow_admin: bool) -> None:
    """Print who can do what if that differs from the default, in which only the owner has access."""
    administer = "change its MCP servers and so run programs as you"
    if no_token:
        can = "read its conversations and spend your keys" + (f", and {administer}" if allow_admin else "")
        click.echo(f"warning: --no-token lets every user and program on this machine {can}", err=True)
    elif allow_admin and has_tokens:
        click.echo(f"warning: --allow-admin lets everyone with a token {administer}", err=True)
    elif has_tokens:
        click.echo("Only the URL from `sidestream serve --list` can change MCP servers, keys and folders.", err=True)


def _mcp_file() -> str:
    from sidestream.mcp.config.file import FILES

    return next((name for name in FILES if os.path.isfile(name)), FILES[0])
