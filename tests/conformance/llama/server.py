"""llama.cpp's own server, on loopback, as a program of its own.

The first line of stdin is a JSON object of the settings; the address is the only line on stdout. The server lives
until stdin is closed, so it also ends with a parent that was killed.
"""

import json
import sys
from typing import Any

import xllamacpp

CONTEXT_TOKENS = 2048


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    llama: Any = xllamacpp  # it has no types
    params = llama.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["alias"]}
    params.api_keys = [settings["key"]]
    if hasattr(params, "hostnames"):
        params.hostnames = ["127.0.0.1"]
    else:  # xllamacpp before 2026.10
        params.hostname = "127.0.0.1"
    params.port = 0  # any that is free
    params.use_jinja = True
    params.chat_template = settings["template"]
    params.n_ctx = CONTEXT_TOKENS
    # More threads spin while they wait for each other: with tests beside them, one is the fastest.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    # One request at a time and nothing kept of those before it: the same question gets the same answer.
    params.n_parallel = 1
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.warmup = False
    params.offline = True
    params.ui = False
    server = llama.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
