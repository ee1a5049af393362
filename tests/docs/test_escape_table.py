"""The table in docs/escapes.md is the one that the tests of the sandboxes compare with."""

import runpy

from support.places import ROOT


def test_documented_escape_table_is_up_to_date() -> None:
    page = (ROOT / "docs/escapes.md").read_text("utf-8")
    assert runpy.run_path(str(ROOT / "tools/docs/generate.py"))["filled"](page) == page, (
        "run: python tools/docs/generate.py"
    )
