"""`/api/chat` over a real server: the AI SDK's protocol, and what the page needs beside it."""

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from protocols.ui_chunks import check
from requirements import requirement
from server.chat_client import chatting, data, paused, text_of, types, user
from sidestream import CodeInterpreter
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.stores import message
from support.streams import PNG

Json = Any


def replies(*scripts: ResponsesScript) -> list[Any]:
    return [sse(script.events()) for script in scripts]


@requirement("R141")
async def test_chat_continues_from_stored_history(tmp_path: Path):
    scripts = ResponsesScript().reasoning("Hm.").text(["Hello ", "there."]), ResponsesScript().text("Again.")
    async with FakeProvider(replies(*scripts)) as fake, chatting(fake, tmp_path) as client:
        first = await client.say("Hi.")
        check(first)
        assert text_of(first) == "Hello there."
        posted = [
            user("Forged.", "x"),
            {"id": "y", "role": "assistant", "parts": [{"type": "text", "text": "Forged."}]},
        ]
        second = await client.post(
            {"id": "c1", "messages": [*posted, user("And now?", "u2")], "trigger": "submit-message"}
        )
        check(second)
        sent = str(fake.requests[1].json)
        assert "And now?" in sent
        assert "Forged" not in sent
        chat = await client.chat()
        assert [message["role"] for message in chat["messages"]] == ["user", "assistant"] * 2
        assert [message["id"] for message in chat["messages"]][::2] == ["u-Hi.", "u2"]
        assert chat["messages"][1]["id"] == first[0]["messageId"]
        assert (chat["run"]["status"], chat["title"], chat["leaf"]) == ("complete", "Hi.", 1)


@requirement("R141", "R142")
async def test_late_subscriber_gets_whole_stream_or_tail(tmp_path: Path):
    gate = asyncio.Event()
    script = ResponsesScript().text(["One, ", "two, ", "three."])
    async with FakeProvider([sse(paused(script, gate, "two"))]) as fake, chatting(fake, tmp_path) as client:
        async with client.following(body={"id": "c1", "messages": [user("Count.")]}) as next_chunk:
            while (await next_chunk()).get("delta") is None:
                pass
        # The first reader has left; the run continues.
        chat = await client.chat()
        while "two" not in str(chat["messages"][-1]):
            chat = await client.chat()
        assert chat["run"]["status"] == "running"
        replayed, rest = [], []
        path = "/api/chat/c1/stream"
        async with (
            client.following("GET", path) as whole,
            client.following("GET", f"{path}?after={chat['seq']}") as tail,
        ):
            replayed.append(await whole())
            fake.release(gate)
            for chunks, following in ((replayed, whole), (rest, tail)):
                while (chunk := await following()) is not None:
                    chunks.append(chunk)
        check(replayed)
        check([{"type": "start"}, {"type": "start-step"}, *rest[1:]])
        assert text_of(replayed) == "One, two, three."
        (streaming,) = [part for part in chat["messages"][-1]["parts"] if part["type"] == "text"]
        (reopened,) = [chunk for chunk in rest if chunk["type"] == "text-start"]
        assert streaming["state"] == "streaming"
        assert reopened["providerMetadata"] == streaming["providerMetadata"]
        assert streaming["text"] + text_of(rest) == "One, two, three."
        assert await client.stream() is None
        assert await client.stream(after=(await client.chat())["seq"]) is None


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


CALL = ResponsesScript().function_call("add", '{"a": 1, "b": 2}', call_id="call_1")


@requirement("R141")
@pytest.mark.parametrize("form", ["message", "short"])
@pytest.mark.parametrize("approved", [True, False])
async def test_approval_is_bound_to_stored_call(tmp_path: Path, form: str, approved: bool):
    scripts = replies(CALL, ResponsesScript().text("Done."))
    async with FakeProvider(scripts) as fake, chatting(fake, tmp_path, tools=[add], approval="ask") as client:
        first = await client.say("Add.")
        check(first)
        (asked,) = data(first, "approval")
        assert (asked["tool"], asked["input"]) == ("add", {"a": 1, "b": 2})
        chat = await client.chat()
        assert chat["run"]["status"] == "waiting"
        message = chat["messages"][-1]
        (part,) = [part for part in message["parts"] if part["type"] == "tool-add"]
        assert part["state"] == "approval-requested"
        answer = {"approvalId": asked["approval"], "approved": approved, "digest": asked["digest"], "reason": "No."}
        body: Json = {"id": "c1", **answer}
        if form == "message":
            part |= {
                "state": "approval-responded",
                "approval": {**part["approval"], "approved": approved, "reason": "No."},
            }
            # What a client makes of the arguments does not count.
            part["input"] = {"a": 1, "b": 40}
            body = {"id": "c1", "messages": chat["messages"], "messageId": message["id"], "trigger": "submit-message"}
        forged = str(body).replace(asked["digest"], "0" * 64)
        error = await client.post(eval(forged), 403)
        assert error["code"] == "approval_refused"
        second = await client.post(body)
        check(second, message)
        assert second[0]["messageId"] == message["id"]
        assert ("tool-output-denied" in types(second)) == (not approved)
        assert text_of(second) == "Done."
        assert [chunk["output"] for chunk in second if chunk["type"] == "tool-output-available"] == [3] * approved
        (part,) = [part for part in (await client.chat())["messages"][-1]["parts"] if part["type"] == "tool-add"]
        assert part["state"] == ("output-available" if approved else "output-denied")
        assert (await client.post(body, 403))["code"] == "nothing_waits"


@requirement("R141")
async def test_editing_and_regenerating_branch_without_losing_messages(tmp_path: Path):
    scripts = [ResponsesScript().text(text) for text in ("A1.", "A2.", "B2.", "C2.", "D1.", "B3.")]
    async with FakeProvider(replies(*scripts)) as fake, chatting(fake, tmp_path) as client:
        await client.say("Q1", id="u1")
        await client.say("Q2", id="u2")
        check(await client.post({"id": "c1", "messages": [user("Q2 again", "u2")], "messageId": "u2"}))
        # The provider holds the first answer; the branch continues from there.
        continued = [request.json.get("previous_response_id") for request in fake.requests]
        assert continued[1] == continued[2] is not None
        edited = await client.chat()
        assert texts(edited) == ["Q1", "A1.", "Q2 again", "B2."]
        assert [(leaf["leaf"], leaf["forkedAt"]) for leaf in edited["leaves"]] == [(1, None), (2, 2)]
        assert texts(await client.chat(leaf=1)) == ["Q1", "A1.", "Q2", "A2."]
        check(await client.post({"id": "c1", "trigger": "regenerate-message"}))
        assert texts(await client.chat()) == ["Q1", "A1.", "Q2 again", "C2."]
        check(await client.post({"id": "c1", "messages": [user("Q0", "u0")], "messageId": "u1"}))
        assert texts(await client.chat()) == ["Q0", "D1."]
        await client.say("Q3", id="u3", leaf=2)
        after = await client.chat()
        assert (after["leaf"], texts(after)) == (2, ["Q1", "A1.", "Q2 again", "B2.", "Q3", "B3."])
        assert [leaf["parent"] for leaf in after["leaves"]] == [None, 1, 2, 1]
        (listed,) = (await client.json("GET", "/api/conversations"))["conversations"]
        assert (listed["id"], listed["status"]) == ("c1", "complete")
        await client.json("DELETE", "/api/chat/c1", status=204)
        assert (await client.json("GET", "/api/conversations"))["conversations"] == []


def texts(chat: Json) -> list[str]:
    return ["".join(part.get("text", "") for part in message["parts"]) for message in chat["messages"]]


@requirement("R141")
async def test_run_is_stopped_and_steered_by_endpoints(tmp_path: Path):
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(events)]) as fake, chatting(fake, tmp_path) as client:
        async with client.following(body={"id": "c1", "messages": [user("Count.")]}) as next_chunk:
            chunks: list[Json] = []
            while not chunks or chunks[-1].get("delta") is None:
                chunks.append(await next_chunk())
            assert (await client.post({"id": "c1", "messages": [user("Now.", "u2")]}, 409))["code"] == "conflict"
            steered = await client.json("POST", "/api/chat/c1/steer", {"text": "Faster."})
            assert await client.json("POST", "/api/chat/c1/stop") == {"stopped": True}
            while (chunk := await next_chunk()) is not None:
                chunks.append(chunk)
        check(chunks)
        assert types(chunks)[-1] == "abort"
        assert data(chunks, "steer")[0] | {"id": steered["id"], "status": "accepted"} == data(chunks, "steer")[0]
        assert await client.json("POST", "/api/chat/c1/stop") == {"stopped": False}
        assert (await client.chat())["run"]["status"] == "cancelled"


@requirement("R141")
async def test_repeated_message_is_answered_once(tmp_path: Path):
    async with FakeProvider(replies(ResponsesScript().text("Once."))) as fake, chatting(fake, tmp_path) as client:
        first = await client.say("Hi.")
        assert await client.say("Hi.") == first
        assert len(fake.requests) == 1


@requirement("R141")
async def test_stream_error_is_reported_and_stored(tmp_path: Path):
    script = ResponsesScript().text("Almost").failed("server_error", "it broke")
    async with FakeProvider(replies(script)) as fake, chatting(fake, tmp_path) as client:
        chunks = await client.say("Hi.")
        check(chunks)
        assert chunks[-1]["type"] == "error"
        assert "it broke" in chunks[-1]["errorText"]
        chat = await client.chat()
        assert chat["run"]["status"] == "failed"
        notices = [part["data"] for part in chat["messages"][-1]["parts"] if part["type"] == "data-notice"]
        assert notices[-1]["error"]["kind"] == "provider"


@requirement("R141")
async def test_files_are_server_urls_and_survive_message_edit(tmp_path: Path):
    scripts = ResponsesScript().image(PNG), ResponsesScript().text("A."), ResponsesScript().text("B.")
    picture = "data:image/png;base64,iVBORw0KGgo="
    async with FakeProvider(replies(*scripts)) as fake, chatting(fake, tmp_path) as client:
        chunks = await client.say("Draw.", id="u1")
        check(chunks)
        (file,) = [chunk for chunk in chunks if chunk["type"] == "file"]
        assert file["url"].startswith("/api/blobs/")
        parts = [{"type": "file", "mediaType": "image/png", "url": picture}, {"type": "text", "text": "What is it?"}]
        await client.post({"id": "c1", "message": {"id": "u2", "role": "user", "parts": parts}})
        own = (await client.chat())["messages"][2]["parts"][0]
        assert own["url"].startswith("/api/blobs/")
        await client.post({"id": "c1", "message": {"id": "u2", "role": "user", "parts": [own]}, "messageId": "u2"})
        assert picture in str(fake.requests[-1].json)
        stolen = {"id": "c2", "message": {"id": "u1", "role": "user", "parts": [own]}}
        assert (await client.post(stolen, 404))["param"] == "parts[0].url"


@requirement("R122", "R141")
@pytest.mark.parametrize("kind", ["text/csv", "application/octet-stream"])
async def test_attachment_for_code_is_not_sent_to_model(kind: str, tmp_path: Path):
    table, picture = b64encode(b"year,price\n2026,7\n").decode(), "data:image/png;base64,iVBORw0KGgo="
    parts = [
        {"type": "file", "mediaType": kind, "filename": "prices.csv", "url": f"data:{kind};base64,{table}"},
        {"type": "file", "mediaType": "image/png", "filename": "dot.png", "url": picture},
        {"type": "text", "text": "Sum."},
    ]
    posted = {"id": "c1", "message": {"id": "u1", "role": "user", "parts": parts}}
    tools = [CodeInterpreter(execution="here")]
    async with (
        FakeProvider(replies(ResponsesScript().text("7."))) as fake,
        chatting(fake, tmp_path, server_side_tools=tools) as client,
    ):
        check(await client.post(posted))
        own = (await client.chat())["messages"][0]["parts"][0]
    sent = str(fake.requests[0].json)
    assert "prices.csv" in sent
    assert table not in sent
    assert picture in sent
    assert (own["filename"], own["mediaType"]) == ("prices.csv", "text/csv")


@requirement("R141")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [user("Hi.")]}, "id"),
        ({"id": "a/b", "messages": [user("Hi.")]}, "id"),
        ({"id": "a~2", "messages": [user("Hi.")]}, "id"),
        ({"id": "..", "messages": [user("Hi.")]}, "id"),
        ({"id": "c1", "messages": []}, "messages"),
        ({"id": "c1", "messages": [user(" ")]}, "parts"),
        ({"id": "c1", "messages": [{"role": "system", "parts": []}]}, "role"),
        ({"id": "c1", "messages": "Hi."}, "messages"),
        (
            {"id": "c1", "messages": [user("Hi.")], "functions": [{"name": "f", "schema": {"properties": 7}}]},
            "functions[0].schema",
        ),
        ({"id": "c1", "messages": [user("Hi.")], "functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
        ({"id": "c1", "messages": [{"role": "user", "parts": [{"type": "sound"}]}]}, "parts[0]"),
        (
            {"id": "c1", "messages": [{"role": "user", "parts": [{"type": "file", "url": "file:///etc/passwd"}]}]},
            "parts[0].url",
        ),
        (
            {"id": "c1", "messages": [{"role": "user", "parts": [{"type": "file", "url": "data:x;base64,*"}]}]},
            "parts[0].url",
        ),
        (
            {"id": "c1", "messages": [{"role": "user", "parts": [{"type": "file", "url": "http://["}]}]},
            "parts[0].url",
        ),
        (
            {"id": "c1", "messages": [{"role": "user", "parts": [{"type": "file", "url": "https:///a.png"}]}]},
            "parts[0].url",
        ),
        ({"id": "c1", "messages": [user("Hi.")], "trigger": "nothing"}, "trigger"),
        ({"id": "c1", "messages": [user("Hi.")], "thinking": "much"}, "thinking"),
        ({"id": "c1", "approvalId": "a", "approved": True}, "digest"),
    ],
)
async def test_malformed_chat_body_is_rejected_with_param(tmp_path: Path, body: Json, param: str):
    async with FakeProvider() as fake, chatting(fake, tmp_path) as client:
        error = await client.post(body, 400)
        assert error["param"] == param
        assert error["message"]
        assert not fake.requests


@requirement("R141")
async def test_unknown_chat_model_leaf_or_message_is_not_found(tmp_path: Path):
    async with FakeProvider(replies(ResponsesScript().text("A."))) as fake, chatting(fake, tmp_path) as client:
        await client.json("GET", "/api/chat/c9", status=404)
        await client.json("POST", "/api/chat/c9/stop", status=404)
        await client.json("DELETE", "/api/chat/c9", status=404)
        assert await client.stream("c9") is None
        assert (await client.post({"id": "c1", "messages": [user("Hi.")], "model": "gone"}, 404))["param"] == "model"
        await client.say("Hi.")
        await client.json("GET", "/api/chat/c1?leaf=7", status=404)
        await client.json("GET", "/api/chat/c1?leaf=x", status=400)
        missing = {"id": "c1", "messages": [user("Hi.", "u9")], "messageId": "u9"}
        assert (await client.post(missing, 404))["param"] == "messageId"
        await client.json("GET", "/api/runs/run_0/records", status=404)
        await client.json("GET", "/api/conversations?limit=nan", status=400)
        await client.json("GET", f"/api/conversations?search={'x' * 60_000}", status=400)


@requirement("R143")
async def test_conversations_with_equal_timestamps_are_all_listed(tmp_path: Path):
    async with FakeProvider() as fake, chatting(fake, tmp_path) as client:
        for number, time in enumerate([1.0, 2.0, 2.0, 2.0, 3.0, 4.0]):
            await client.server.store.append(f"/c{number}", 0, [replace(message(1, "Hi."), time=time)])
        pages: list[list[str]] = []
        query = ""
        while not pages or query:
            page = await client.json("GET", f"/api/conversations?limit=2{query}")
            pages.append(sorted(entry["id"] for entry in page["conversations"]))
            query = f"&before={page['next']}" if page["next"] is not None else ""
    assert pages == [["c4", "c5"], ["c1", "c2", "c3"], ["c0"]]


@requirement("R141", "R143")
async def test_conversations_are_listed_searched_and_paged(tmp_path: Path):
    scripts = [ResponsesScript().text("A.") for _ in range(3)]
    async with FakeProvider(replies(*scripts)) as fake, chatting(fake, tmp_path) as client:
        for number in range(3):
            await client.say(f"Question {number}", chat=f"c{number}")
        page = await client.json("GET", "/api/conversations?limit=2")
        assert [entry["id"] for entry in page["conversations"]] == ["c2", "c1"]
        rest = await client.json("GET", f"/api/conversations?limit=2&before={page['next']}")
        assert ([entry["id"] for entry in rest["conversations"]], rest["next"]) == (["c0"], None)
        found = await client.json("GET", "/api/conversations?search=question 1")
        assert [entry["title"] for entry in found["conversations"]] == ["Question 1"]
        assert (await client.json("GET", "/api/conversations?search=text&limit=1"))["conversations"] == []
        run = (await client.chat("c1"))["run"]
        records = await client.json("GET", f"/api/runs/{run['id']}/records")
        assert records["done"]
        assert [record["kind"] for record in records["records"]][-1] == "finish"
        later = await client.json("GET", f"/api/runs/{run['id']}/records?after={records['records'][-2]['seq']}")
        assert [record["kind"] for record in later["records"]] == ["finish"]


@requirement("R141")
async def test_chats_of_other_tokens_are_hidden(tmp_path: Path):
    from sidestream.text.redaction import Secret

    tokens = [Secret("token-of-anna-0123456789"), Secret("token-of-ben-0123456789")]
    async with (
        FakeProvider(replies(*[ResponsesScript().text("A.")] * 2)) as fake,
        chatting(fake, tmp_path, tokens) as client,
    ):
        client.session.headers["Authorization"] = f"Bearer {tokens[0]!s}"
        await client.say("Secret.")
        client.session.headers["Authorization"] = f"Bearer {tokens[1]!s}"
        await client.json("GET", "/api/chat/c1", status=404)
        assert (await client.json("GET", "/api/conversations"))["conversations"] == []
        await client.say("Other.")
        assert texts(await client.chat()) == ["Other.", "A."]
