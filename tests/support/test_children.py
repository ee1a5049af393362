"""What tests may rely on when they start processes."""

import ast
import re
import signal
import subprocess
import sys

import pytest

from support.children import catch_ignored_signals, ends, started
from support.places import TESTS

MAY_WAIT = re.compile(r"\.(wait|join)\(\s*\)|\.communicate\(|subprocess\.(run|call|check_call|check_output)\(")
"""Found in every source with a wait that may be endless; parsing them all takes seconds."""
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ignored_by_launcher_is_not_ignored_by_children(number: signal.Signals):
    assert signal.getsignal(number) is not signal.SIG_IGN  # conftest.py has seen to it
    before = signal.signal(number, signal.SIG_IGN)
    try:
        catch_ignored_signals()
        signal.raise_signal(number)  # still ignored here
        # Short sleeps: Python may be about to sleep when the signal comes, and would notice it after that.
        program = "import time; print('ready', flush=True); [time.sleep(0.1) for _ in range(600)]"
        with started(sys.executable, "-c", program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(number)
            assert child.wait(30) == -number
    finally:
        signal.signal(number, before)


def test_started_process_ends_with_its_block():
    with started(sys.executable, "-c", "import time; time.sleep(60)") as child:
        assert not ends(child.pid, 0)
    assert ends(child.pid, 0)


def endless_waits(source: str) -> list[int]:
    """The lines that may wait for ever for a process or a thread."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Await | ast.Call)]
    awaited = {id(node.value) for node in nodes if isinstance(node, ast.Await)}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "wait_for":
            awaited |= {id(argument) for argument in node.args}  # bounded by its second argument
    found: list[int] = []
    for node in nodes:
        if not isinstance(node, ast.Call) or id(node) in awaited:
            continue
        match node.func:
            case ast.Attribute(value=ast.Name("subprocess"), attr="run" | "call" | "check_call" | "check_output"):
                is_bounded = any(keyword.arg == "timeout" for keyword in node.keywords)
            case ast.Attribute(value=ast.Call()):
                is_bounded = True  # a coroutine made here, not a wait
            case ast.Attribute(attr="wait" | "join"):
                is_bounded = bool(node.args or node.keywords)
            case ast.Attribute(attr="communicate"):
                is_bounded = any(keyword.arg == "timeout" for keyword in node.keywords)
            case _:
                is_bounded = True
        if not is_bounded:
            found.append(node.lineno)
    return found


def test_no_test_waits_indefinitely_for_process_or_thread():
    sources = {path.relative_to(TESTS).as_posix(): path.read_text("utf-8") for path in TESTS.glob("**/*.py")}
    found = {name: endless_waits(source) for name, source in sources.items() if MAY_WAIT.search(source)}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("line", "is_endless"),
    [
        ("child.wait()", True),
        ("thread.join()", True),
        ("child.communicate(b'')", True),
        ("subprocess.run(command, check=True)", True),
        ("child.wait(5)", False),
        ("subprocess.run(command, timeout=5)", False),
        ("','.join(words)", False),
    ],
)
def test_endless_wait_is_detected(line: str, is_endless: bool):
    assert endless_waits(line) == [1] * is_endless
    assert not is_endless or MAY_WAIT.search(line)
