"""The `sidestream doctor` command: checks of the installation and configuration, with advice."""

import asyncio
import os
import platform
import re
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Literal
from urllib.parse import urlsplit

import click
from msgspec import Struct

from sidestream.cli import exit_codes, key_file, preferences
from sidestream.cli.display.live_screen import picture_protocol
from sidestream.cli.display.screen import has_colour
from sidestream.cli.inputs.default_model import EMBEDDED, check_model, chosen_model, model_of
from sidestream.errors import ConfigurationError, SidestreamError
from sidestream.providers.registry import ModelString, base_urls, installed_providers, providers
from sidestream.text.redaction import redact, redact_url
from sidestream.transport.base_urls import checked_base_url, is_loopback


@click.command()
@click.option("--all", "lists_all", is_flag=True, help="Also list what is neither configured nor needed.")
@click.option("--json", "as_json", is_flag=True, help="Print each finding as a line of JSON.")
@click.option(
    "--mcp", metavar="FILE", help="Also start the MCP servers in this mcp.json. - uses the one in this folder."
)
def doctor(lists_all: bool, as_json: bool, mcp: str | None) -> int:
    """Check the installation, keys, stores and servers.

    Lists what is configured. Exits with code 1 if something configured does not work.
    """
    from sidestream import jsontext
    from sidestream.cli.display.screen import one_line, write
    from sidestream.cli.interrupts import run_async

    findings = run_async(examine(mcp, lists_all=lists_all))
    topic = ""
    for finding in findings:
        if as_json:
            write(sys.stdout.buffer, jsontext.dumps(finding) + b"\n")
            continue
        if finding.topic != topic:
            topic = finding.topic
            write(sys.stdout, f"{topic}\n")
        advice = f" ({finding.advice})" if finding.advice else ""
        write(sys.stdout, f"  {finding.state:<7} {one_line(finding.text + advice, 300)}\n")
    broken = sum(finding.state == "broken" for finding in findings)
    if broken and not as_json:
        click.echo(f"{broken} problem{'' if broken == 1 else 's'} found", err=True)
    return exit_codes.FAILED if broken else exit_codes.OK


PROBE_S = 0.5
"""Seconds a local server may take to answer."""
SANDBOX_S = 10.0
SANDBOXES = {
    "bubblewrap": "the default for tools that run code on this machine",
    "runsc": "stronger isolation; tried if bubblewrap does not work",
    "monty": "computation only, on every system; must be named explicitly",
}
"""Uses, by sandbox."""


class Finding(Struct, frozen=True):
    """Result of a check: "ok", "missing", or "broken" if something is configured but does not work."""

    topic: str
    state: Literal["ok", "missing", "broken"]
    text: str
    advice: str = ""


async def examine(mcp: str | None = None, *, lists_all: bool = False) -> list[Finding]:
    """Run the checks and return their findings, grouped by topic.

    With `lists_all`, check what is neither configured nor needed, too.
    """
    found = [*_installation(lists_all), *_keys(), *_models()]
    for topic in (_embedded(lists_all), _store(), _mcp(mcp, lists_all), _servers(lists_all), _sandbox(lists_all)):
        found += [finding async for finding in topic]
    return list(dict.fromkeys([*found, *_tools(lists_all), *_terminal()]))


def _installation(lists_all: bool) -> Iterator[Finding]:
    where = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding("installation", "ok", f"sidestream {version('sidestream')}, {where}")
    extras = _extras()
    extras.pop("all", None)  # It names the others.
    absent = {extra: [name for name in packages if not _is_installed(name)] for extra, packages in extras.items()}
    if installed := sorted(extra for extra, missing in absent.items() if not missing):
        yield Finding("installation", "ok", f"extras: {', '.join(installed)}")
    for extra, missing in sorted(absent.items()):
        if missing and lists_all:
            advice = f'pip install "sidestream[{extra}]"'
            yield Finding("installation", "missing", f"extra {extra}: missing {', '.join(missing)}", advice)


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra that apply to this platform."""
    found: dict[str, list[str]] = {}
    for line in requires("sidestream") or ():
        name, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        is_other = "sys_platform" in marker and f"'{sys.platform}'" not in marker.replace('"', "'")
        package = re.match(r"[\w.-]+", name)
        if extra and package and not is_other and package[0] != "sidestream":
            found.setdefault(extra[1], []).append(package[0])
    return found


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _keys() -> Iterator[Finding]:
    given = {info.name: info.key_variables for info in installed_providers()}
    in_environment = {variable for variable in _flat(given.values()) if os.environ.get(variable, "").strip()}
    try:
        stored = set(key_file.read())
        key_file.load(warns=False)
    except ConfigurationError as error:
        stored = set[str]()
        yield Finding("keys", "broken", str(error))
    if not key_file.is_private():
        yield Finding("keys", "broken", f"other users can read {key_file.path()}", "run chmod 600 on it")
    for variable in sorted({*_flat(given.values())}):
        users = ", ".join(name for name, variables in given.items() if variable in variables)
        if variable in in_environment or variable in stored:
            place = "environment" if variable in in_environment else "file"
            yield Finding("keys", "ok", f"{variable}: {place}, used by {users}")
    for info in installed_providers():
        if info.has_key and info.missing_variables:
            missing = ", ".join(info.missing_variables)
            yield Finding("keys", "missing", f"{info.name} has a key, but not {missing}", "set the variable to use it")
    if not in_environment | stored:
        yield Finding("keys", "missing", "no API key is set", "sidestream keys set openai")
    for variable, url in base_urls().items():
        if os.environ.get(variable):
            try:
                yield Finding("keys", "ok", f"{variable}: {redact_url(checked_base_url(url))}")
            except ConfigurationError as error:
                yield Finding("keys", "broken", f"{variable}: {error}")


def _flat(groups: Iterable[Iterable[str]]) -> list[str]:
    return [entry for group in groups for entry in group]


def _models() -> Iterator[Finding]:
    variable = os.environ.get("SIDESTREAM_MODEL", "").strip()
    try:
        saved = preferences.load().model
        for name, source in ((variable, "SIDESTREAM_MODEL"), (saved, "the saved default")):
            if name:
                check_model(name)
                yield Finding("model", "ok", f"{name}: {source}")
                break  # The variable takes precedence.
        else:
            chosen = chosen_model()
            yield Finding("model", "ok", f"{chosen.name}: {chosen.reason}")
    except ConfigurationError as error:
        yield Finding("model", "broken", str(error), "sidestream models default NAME")


def _chosen_provider() -> str:
    """Return the provider of the default model, or nothing if that is unknown, which another check reports."""
    try:
        model = os.environ.get("SIDESTREAM_MODEL", "").strip() or chosen_model().name
        return ModelString.parse(model_of(model)).provider
    except ConfigurationError:
        return ""


async def _embedded(lists_all: bool) -> AsyncIterator[Finding]:
    from sidestream.providers.local.install import status

    if not lists_all and _chosen_provider() != EMBEDDED:
        return
    lines, is_complete = await asyncio.to_thread(status)
    for line in lines:
        yield Finding("embedded model", "ok" if is_complete or "installed" in line else "missing", line)


async def _store() -> AsyncIterator[Finding]:
    from sidestream.store.opening import default_location, open_store

    location = redact_url(str(default_location()))
    if not preferences_log():
        yield Finding("log", "missing", "prompts are not logged", "sidestream logs on")
    try:
        store = open_store()
        try:
            count = len(await store.conversations(1000))
        finally:
            await store.aclose()
    except SidestreamError as error:
        yield Finding("log", "broken", f"{location}: {redact(str(error))}", "sidestream logs check")
        return
    shown = f"{count} conversation{'' if count == 1 else 's'}" if count < 1000 else "1,000 conversations or more"
    yield Finding("log", "ok", f"{location}: {shown}")


def preferences_log() -> bool:
    """Return whether prompts are logged. True if the preferences are unreadable, which another check reports."""
    try:
        return preferences.load().log
    except ConfigurationError:
        return True


async def _mcp(given: str | None, lists_all: bool) -> AsyncIterator[Finding]:
    from sidestream.mcp import load_mcp_config
    from sidestream.mcp.config.file import FILES

    file = given if given not in (None, "-") else next(filter(os.path.isfile, FILES), None)
    if file is None:
        if given is not None or lists_all:
            yield Finding("mcp", "missing", "no mcp.json in this folder")
        return
    try:
        config = load_mcp_config(file)
    except (ConfigurationError, OSError) as error:
        yield Finding("mcp", "broken", f"{file}: {redact(str(error))}")
        return
    if given is None:
        labels = ", ".join(config.labels) or "no servers"
        yield Finding("mcp", "ok", f"{file}: {labels}", "start them with sidestream mcp check")
        return
    from sidestream.cli.commands.mcp import check_servers

    async for result in check_servers(config):
        state: Literal["ok", "broken"] = "ok" if result.is_ok else "broken"
        yield Finding("mcp", state, f"{result.label}: {result.text}")


async def _servers(lists_all: bool) -> AsyncIterator[Finding]:
    """Check the local model servers of installed providers. Those that do not answer matter if they are chosen."""
    chosen = _chosen_provider()
    names: dict[str, list[str]] = {}
    for provider in sorted(providers().values(), key=lambda provider: provider.name):
        base_url: Any = getattr(provider, "base_url", None)
        if isinstance(base_url, str) and is_loopback(base_url):
            names.setdefault(base_url, []).append(provider.name)
    for url, users in names.items():
        parts, who = urlsplit(url), ", ".join(users)
        began = time.monotonic()
        if await _answers(parts.hostname or "", parts.port or 80):
            yield Finding("servers", "ok", f"{who}: {url} answers ({time.monotonic() - began:.2f} s)")
        elif chosen in users:
            yield Finding("servers", "broken", f"{who}: {url} does not answer", "start the server")
        elif lists_all:
            yield Finding("servers", "missing", f"{who}: {url} does not answer")


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _sandbox(lists_all: bool) -> AsyncIterator[Finding]:
    """Run a line of code in each kind of sandbox, until one works unless all are listed."""
    missing: list[Finding] = []
    for name, use in SANDBOXES.items():
        finding = await _tried_sandbox(name, use)
        if finding.state == "ok" and not lists_all:
            yield finding
            return
        missing.append(finding)
    for finding in missing:
        yield finding


async def _tried_sandbox(name: str, use: str) -> Finding:
    from sidestream.portable.sandbox import choice
    from sidestream.portable.sandbox.port import ContainerSpec, SandboxError

    try:
        async with asyncio.timeout(SANDBOX_S):
            container = await choice.start(name, ContainerSpec(packages=()))
            try:
                outcome = await container.run("print(6 * 7)", lambda text: None)
            finally:
                await container.kill()
    except SandboxError as error:
        return Finding("sandbox", "missing", str(error), use)
    except TimeoutError:
        return Finding("sandbox", "missing", f"{name} did not answer within {SANDBOX_S:g} s", use)
    works = outcome.logs.strip() == "42"
    said = f"{name}: {use}" if works else f"{name} cannot run code: {outcome.logs.strip() or outcome.ending}"
    return Finding("sandbox", "ok" if works else "missing", said)


def _tools(lists_all: bool) -> Iterator[Finding]:
    """Check what the server-side tools that run on this machine need."""
    from sidestream.portable.here import DELEGATION, MODULES
    from sidestream.portable.where import missing_here
    from sidestream.tools.server_side import TOOLS

    keys = sorted(key for key, module in MODULES.items() if module != DELEGATION)
    missing = {key: missing_here(TOOLS[key]) for key in keys}
    if ready := [key for key, reason in missing.items() if reason is None]:
        yield Finding("tools on this machine", "ok", ", ".join(ready))
    for reason in dict.fromkeys(filter(None, missing.values())):
        if lists_all:
            names = ", ".join(key for key, found in missing.items() if found == reason)
            yield Finding("tools on this machine", "missing", names, reason)


def _terminal() -> Iterator[Finding]:
    if sys.stderr is None or not has_colour(sys.stderr):
        yield Finding("terminal", "ok", "plain text: standard error is not a terminal, or NO_COLOR is set")
        return
    protocol = picture_protocol()
    yield Finding("terminal", "ok", f"live view; images: {protocol or 'not shown'}")
