"""The Python code in README.md and docs/ works.

A block whose first line is `# file: name.py` is a program: it is run in an empty folder, without an API key.
Every other ```python block must compile (top-level await is allowed). Use ```python no-run for a program that needs a
key: it is only compiled.

A comment before a block, `<!-- fake: ResponsesScript().text("Hi.") -->`, is a script of `sidestream.testing`, or a list
of scripts: the program, which names a real provider, then runs against a fake one. A ```text block after
`<!-- output -->` is what the program before it prints.
"""

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from support.doc_fakes import fake_before, faked
from support.places import ROOT
from support.warm import run

FENCE = re.compile(r"^([ \t]*)```python([^\n`]*)\n(.*?)^\1```[ \t]*$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"\s*<!-- output -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"# file: ([\w-]+\.py)\n")
TIMEOUT_S = 100
KEPT_VARIABLES = ("PATH", "TMPDIR", "SYSTEMROOT")


class Block(NamedTuple):
    where: str  # page:line
    source: str
    program: str | None  # the file name, if the block is run
    fake: str | None = None  # the script of the fake provider
    output: str | None = None  # what it prints, if the page shows it


def blocks(page: str, text: str) -> list[Block]:
    """The Python blocks of a page."""
    found: list[Block] = []
    for fence in FENCE.finditer(text):
        source = textwrap.dedent(fence[3])
        line = text.count("\n", 0, fence.start(3)) + 1
        name = PROGRAM.match(source)
        runs = name is not None and fence[2].strip() != "no-run"
        shown = OUTPUT.match(text, fence.end())
        output = shown[1] if shown else None
        program = name[1] if name and runs else None
        found.append(Block(f"{page}:{line}", source, program, fake_before(text, fence.start()), output))
    return found


def compile_block(block: Block) -> None:
    compile(block.source, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def run_program(block: Block, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a block as its reader would: saved under its name, in its own folder."""
    assert block.program
    (folder / block.program).write_text(block.source, "utf-8")
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return run(
        [sys.executable, block.program],
        cwd=folder,
        env={**kept, "HOME": str(folder), "LANG": "C.UTF-8", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=TIMEOUT_S,
    )


PAGES = [path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if path.is_file()]
BLOCKS = [block for path in PAGES for block in blocks(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_code_block_compiles(block: Block):
    compile_block(block)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.program], ids=lambda block: block.where)
def test_program_runs_without_key(block: Block, tmp_path: Path):
    with faked(block.fake) as variables:
        done = run_program(block, tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    if block.output is not None:
        assert done.stdout.rstrip() == block.output.rstrip()


def test_first_readme_program_runs_unchanged(tmp_path: Path) -> None:
    readme = next(block for block in BLOCKS if block.where.startswith("README.md"))
    assert readme.program is not None
    with faked(readme.fake) as variables:
        done = run_program(readme, tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert "[web_search: running]" in done.stdout
    assert done.stdout.endswith("Version 4.")


# Tests of the finder and the runner, on a small page.

PAGE = """\
Some words.

```python
# file: hello.py
print("hello")
```

- In a list:

  ```python
  answer = await agent.send("…")
  ```

```python no-run
# file: costly.py
raise SystemExit(1)
```

<!-- fake: ResponsesScript().text("Hi.") -->

```python
# file: faked.py
print("Hi.")
```

<!-- output -->
```text
Hi.
```

```text
not Python
```
"""


def test_finder_distinguishes_programs_from_fragments():
    assert blocks("page.md", PAGE) == [
        Block("page.md:4", '# file: hello.py\nprint("hello")\n', "hello.py"),
        Block("page.md:11", 'answer = await agent.send("…")\n', None),
        Block("page.md:15", "# file: costly.py\nraise SystemExit(1)\n", None),
        Block("page.md:22", '# file: faked.py\nprint("Hi.")\n', "faked.py", 'ResponsesScript().text("Hi.")', "Hi.\n"),
    ]


def test_top_level_await_compiles_and_broken_code_does_not():
    compile_block(Block("page.md:1", "await done\n", None))
    with pytest.raises(SyntaxError):
        compile_block(Block("page.md:1", "await = 1\n", None))


def test_program_runs_in_its_folder_without_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    source = "import os\nprint(os.getcwd(), 'OPENAI_API_KEY' in os.environ)\n"
    done = run_program(Block("page.md:1", source, "look.py"), tmp_path)
    assert done.stdout.split() == [str(tmp_path), "False"]


def test_failing_program_is_reported(tmp_path: Path):
    done = run_program(Block("page.md:1", "raise SystemExit('no')\n", "fails.py"), tmp_path)
    assert (done.returncode, done.stderr) == (1, "no\n")
