"""What the conformance suite starts for each scenario: it has the clients run in the process that started the suite.

    python -I -S conformance_launcher.py SOCKET URL

A client of its own for each scenario would spend seconds on imports, dozens of them at the same time.
"""

import json
import os
import socket
import sys


def main() -> None:
    given = {
        "url": sys.argv[2],
        "scenario": os.environ.get("MCP_CONFORMANCE_SCENARIO", ""),
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}"),
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        connection.sendall(json.dumps(given).encode() + b"\n")
        failure = connection.makefile("r", encoding="utf-8").read()
    sys.exit(failure or 0)


if __name__ == "__main__":
    main()
