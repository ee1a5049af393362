"""The pytest plugin of the package, which turns the dials of all replayed runs of a suite."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: "pytest.Parser") -> None:
    group = parser.getgroup("sidestream", "replay of logged runs")
    group.addoption(
        "--sidestream-live",
        action="append",
        default=[],
        dest="sidestream_live",
        metavar="DIALS",
        help="Let replay_run() call the real model, tools or hosted (MCP servers and hosted tools), or all of them.",
    )
    group.addoption(
        "--sidestream-update",
        action="store_true",
        dest="sidestream_update",
        help="Accept changed requests of replay_run(), and write them into the cassettes.",
    )


def pytest_configure(config: "pytest.Config") -> None:
    given: list[str] = config.getoption("sidestream_live") or []
    named = {name.strip() for value in given for name in value.split(",")}
    is_updated = config.getoption("sidestream_update") is True
    if not named and not is_updated:
        return
    import pytest

    from sidestream.agent import replayed

    if unknown := named - {*replayed.DIALS, "all"}:
        raise pytest.UsageError(f"--sidestream-live: {unknown.pop()!r} is not one of model, tools, hosted, all")
    dials: dict[str, Any] = {name: "live" for name in replayed.DIALS if named & {name, "all"}}
    before = replayed.set_suite(replayed.Dials(**dials, is_updated=is_updated))

    def restore() -> None:
        replayed.set_suite(before)

    config.add_cleanup(restore)
