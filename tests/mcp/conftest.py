"""Real servers: from npm, by name and version, installed once into a folder that git ignores."""

import sys
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from sidestream.mcp import MCPServer
from support.mcp_servers.running import HERE, INSTALL_TIMEOUT_S, START_TIMEOUT_S, npm_servers, serving

__all__ = ["everything_url", "modern_url", "node", "npm_servers"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves time for the installation to whichever test comes first."""
    for item in items:
        if isinstance(item, pytest.Function) and "npm_servers" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(INSTALL_TIMEOUT_S + START_TIMEOUT_S))


@pytest.fixture
async def node(npm_servers: Path) -> AsyncGenerator[Callable[..., MCPServer]]:
    """Starts one of the npm servers over stdio; closes all of them in the end."""
    servers: list[MCPServer] = []

    def start(name: str, *args: str, **settings: Any) -> MCPServer:
        program = str(npm_servers / f"server-{name}" / "dist" / "index.js")
        servers.append(MCPServer(name, command="node", args=[program, *args], **settings))
        return servers[-1]

    yield start
    for server in servers:
        await server.aclose()


@pytest.fixture(scope="session")
def everything_url(npm_servers: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """server-everything over streamable HTTP on 127.0.0.1, as long as the session lasts."""
    program = str(npm_servers / "server-everything" / "dist" / "index.js")
    command = ["node", "--require", str(HERE / "loopback.cjs"), program, "streamableHttp"]
    with serving(lambda port: command, tmp_path_factory.mktemp("everything") / "log") as url:
        yield url


@pytest.fixture(scope="session")
def modern_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A server of the newer generation over HTTP."""
    with serving(
        lambda port: [sys.executable, "-I", str(HERE / "modern.py"), str(port)],
        tmp_path_factory.mktemp("modern") / "log",
    ) as url:
        yield url
