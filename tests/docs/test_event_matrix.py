"""The event matrix in the docs matches the decoder's tables."""

import runpy

from support.places import ROOT


def test_documented_event_matrix_is_up_to_date() -> None:
    page = (ROOT / "docs/openai-responses.md").read_text(encoding="utf-8")
    matrix = runpy.run_path(str(ROOT / "tools/docs/event_matrix.py"))["matrix"]()
    assert page.partition("<!-- matrix -->\n")[2] == matrix, "run: python tools/docs/generate.py"
