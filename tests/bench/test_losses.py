"""The table of what others lose is the report's, Sidestream loses nothing of it, and a library that does is recorder."""

# pyright: reportMissingImports=false

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the bench is no part of the package

from bench.losses.__main__ import observe  # noqa: E402
from bench.losses.judge import JUDGES, NO, NOT_TRIED, RAW, YES, Observation  # noqa: E402
from bench.losses.libraries import LIBRARIES, Library  # noqa: E402
from bench.losses.probes import FILE, FILE_ID, FIRST_CODE, HALF, LAST_CODE, PROBES, SEARCH_ID, UNKNOWN_MARKER  # noqa: E402
from bench.losses.report import BEGIN, END, block, in_readme, markdown, with_table  # noqa: E402

REPORT = ROOT / "bench" / "results" / "losses.json"
PEER = Library("peer", "peer", "", "peer", raw=(".details",))


def report() -> dict[str, Any]:
    return json.loads(REPORT.read_text("utf-8"))


def judged(name: str, *events: Any, results: Any = (), **fields: Any) -> Any:
    """The cell of a library that yielded these values, each as path, class and value."""
    flat = [{"type": "peer.Event", "leaves": leaves} for leaves in events]
    found = [{"type": "peer.Result", "leaves": leaves} for leaves in results]
    known = {"error": None, "warnings": [], "is_loop_over": True, "requests": [], **fields}
    return JUDGES[name](Observation(library=PEER, events=flat, results=found, **known))


def test_readme_table_matches_report():
    assert in_readme((ROOT / "README.md").read_text("utf-8")) == block(report())
    assert REPORT.with_suffix(".md").read_text("utf-8") == markdown(report())


def test_report_has_every_probe_library_and_evidence():
    rows = report()["rows"]
    assert list(rows) == [probe.name for probe in PROBES] == list(JUDGES)
    for row in rows.values():
        assert list(row["cells"]) == [library.title for library in LIBRARIES]
        assert all(cell["verdict"] in (YES, RAW, NO, NOT_TRIED) and cell["evidence"] for cell in row["cells"].values())


async def test_sidestream_passes_every_probe_as_reported():
    cells = await observe(LIBRARIES[0], Path(sys.executable))
    assert {name: (cell.verdict, cell.evidence) for name, cell in cells.items() if cell.verdict != YES} == {}
    assert {row["cells"]["Sidestream"]["verdict"] for row in report()["rows"].values()} == {YES}


@pytest.mark.parametrize("name", list(JUDGES))
def test_library_without_output_fails_every_probe(name: str):
    assert judged(name).verdict == NO


def test_value_is_typed_raw_or_missing_by_its_container():
    own = ["Event.hologram", "peer.Event", FIRST_CODE]
    passed = ["Event.data.code", "vendor.Delta", FIRST_CODE]
    marked = ["Event.details.code", "peer.Event", FIRST_CODE]
    assert judged("code", [own]).verdict == YES
    assert judged("code", [passed]).verdict == RAW
    assert judged("code", [marked]).verdict == RAW
    assert judged("code", [marked], [own]).verdict == YES
    assert judged("unknown", [["Event.data", "vendor.Delta", UNKNOWN_MARKER]]).verdict == YES


def test_code_delivered_whole_does_not_count_as_streamed():
    cell = judged("code", [["Event.code", "peer.Event", f"{FIRST_CODE}\n{LAST_CODE}"]])
    assert cell.text == "no (whole code at the end)"


def test_all_search_stages_are_required():
    def stage(name: str) -> list[list[str]]:
        return [["Event.id", "peer.Event", SEARCH_ID], ["Event.stage", "peer.Event", name]]

    assert judged("stages", stage("in_progress"), stage("searching"), stage("completed")).verdict == YES
    assert judged("stages", stage("in_progress"), stage("completed")).text == "no (start and end of the call)"


def test_file_counts_by_bytes_not_id():
    data = base64.b64encode(FILE).decode()
    assert judged("file", results=[[["Result.file", "peer.File", data]]]).verdict == YES
    assert judged("file", results=[[["Result.file", "peer.File", FILE_ID]]]).text == "no (its id)"


def test_cut_answer_is_reported_in_or_after_loop():
    text = [["Event.text", "peer.Event", HALF]]
    assert judged("ended", text, error="Cut: short", is_loop_over=False).text == "yes"
    assert judged("ended", text, error="Cut: short").text == "yes (after the loop)"
    assert judged("ended", text, results=[text]).verdict == NO
    assert judged("ended", error="Refused: 401").verdict == NOT_TRIED


def test_wrongly_called_library_counts_as_not_tried():
    assert judged("previews", error="TypeError: unexpected keyword").verdict == NOT_TRIED
    assert judged("previews", error="NotImplementedError: not yet").verdict == NO


def test_table_replaces_only_text_between_marks():
    text = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", report())
    assert in_readme(text) == block(report())
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    with pytest.raises(ValueError, match="no <!-- losses -->"):
        with_table("nothing here", report())
