"""No sandbox: code runs with all rights of the user who runs this program. Only on explicit request."""

import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from sidestream.logs import get_logger
from sidestream.portable.sandbox.launch import INSIDE, kernel_arguments, launch, new_id
from sidestream.portable.sandbox.port import Container, ContainerSpec
from sidestream.portable.sandbox.process import ProcessContainer
from sidestream.portable.sandbox.runtime import ENVIRONMENT
from sidestream.portable.sandbox.worker import owned
from sidestream.portable.sandbox.workspace import container_user

_log = get_logger(__name__)


class UnisolatedWarning(UserWarning):
    """A model's code runs on this machine without isolation."""


class Bare:
    """The sandbox of `CodeInterpreter(sandbox="none")`."""

    name = "none"

    async def start(self, spec: ContainerSpec) -> Container:
        if spec.workspace is not None:
            container_user(spec.workspace, allow_root=spec.allow_root, drops_user=False)
        text = 'sandbox="none": code of a model runs with all rights of this user, on its files and its network'
        _log.warning(text)
        warnings.warn(text, UnisolatedWarning, stacklevel=2)
        return await owned(lambda: _start(spec))


async def _start(spec: ContainerSpec) -> ProcessContainer:
    folder = spec.workspace or tempfile.mkdtemp(prefix="sidestream-code-")
    installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    environment = {
        **{name: value for name, value in os.environ.items() if name in ("LD_LIBRARY_PATH", "SYSTEMROOT")},
        **ENVIRONMENT,
        "PATH": os.defpath,
        "HOME": folder,
        "MPLCONFIGDIR": os.path.join(tempfile.gettempdir(), "sidestream-matplotlib"),
        "SANDBOX_PACKAGES": os.pathsep.join([str(INSIDE), *installed]),
    }
    kernel = ["-I", "-S", "-B", "-X", "utf8", str(INSIDE / "kernel.py")]
    arguments = kernel_arguments(spec.limits, folder=folder, bounds_processes=False)
    with launch() as starting:
        started = await starting.start([sys.executable, *kernel, *arguments], env=environment)
        container = ProcessContainer(new_id(), started, spec.limits, folder)
        if spec.workspace is None:
            container.on_end.append(lambda: shutil.rmtree(folder, ignore_errors=True))
        await container.ready()
    return container
