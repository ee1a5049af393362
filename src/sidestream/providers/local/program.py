"""llama.cpp's own server on loopback, as a program of its own. Nothing of the package is imported here.

The first line of stdin is a JSON object of the settings, so that no other user of the machine can read the key. The
address is written to stdout, on a line of its own after `MARK`. The program ends when stdin does, and so with a parent
that was killed.
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
"""For the beginnings of prompts that were read: with tools they are long, and reading takes longest."""


def main() -> None:
    """Serves until the parent is gone."""
    parent = os.getppid()
    settings = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.path[:] = settings["path"]
    llama: Any = importlib.import_module("xllamacpp")  # it has no types
    params = llama.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["alias"]}
    params.chat_template = settings["template"]
    params.use_jinja = True
    params.api_keys = [settings["key"]]
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any that is free
    params.n_ctx = settings["context_tokens"]
    params.n_parallel = settings["parallel"]
    params.kv_unified = True  # one request alone has the whole context
    params.n_predict = settings["answer_tokens"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.sampling.temp = 0.0  # the same question gets the same answer
    params.cache_ram_mib = CACHE_MIB
    params.n_gpu_layers = 0
    params.fit_params = False
    params.verbosity = settings.get("verbosity", 1)
    params.warmup = False
    params.endpoint_slots = False
    params.offline = True
    params.ui = False
    server = llama.Server(params)
    print(f"\n{MARK}{server.listening_address}", flush=True)
    # The pipe stays open where the parent had a child of its own that inherited it: that is seen here.
    while os.getppid() == parent:
        time.sleep(PARENT_INTERVAL_S)
    os._exit(0)


def _end_with_stdin() -> None:
    # Not through sys.stdin: a thread that waits in it breaks the end of a program that failed.
    while os.read(0, 1):
        pass
    # At once: there is nothing to save, and a server that is busy would take its time.
    os._exit(0)


if __name__ == "__main__":
    main()
