"""Citations of files: compared with what a search returned, the documents of a request, or the provider's copy."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from server.chat_client import chatting
from sidestream import Agent, Chat, ChatResult, DataPart, FileSearch, Limits, WebSearch, open_store
from sidestream.evidence import EvidenceCheck
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.store.log.conversation import Conversation
from sidestream.store.records import EvidenceChecked
from sidestream.testing import FakeProvider, MessagesScript, Reply, ResponsesScript, error_reply, json_reply
from support.places import RECORDINGS
from support.portable_index import pdf_of
from support.web_pages import page, serve

TEXT = "The bridge is 1,870 metres long. It opened on 9 June 1967."
CLAIMS = ["The bridge is 1,870 metres long.", "The bridge is 1,780 metres long.", "One may walk across."]
STATES = ["quoted", "contradicted", "not-found"]
CONTENT = "/v1/vector_stores/vs_1/files/file-1/content"
STORED = json_reply(
    {"object": "vector_store.file_content.page", "data": [{"type": "text", "text": TEXT}], "has_more": False}
)
REFUSED = error_reply(400, "invalid_request_error", "Not allowed to download files of purpose: assistants")


def citing_file(claims: Sequence[str] = CLAIMS, hits: Sequence[str] | None = None) -> Reply:
    """An answer that cites a file after each claim, with the passages of the search if any were asked for."""
    text, notes = "", list[dict[str, object]]()
    for claim in claims:
        text += f"{claim} "
        notes.append({"type": "file_citation", "file_id": "file-1", "filename": "facts.txt", "index": len(text) - 1})
    results = None if hits is None else [{"file_id": "file-1", "filename": "facts.txt", "text": hit} for hit in hits]
    return ResponsesScript().file_search("bridge", results=results).text(text, annotations=notes).reply()


def agent_at(fake: FakeProvider, **settings: Any) -> Agent:
    tools = [FileSearch(stores=["vs_0", "vs_1"])]
    return Agent("openai-responses:m", base_url=fake.base_url, api_key="k", server_side_tools=tools, **settings)


def states(result: ChatResult[str]) -> list[str]:
    return [source.evidence.state for source in result.sources]


def reasons(result: ChatResult[str]) -> list[str]:
    return [source.evidence.reason for source in result.sources]


@requirement("R231")
async def test_passages_of_search_are_compared_without_request():
    async with FakeProvider([citing_file(hits=[TEXT, "Bridges are old."])] * 2) as fake:
        checked = await agent_at(fake, evidence=EvidenceCheck()).send("How long?")
        result = await agent_at(fake).send("How long?")
        asked = await result.check_evidence()
    assert states(checked) == states(asked) == STATES
    assert all("passages that the search returned" in reason for reason in reasons(asked))
    assert len(fake.requests) == 2
    assert states(result) == ["unchecked"] * 3


@requirement("R231")
async def test_passage_cut_within_sentence_supports_nothing():
    filler = "Nothing else is known about it. " * 12
    hits = [f"the case that the pump leaked badly. {filler}", f"{filler}The valve was closed"]
    claims = ["The pump leaked badly.", "The case that the pump leaked badly.", "The valve was closed."]
    async with FakeProvider([citing_file(claims, hits)]) as fake:
        checked = await (await agent_at(fake).send("And?")).check_evidence()
    assert states(checked) == ["not-found"] * 3


@requirement("R231")
async def test_file_is_read_from_store_and_kept(tmp_path: Path):
    async with FakeProvider([citing_file()]) as fake:
        fake.on("GET", "/v1/vector_stores/vs_0/*", error_reply(404, "not_found"))
        fake.on("GET", CONTENT, STORED)
        store = open_store(tmp_path / "talks.db")
        chat = Chat(agent_at(fake), store=store, id="talk")
        result = await chat.send("How long?")
        alone = await result.check_evidence()
        checked = await chat.check_evidence(alone)
        paths = [request.path for request in fake.requests[1:]]
        (record,) = [
            entry.body
            for entry in await Conversation(store, "talk").records()
            if isinstance(entry.body, EvidenceChecked)
        ]
        assert isinstance(record, EvidenceChecked)
        (kept,) = record.snapshots
        body = await store.blob(kept.sha256)
        await store.aclose()
    assert states(alone) == ["unchecked"] * 3
    assert all("chat.check_evidence" in reason for reason in reasons(alone))
    assert states(checked) == STATES
    assert paths == ["/v1/vector_stores/vs_0/files/file-1/content", CONTENT]
    assert (body, kept.url, kept.size) == (TEXT.encode(), "file-1", len(TEXT))
    assert [claim.snapshot for claim in record.claims] == [kept.sha256] * 3
    metadata = checked.sources[0].provider_metadata or {}
    assert metadata["sidestream"]["snapshot"]["sha256"] == kept.sha256


@requirement("R231")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (REFUSED, "purpose: assistants"),
        (json_reply({"data": [{"type": "text", "text": TEXT}], "has_more": True}), "only a part"),
        (json_reply({"data": [{"type": "text", "text": ""}], "has_more": False}), "no text"),
        (json_reply({"data": [{"type": "text", "text": TEXT * 20}], "has_more": False}), "max_download_bytes"),
        (Reply(body=b"<html>", content_type="text/html"), "cannot be read"),
        (error_reply(404, "not_found"), "purpose: assistants"),
    ],
    ids=["refused", "partial", "empty", "too-large", "garbage", "not-in-store"],
)
async def test_unreadable_file_is_unreachable_and_says_why(content: Reply, reason: str):
    async with FakeProvider([citing_file(CLAIMS[:1])]) as fake:
        fake.on("GET", "/v1/vector_stores/*", content)
        fake.on("GET", "/v1/files/*", REFUSED)
        limits = Limits(max_download_bytes=1000, max_retries=0)
        result = await agent_at(fake, evidence=EvidenceCheck(), limits=limits).send("How long?")
    assert states(result) == ["unreachable"]
    assert reason in reasons(result)[0]
    assert result.finish_reason == "stop"


@requirement("R231")
async def test_run_can_be_closed_while_file_is_read():
    before = asyncio.all_tasks()
    async with FakeProvider([citing_file()]) as fake:
        fake.on("GET", "/v1/vector_stores/*", Reply(gate=asyncio.Event()))
        async with asyncio.timeout(20):
            run = agent_at(fake, evidence=EvidenceCheck()).stream("How long?")
            result = asyncio.ensure_future(run.result())
            await fake.wait_for_requests(2)
            await run.aclose()
            found = await result
    assert states(found) == ["unchecked"] * 3
    assert asyncio.all_tasks() == before


def citing_document(cited: str | None, claim: str, **fields: Any) -> Reply:
    note = {"type": "char_location", "document_index": 0, "cited_text": cited, **fields}
    return MessagesScript().text(claim, citations=[note]).reply()


@requirement("R231")
@pytest.mark.parametrize("kind", ["text", "pdf"])
async def test_document_of_request_is_compared(kind: str):
    document = (
        DataPart(TEXT.encode(), "text/plain", "facts")
        if kind == "text"
        else DataPart(pdf_of([TEXT]), "application/pdf", "facts")
    )
    other = DataPart(b"Nothing about it.", "text/plain", "other")
    replies = [citing_document(CLAIMS[0], claim, document_title=title) for claim in CLAIMS for title in ("facts", None)]
    async with FakeProvider(replies) as fake:
        agent = Agent("anthropic:claude-sonnet-4-5", base_url=fake.base_url, api_key="k")
        results = [await agent.send([other, document, "How long?"]) for _ in replies]
        checked = [await result.check_evidence() for result in results]
        count = len(fake.requests)
    assert [states(result) for result in checked] == [[state] for state in STATES for _ in range(2)]
    assert ("PDF" in reasons(checked[0])[0]) == (kind == "pdf")
    assert count == len(replies)


@requirement("R231")
async def test_document_of_earlier_turn_is_compared_by_agent():
    async with FakeProvider(
        [MessagesScript().text("Hello.").reply(), citing_document(CLAIMS[0], CLAIMS[1], document_title="facts")]
    ) as fake:
        agent = Agent("anthropic:claude-sonnet-4-5", base_url=fake.base_url, api_key="k", evidence=EvidenceCheck())
        chat = Chat(agent)
        await chat.send([DataPart(TEXT.encode(), "text/plain", "facts"), "Hello."])
        result = await chat.send("How long?")
    assert states(result) == ["contradicted"]


@requirement("R231")
async def test_document_without_cited_words_is_not_guessed():
    documents = [DataPart(text.encode(), "text/plain") for text in (TEXT, "Nothing.")]
    async with FakeProvider([citing_document("Words of another document.", CLAIMS[0])] * 2) as fake:
        agent = Agent("anthropic:claude-sonnet-4-5", base_url=fake.base_url, api_key="k")
        several = await (await agent.send([*documents, "How long?"])).check_evidence()
        none = await (await agent.send("How long?")).check_evidence()
    assert states(several) == ["unreachable"]
    assert states(none) == ["unchecked"]
    assert "several documents" in reasons(several)[0]
    assert "not in the result" in reasons(none)[0]


@requirement("R231")
async def test_user_of_server_has_cited_file_checked(tmp_path: Path):
    async with FakeProvider([citing_file()]) as fake:
        fake.on("GET", "/v1/vector_stores/*", STORED)
        tools = [FileSearch(stores=["vs_1"]), WebSearch()]
        async with chatting(fake, tmp_path, server_side_tools=tools, evidence=None) as client:
            await client.say("How long?")
            body = {"message": (await client.chat())["messages"][1]["id"]}
            assert await client.json("POST", "/api/chat/c1/evidence", body) == {"checked": 3}
            parts = (await client.chat())["messages"][1]["parts"]
    found = {part["sourceId"]: part["providerMetadata"] for part in parts if part["type"] == "source-document"}
    assert [metadata["sidestream"]["evidence"]["state"] for metadata in found.values()] == STATES


async def recorded(path: str, number: int = 0) -> ChatResult[str]:
    recording = Recording.load(RECORDINGS / path)
    answers = [
        entry
        for entry in recording.exchanges
        if "GenerateContent" in str(entry.request.path)
        or "generateContent" in str(entry.request.path)
        or "responses" in str(entry.request.path)
    ]
    alone = Recording((answers[number],))
    (run,) = replay(alone, ReplayTransport(alone))
    return await run.result()


@requirement("R231")
async def test_recorded_file_citations_are_compared():
    openai = await (await recorded("openai-responses/v-openai-file-search-tool.2-whole.json")).check_evidence()
    google = await (
        await recorded("google/p-test_google_model_file_search_grounding_gemini_3_True_.json")
    ).check_evidence()
    plain = await (
        await recorded("openai-responses/p-test_openai_responses_model_file_search_tool.json", 1)
    ).check_evidence()
    assert {*states(openai)} <= {"not-found"}
    assert openai.sources
    assert google.claims()
    assert {claim.source.evidence.state for claim in google.claims()} <= {"supported", "not-found"}
    assert states(plain) == ["unchecked"]
    assert "the provider has the file" in reasons(plain)[0]


@requirement("R231")
async def test_cited_words_locate_passage_in_long_page():
    long = f"<main><p>{'Nothing of interest stands here. ' * 32_000}</p><p>{TEXT}</p></main>"
    async with serve({"/long": page(long)}) as site:

        def answer(cited: str) -> Reply:
            note = {
                "type": "web_search_result_location",
                "url": site.url("/long"),
                "title": "Long",
                "cited_text": cited,
            }
            return MessagesScript().text(CLAIMS[0], citations=[note]).reply()

        async with FakeProvider(
            [
                answer("The bridge is 1,870 metres long. It was opened on 9 June…"),
                answer("Some words that are nowhere."),
            ]
        ) as fake:
            agent = Agent("anthropic:claude-sonnet-4-5", base_url=fake.base_url, api_key="k")
            found = [await (await agent.send("How long?")).check_evidence(allow_hosts=[site.host]) for _ in range(2)]
    assert [states(result) for result in found] == [["quoted"], ["not-found"]]
    assert "words that the provider cites are not in it" in reasons(found[1])[0]
