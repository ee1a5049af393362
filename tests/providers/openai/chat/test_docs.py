"""The documented tables are those that the code gives."""

import re
import runpy

from sidestream.providers.openai.chat.provider import DROPPED, REFUSALS
from support.places import ROOT

PAGE = (ROOT / "docs/openai-chat.md").read_text(encoding="utf-8")
TABLES = runpy.run_path(str(ROOT / "tools/docs/event_matrix_openai_chat.py"))
HINT = "run: python tools/docs/event_matrix_openai_chat.py, and put it into the page"


def test_documented_event_matrix_is_current():
    assert PAGE.partition("<!-- matrix -->\n")[2] == TABLES["matrix"](), HINT


def test_documented_presets_are_current():
    found = re.search(r"<!-- presets -->\n(.*?)<!-- /presets -->", PAGE, re.DOTALL)
    assert found
    assert found[1] == TABLES["presets"](), HINT


def test_every_droppable_parameter_is_documented():
    assert DROPPED in PAGE
    for refusal in REFUSALS:
        assert f"`{refusal.recovery.drop}`" in PAGE
