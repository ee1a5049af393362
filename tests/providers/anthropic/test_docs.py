"""The documented matrix is the one that the decoder's tables give."""

import runpy

from support.places import ROOT


def test_documented_event_matrix_is_current():
    page = (ROOT / "docs/anthropic.md").read_text(encoding="utf-8")
    matrix = runpy.run_path(str(ROOT / "tools/docs/event_matrix_anthropic.py"))["matrix"]()
    assert page.partition("<!-- matrix -->\n")[2] == matrix, (
        "run: python tools/docs/event_matrix_anthropic.py, and put it into the page"
    )
