"""Libraries with threads of their own, written in Rust, do not abort a program that ends right after it used them."""

import subprocess
import sys

import pytest

USES = {
    "monty": """
import asyncio
from sidestream.portable.sandbox import choice
from sidestream.portable.sandbox.port import ContainerSpec

async def main():
    await (await choice.start("monty", ContainerSpec(packages=()))).kill()
""",
    "temporal": """
import asyncio
from sidestream.durable.engines.protocol import EngineError
from sidestream.durable.engines.temporal.address import connect, parse_address

async def main():
    try:
        await connect(parse_address("temporal://127.0.0.1:9/none"))
    except EngineError:
        pass
""",
}
"""Library → a program that uses it."""
COUNTED = """
import atexit, time
waits, register = [], atexit.register

def counted(*arguments):
    waits.append(arguments)
    return register(*arguments)

atexit.register = counted
{use}
asyncio.run(main())
print(len([each for each in waits if each[0] is time.sleep]))
"""

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="threads are safe at exit")


@pytest.mark.parametrize("library", USES)
def test_program_waits_at_exit_after_using_native_threads(library: str):
    pytest.importorskip({"monty": "pydantic_monty", "temporal": "temporalio"}[library])
    program = COUNTED.format(use=USES[library])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
