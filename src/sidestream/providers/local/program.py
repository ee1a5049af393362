"""A separate program that runs llama.cpp's server on loopback. It imports nothing from the package.

The first line of stdin holds the settings as JSON, so that other users of the machine cannot read the key. The program
prints the server's URL to stdout, on a separate line after `MARK`. It exits at the end of stdin, and thus when its
parent is killed.
"""

import importlib
import json
import os
import sys
import threading
import time
from typing import Any

MARK = "sidestream-local "
PARENT_INTERVAL_S = 1.0
CACHE_MIB = 256
"""Memory for cached prompt prefixes. With tools they are long, and evaluating them takes most of the time."""


def main() -> None:
    """Serve until the parent exits."""
    parent = os.getppid()
    settings = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.path[:] = settings["path"]
    llama: Any = importlib.import_module("xllamacpp")  # has no types
    params = llama.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["alias"]}
    if settings["template"] is not None:  # else the file's template
        params.chat_template = settings["template"]
    params.use_jinja = True
    params.api_keys = [settings["key"]]
    if hasattr(params, "hostnames"):
        params.hostnames = ["127.0.0.1"]
    else:  # before 2026.10
        params.hostname = "127.0.0.1"
    params.port = 0  # any free port
    params.n_ctx = settings["context_tokens"]
    params.n_parallel = settings["parallel"]
    params.kv_unified = True  # a single request has the whole context
    params.n_predict = settings["answer_tokens"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    if settings["is_deterministic"]:
        params.sampling.temp = 0.0
    params.cache_ram_mib = CACHE_MIB
    params.n_gpu_layers = settings["gpu_layers"]
    params.fit_params = False
    params.verbosity = settings.get("verbosity", 1)
    params.warmup = False
    params.endpoint_slots = False
    params.offline = True
    params.ui = False
    server = llama.Server(params)
    print(f"\n{MARK}{server.listening_address}", flush=True)
    # If another child of the parent inherited the pipe, stdin stays open after the parent has exited.
    while os.getppid() == parent:
        time.sleep(PARENT_INTERVAL_S)
    os._exit(0)


def _end_with_stdin() -> None:
    # Not through sys.stdin: a thread that blocks in it breaks the exit after an error.
    while os.read(0, 1):
        pass
    # Skip cleanup: there is nothing to save, and a busy server would delay the exit.
    os._exit(0)


if __name__ == "__main__":
    main()
