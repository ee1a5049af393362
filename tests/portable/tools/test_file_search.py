"""File search on a model without one: results, queries and sources as the hosted tool has them."""

from pathlib import Path

import pytest

from requirements import requirement
from sidestream import Agent, Comparison, FileSearch
from sidestream.testing import ScriptedModel, tool_call
from support.portable_index import pdf_of, write_corpus


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIDESTREAM_INDEX", str(tmp_path / "index.db"))
    write_corpus(tmp_path / "docs")
    (tmp_path / "docs" / "report.pdf").write_bytes(pdf_of(["An introduction", "The harvest was good"]))
    return tmp_path / "docs"


async def searched(tool: FileSearch, *queries: str, answer: str = "Done"):
    async with Agent(
        ScriptedModel([tool_call("file_search", queries=list(queries)), answer]), server_side_tools=[tool]
    ) as agent:
        return await agent.send("Look it up")


@requirement("R126")
async def test_folder_search_has_hosted_results_and_sources(docs: Path):
    answer = "The harvest was good [cite:1]."
    result = await searched(FileSearch(stores=[str(docs)], max_results=1), "harvest", answer=answer)
    (entry,) = result.tool_results
    assert (entry.result["status"], entry.result["queries"]) == ("completed", ["harvest"])
    (hit,) = entry.result["results"]
    assert (hit["filename"], hit["text"], hit["page"]) == ("report.pdf", "The harvest was good", 2)
    assert 0 < hit["score"] <= 1
    assert hit["attributes"]["extension"] == "pdf"
    (source,) = result.sources
    assert (source.kind, source.file_id, source.title) == ("document", hit["file_id"], "report.pdf")
    assert (source.cited_text, source.evidence.state) == ("The harvest was good", "quoted")
    place = {"cite": 1, "page": 2, "start": hit["start"], "end": hit["end"]}
    assert source.provider_metadata == {"sidestream": place}


async def test_search_takes_several_queries_filters_and_stores(docs: Path):
    only = Comparison(attribute="extension", value="txt")
    result = await searched(FileSearch(stores=[str(docs)], filters=only), "pasta", "brakes")
    (entry,) = result.tool_results
    assert {hit["filename"] for hit in entry.result["results"]} == {"cooking.txt"}
    result = await searched(FileSearch(stores=["index:"], max_results=1), "windowsill")
    assert [hit["filename"] for hit in result.tool_results[0].result["results"]] == ["cats.html"]
    result = await searched(FileSearch(stores=[str(docs / "sub")], max_results=5), "pasta harvest windowsill")
    assert {hit["filename"] for hit in result.tool_results[0].result["results"]} == {"cats.html"}


async def test_missing_store_is_error_result(docs: Path):
    result = await searched(FileSearch(stores=["/no/such/folder"]), "x")
    (entry,) = result.tool_results
    assert entry.is_error
    assert "does not exist" in entry.result["error"]


async def test_call_without_query_searches_for_question(docs: Path):
    (entry,) = (await searched(FileSearch(stores=[str(docs)]), " ")).tool_results
    assert entry.result["queries"] == ["Look it up"]
