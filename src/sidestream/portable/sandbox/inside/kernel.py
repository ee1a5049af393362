r"""The program inside a sandbox. It runs Python cells and shell commands, and keeps variables between them.

A script; it imports nothing of ours, and as little as it can before the first cell. Frames arrive on stdin and leave on
the original stdout; what code prints goes to the original stderr, so that output of subprocesses and threads is live
and in order. A frame is a line with its kind and the lengths of its payloads, followed by the payloads:

    cell 8 \n print(1)

The host must not trust what leaves here: code that runs in this process can write its own frames.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from typing import Any

_CHUNK_BYTES = 1 << 16
_TOP_LEVEL_AWAIT = 0x2000
_COROUTINE = 0x80
_ONLY_AST = 0x400


class Channel:
    """Frames to and from the host."""

    def __init__(self) -> None:
        # Duplicates are closed on exec, so that no subprocess gets them.
        self._input = os.dup(0)
        self._output = os.dup(1)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self._buffer = b""

    def fileno(self) -> int:
        return self._input

    @property
    def has_more(self) -> bool:
        """Whether another frame has been read, at least in part."""
        return bool(self._buffer)

    def send(self, kind: str, *payloads: bytes) -> None:
        header = " ".join([kind, *(str(len(payload)) for payload in payloads)])
        data = memoryview(b"".join([header.encode(), b"\n", *payloads]))
        while data:
            data = data[os.write(self._output, data) :]

    def receive(self) -> "tuple[str, list[bytes]]":
        """Return the next frame. Exits if the host has closed the pipe."""
        while b"\n" not in self._buffer:
            self._read()
        header, _, self._buffer = self._buffer.partition(b"\n")
        kind, *lengths = header.decode().split(" ")
        payloads: list[bytes] = []
        for length in map(int, lengths):
            while len(self._buffer) < length:
                self._read()
            payloads.append(self._buffer[:length])
            self._buffer = self._buffer[length:]
        return kind, payloads

    def _read(self) -> None:
        data = os.read(self._input, _CHUNK_BYTES)
        if not data:
            os._exit(0)
        self._buffer += data


def limit(settings: "list[str]") -> None:
    """Set the resource limits of this process and its children. They cannot be raised again."""
    import resource

    for setting in settings:
        name, _, value = setting.partition("=")
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        bound = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(number, (bound, bound))


class Cells:
    """Runs cells in one namespace, like a notebook. The value of a last expression is printed."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._count = 0
        self._loop: Any = None
        self._calls: dict[str, tuple[Any, int]] = {}
        """Number of a pending call → its future, and the bytes of its arguments."""
        self._made = 0
        self._max_calls = self._max_bytes = 0
        self._answer_came: Any = None
        # The code's own `__main__`, so that its classes can be pickled and nothing of ours is in it.
        self._kernel = sys.modules["__main__"]
        sys.modules["__main__"] = main = type(sys)("__main__")
        self.namespace: dict[str, Any] = main.__dict__
        self.namespace["__builtins__"] = __builtins__
        self.namespace["display"] = display

    def run(self, source: str) -> str:
        """Run a cell, and return how it ended, as `ok` or `error`."""
        self._count += 1
        name = f"<cell {self._count}>"
        try:
            tree: Any = self._parsed(source, name)
            last = tree.body.pop() if tree.body and type(tree.body[-1]).__name__ == "Expr" else None
            self._execute(compile(tree, name, "exec", _TOP_LEVEL_AWAIT))
            if last is not None:
                import _ast

                self._execute(compile(_ast.Interactive([last]), name, "single", _TOP_LEVEL_AWAIT))
            return "ok"
        except SystemExit as stop:
            if stop.code not in (None, 0):
                print(stop.code, file=sys.stderr)
            return "ok" if stop.code in (None, 0) else "error"
        except BaseException as error:
            self._report(error, name, source)
            return "error"
        finally:
            self._flush()

    def _parsed(self, source: str, name: str) -> "Any":
        """Parse a cell. Commands of a notebook, such as `!pip` and `%matplotlib`, are explained and skipped."""
        try:
            return compile(source, name, "exec", _ONLY_AST | _TOP_LEVEL_AWAIT)
        except SyntaxError:
            lines = source.splitlines(True)
            marked = [number for number, line in enumerate(lines) if line.lstrip()[:1] in ("!", "%")]
            if not marked:
                raise
            for number in marked:
                command = lines[number].strip()
                indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
                lines[number] = f"{indent}pass\n"
                print(f"{command}: skipped. {_explained(command)}", file=sys.stderr)
            return compile("".join(lines), name, "exec", _ONLY_AST | _TOP_LEVEL_AWAIT)

    def _flush(self) -> None:
        # Code may have replaced or closed them.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception as error:
                os.write(2, f"output was lost: {type(error).__name__}\n".encode())

    def _execute(self, code: "Any") -> None:
        if code.co_flags & _COROUTINE:
            self._complete(eval(code, self.namespace))
        else:
            exec(code, self.namespace)

    def _complete(self, work: "Coroutine[Any, Any, Any]") -> None:
        """Run a cell that awaits, in one loop for all cells."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._channel.fileno(), self._answered)
        try:
            self._loop.run_until_complete(work)
        finally:
            self._loop.remove_reader(self._channel.fileno())

    def offer(self, names: "list[str]", max_calls: int, max_bytes: int) -> None:
        """Define an async function for each tool of the agent.

        The host ends a container that exceeds the limits.
        """
        self._max_calls, self._max_bytes = max_calls, max_bytes
        self._calls.clear()
        for name in names:
            self.namespace[name] = self._function(name)

    def _function(self, name: str) -> "Callable[..., Awaitable[Any]]":
        async def call(*positional: "Any", **arguments: "Any") -> "Any":
            import json

            if positional:
                raise TypeError(f"{name}() takes keyword arguments only")
            data = json.dumps(arguments).encode()
            if len(data) > self._max_bytes:
                raise ValueError(
                    f"{name}() takes at most {self._max_bytes} bytes of arguments as JSON, not {len(data)}"
                )
            result = await self._sent(name, data)
            if result["is_error"]:
                raise RuntimeError(f"{name} failed: {json.dumps(result['result'])}")
            return result["result"]

        call.__name__ = call.__qualname__ = name
        return call

    async def _sent(self, name: str, data: bytes) -> "Any":
        """Send a call once the limits allow it, and wait for its answer."""
        import asyncio

        while len(self._calls) >= self._max_calls or self._pending_bytes() + len(data) > self._max_bytes:
            self._answer_came = self._answer_came or asyncio.Event()
            self._answer_came.clear()
            await self._answer_came.wait()
        self._made += 1
        number = str(self._made)
        answer = asyncio.get_running_loop().create_future()
        self._calls[number] = answer, len(data)
        self._channel.send("call", number.encode(), name.encode(), data)
        return await answer

    def _pending_bytes(self) -> int:
        return sum(size for _, size in self._calls.values())

    def _answered(self) -> None:
        import json

        is_more = True
        while is_more:
            kind, payloads = self._channel.receive()
            answer, _ = self._calls.pop(payloads[0].decode(), (None, 0)) if kind == "answer" else (None, 0)
            if answer is not None and not answer.done():
                answer.set_result(json.loads(payloads[1]))
            if self._answer_came is not None:
                self._answer_came.set()
            # Frames that are already buffered do not make the pipe readable again.
            is_more = self._channel.has_more

    def _report(self, error: BaseException, name: str, source: str) -> None:
        import linecache
        import traceback

        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        frames = error.__traceback__
        while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<cell "):
            frames = frames.tb_next
        try:
            traceback.print_exception(type(error), error, frames)
            if isinstance(error, ModuleNotFoundError):
                print(_missing(error.name or ""), file=sys.stderr)
        except BaseException as failure:
            print(f"{type(error).__name__} (its message failed: {type(failure).__name__})", file=sys.stderr)


def display(*values: "Any") -> None:
    """Print values, as the function of this name does in a notebook."""
    for value in values:
        print(repr(value))


_NO_INSTALLING = "There is no network and nothing can be installed from inside; use what is installed."


def _explained(command: str) -> str:
    """Return why a notebook's command does not run here, and what does."""
    words = command.lstrip("!% ").split()
    if words[:1] in (["pip"], ["pip3"], ["conda"], ["apt"], ["apt-get"], ["uv"]) or words[:3] == [
        "python",
        "-m",
        "pip",
    ]:
        return _NO_INSTALLING
    if words[:1] == ["matplotlib"]:
        return "Figures are shown anyway."
    if command.startswith("!"):
        return "This is Python, not a notebook: run a program with subprocess.run([...])."
    return "This is Python, not a notebook: leave such commands out."


def _missing(name: str) -> str:
    """Return advice for a module that cannot be imported."""
    top = name.partition(".")[0]
    return f"The package {top!r} is not installed in this sandbox. {_NO_INSTALLING}" if top else _NO_INSTALLING


def figures() -> "Iterator[bytes]":
    """Yield matplotlib's open figures that no code has saved, as PNG, and close all."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    import io

    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        if not getattr(figure, "_was_saved", False):
            data = io.BytesIO()
            figure.savefig(data, format="png", bbox_inches="tight")
            yield data.getvalue()
    pyplot.close("all")


class Folder:
    """The working folder, with a record of files already delivered."""

    def __init__(self, path: str, max_files: int, max_bytes: int) -> None:
        self._path = path
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._known: dict[str, tuple[int, int, int]] = {}

    def put(self, name: str, data: bytes) -> None:
        """Write a file of the host's, which is not a deliverable."""
        path = os.path.join(self._path, name)
        with open(path, "wb") as file:
            file.write(data)
        self._known[path] = self._mark(os.lstat(path))

    def deliver(self, channel: Channel) -> None:
        """Send new and changed regular files. Links, pipes and files that are too large are left out."""
        sent = 0
        for path, status in self._files():
            mark = self._mark(status)
            if self._known.get(path) == mark:
                continue
            self._known[path] = mark
            name = os.path.relpath(path, self._path).encode("utf-8", "replace")
            if sent >= self._max_files or status.st_size > self._max_bytes:
                channel.send("skipped", name, str(status.st_size).encode())
                continue
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with open(handle, "rb") as file:
                    data = file.read(self._max_bytes + 1)
            except OSError:
                continue
            channel.send("file", name, data)
            sent += 1

    def _files(self) -> "Iterator[tuple[str, os.stat_result]]":
        folders = [self._path]
        seen = 0
        while folders:
            try:
                entries = sorted(os.scandir(folders.pop()), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                seen += 1
                if seen > 10_000:
                    return
                if entry.name.startswith(".") or entry.name == "__pycache__":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:  # it was removed, or its path is too long
                        continue
                    yield entry.path, status

    def _mark(self, status: os.stat_result) -> "tuple[int, int, int]":
        return status.st_mtime_ns, status.st_size, status.st_ino


def run_command(channel: Channel, command: str, folder: str, timeout_s: float) -> None:
    """Run a shell command, sending its output as frames while it runs."""
    import select
    import signal
    import subprocess
    import time

    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    end = time.monotonic() + timeout_s
    assert process.stdout is not None
    assert process.stderr is not None
    pipes = {process.stdout.fileno(): "out", process.stderr.fileno(): "err"}
    timed_out = False
    while pipes and not timed_out:
        left = end - time.monotonic()
        # A background process may hold the pipes, so once the command has ended, read only what is there.
        over = process.poll() is not None
        ready = select.select(list(pipes), [], [], 0.02 if over else max(0.0, min(left, 0.1)))[0]
        for pipe in ready:
            data = os.read(pipe, _CHUNK_BYTES)
            if data:
                channel.send(pipes[pipe], data)
            else:
                del pipes[pipe]
        timed_out = left <= 0 and not over
        if over and not ready:
            break
    if timed_out or process.poll() is None:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            timed_out = True
    if timed_out:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    channel.send("exit", b"timeout" if timed_out else str(process.returncode).encode())


def reap() -> None:
    """Reap orphaned processes, as the first process of a container must."""
    import contextlib

    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    """Run the kernel: `kernel.py FOLDER MAX_FILES MAX_FILE_BYTES [LIMIT=VALUE …]`."""
    path, max_files, max_bytes, *limits = sys.argv[1:]
    channel = Channel()
    limit(limits)
    sys.argv[:] = [""]
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]
    sys.path[:0] = [path]
    sys.path += [entry for entry in os.environ.get("SANDBOX_PACKAGES", "").split(":") if entry]
    sys.stdout.reconfigure(line_buffering=True, errors="replace")  # pyright: ignore
    os.chdir(path)
    folder = Folder(path, int(max_files), int(max_bytes))
    cells = Cells(channel)
    channel.send("ready")
    while True:
        kind, payloads = channel.receive()
        try:
            serve(kind, payloads, channel, cells, folder, path)
        except MemoryError:
            channel.send("done", b"memory")


def serve(kind: str, payloads: "list[bytes]", channel: Channel, cells: Cells, folder: Folder, path: str) -> None:
    """Handle one frame from the host."""
    if kind == "cell":
        status = cells.run(payloads[0].decode())
        try:
            for image in figures():
                channel.send("image", image)
        except Exception as error:
            print(f"a figure could not be drawn: {error}", file=sys.stderr, flush=True)
        folder.deliver(channel)
        channel.send("done", status.encode())
    elif kind == "shell":
        run_command(channel, payloads[0].decode(), path, float(payloads[1]))
        reap()
    elif kind == "deliver":
        folder.deliver(channel)
        channel.send("done", b"ok")
    elif kind == "put":
        try:
            folder.put(payloads[0].decode(), payloads[1])
            channel.send("done", b"ok")
        except OSError as error:
            channel.send("done", str(error).encode("utf-8", "replace")[:1000])
    elif kind == "tools":
        cells.offer(payloads[0].decode().split(), int(payloads[1]), int(payloads[2]))


if __name__ == "__main__":
    main()
