"""Read-only view of the host in a container: system programs, the interpreter and installed packages."""

import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from functools import cache

from msgspec import Struct

from sidestream.portable.sandbox.port import SandboxError

USUAL_PACKAGES = (
    *("matplotlib", "numpy", "openpyxl", "pandas", "pillow", "polars", "pyarrow", "python-docx", "scikit-learn"),
    *("scipy", "seaborn", "statsmodels", "sympy", "tabulate"),
)
"""Packages that code for data imports. The installed ones are offered by default."""

PYTHON = "/opt/python"
PACKAGES = "/opt/packages"
KERNEL = "/opt/kernel"

# Not /usr as a whole: /usr/src and /usr/local often hold the very application that must stay hidden.
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share")
_ETC = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts")


class Mount(Struct, frozen=True):
    """A path on the host, and its path inside."""

    source: str
    target: str


class Runtime(Struct, frozen=True):
    """Mounts, links, hidden folders, the interpreter inside, and its environment."""

    mounts: tuple[Mount, ...]
    links: tuple[tuple[str, str], ...]
    """Target and path, as on the host, e.g. `usr/lib` and `/lib`."""
    hidden: tuple[str, ...]
    """Folders inside that are covered by empty ones."""
    python: str
    environment: dict[str, str]


ENVIRONMENT = {
    "PATH": f"{PYTHON}/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "MPLBACKEND": "module://sandbox_figures",
    "MPLCONFIGDIR": "/tmp/.matplotlib",
    # Threads of numerical libraries reserve address space each, and count as processes.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "SANDBOX_PACKAGES": f"{KERNEL}:{PACKAGES}",
    # pyarrow's default allocator reserves more address space than a container has.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


@cache
def runtime(packages: tuple[str, ...] | None) -> Runtime:
    """Return the view of a container with these packages.

    Raises SandboxError if one is not installed.
    """
    python, mounts, hidden = _interpreter()
    mounts += [Mount(path, path) for name in _SYSTEM if os.path.isdir(path := f"/usr/{name}")]
    mounts += [Mount(path, path) for path in ("/nix/store", "/gnu/store") if os.path.isdir(path)]
    mounts += [Mount(path, path) for path in _ETC if os.path.exists(path)]
    links: list[tuple[str, str]] = []
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            links.append((os.readlink(path), path))
        elif os.path.isdir(path):
            mounts.append(Mount(path, path))
    mounts += _packages(packages)
    environment = dict(ENVIRONMENT)
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        environment["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
    return Runtime(tuple(mounts), tuple(links), tuple(hidden), python, environment)


def _interpreter() -> tuple[str, list[Mount], list[str]]:
    """Return the running interpreter, its mounts, and the package folders to hide."""
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    if hasattr(sys, "frozen") or not os.path.basename(executable).startswith(("python", "pypy")):
        raise SandboxError(f"a sandbox needs the Python interpreter, but {executable} is not one")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    library = os.path.dirname(os.__file__)
    python = f"{PYTHON}/bin/{version}"
    mounts = [Mount(executable, python)]
    inside = f"{PYTHON}/lib/{os.path.basename(library)}"
    prefix = sys.base_prefix
    if prefix in ("/usr", "/usr/local"):
        mounts.append(Mount(library, inside))
        shared = _shared_library(prefix)
        mounts += [Mount(shared, f"{PYTHON}/lib/{os.path.basename(shared)}")] if shared else []
    else:
        # A standalone interpreter brings its libraries too.
        mounts.append(Mount(os.path.join(prefix, "lib"), f"{PYTHON}/lib"))
    hidden = [f"{inside}/{name}" for name in ("site-packages",) if os.path.isdir(os.path.join(library, name))]
    return python, mounts, hidden


def _shared_library(prefix: str) -> str | None:
    name = sysconfig.get_config_var("INSTSONAME")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED") or not name:
        return None
    places = (os.path.join(prefix, "lib"), str(sysconfig.get_config_var("LIBDIR")))
    return next((path for place in places if os.path.isfile(path := os.path.join(place, name))), None)


def _packages(names: tuple[str, ...] | None) -> list[Mount]:
    """Return the mounts for the named distributions and everything they require."""
    from importlib.metadata import Distribution, PackageNotFoundError, distribution

    found: dict[str, Distribution] = {}
    waiting: list[tuple[str, bool]] = [(name, True) for name in names or ()]
    waiting += [] if names == () else [(name, False) for name in USUAL_PACKAGES]
    while waiting:
        name, is_needed = waiting.pop()
        key = _plain(name)
        if key in found:
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError:
            if is_needed:
                raise SandboxError(f"the package {name!r} is not installed: pip install {name}") from None
            continue
        waiting += [(required, False) for required in _requirements(found[key].requires or ())]
    mounts: dict[str, Mount] = {}
    for each in found.values():
        place = str(each.locate_file(""))
        tops = {file.parts[0] for file in each.files or () if file.parts[0] not in ("..", "__pycache__", "/")}
        for top in sorted(tops):
            mounts.setdefault(top, Mount(os.path.join(place, top), f"{PACKAGES}/{top}"))
    return [mount for mount in mounts.values() if os.path.exists(mount.source)]


def installed_packages(packages: tuple[str, ...] | None) -> list[str]:
    """Return the names of the packages in a container, without those they require. An empty tuple means none."""
    if packages == ():
        return []
    return sorted({*USUAL_PACKAGES, *(packages or ())} - set(missing_packages(USUAL_PACKAGES)))


def missing_packages(names: Sequence[str]) -> list[str]:
    """Return the distributions that are not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    missing: list[str] = []
    for name in names:
        try:
            distribution(name)
        except PackageNotFoundError:
            missing.append(name)
    return missing


def _requirements(lines: Iterable[str]) -> list[str]:
    """Return the names of requirements that need no extra."""
    names: list[str] = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        name = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
        if name is not None and "extra" not in marker:
            names.append(name[1])
    return names


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def package_names(packages: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the packages of a config as a cache key."""
    return None if packages is None else tuple(sorted(set(packages)))
