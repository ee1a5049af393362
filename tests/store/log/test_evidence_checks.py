"""Checks of citations in the log: the verdicts, and the pages as they were."""

from hashlib import sha256

from requirements import requirement
from sidestream import Agent, Chat
from sidestream.evidence import Evidence
from sidestream.messages.message import ChatMessage
from sidestream.store import Store
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.writer import Writer
from sidestream.store.records import LONG_TEXT, CheckedClaim, EvidenceChecked, MessageAdded
from sidestream.testing import FakeProvider, ResponsesScript
from support.citations import citing
from support.stores import Opens
from support.web_pages import page, serve

FACTS = "<title>Facts</title><main><p>The bridge is 1,870 metres long.</p></main>"


@requirement("R231")
async def test_checked_pages_are_kept_and_conversation_continues(store: Store, opens: Opens):
    async with serve({"/facts": page(FACTS)}) as site:
        url = site.url("/facts")
        claims = [
            ("The bridge is 1,870 metres long.", url, "Facts"),
            ("The bridge is 1,780 metres long.", url, "Facts"),
            ("The bridge is old.", site.url("/gone"), "Gone"),
        ]
        replies = [citing(claims).reply(), *(ResponsesScript().text(text).reply() for text in ("Two.", "Three."))]
        async with FakeProvider(replies) as fake:
            agent = Agent("openai-responses:m", base_url=fake.base_url, api_key="k")
            chat = Chat(agent, store=store, id="talk")
            result = await chat.send("How long?")
            checked = await chat.check_evidence(result, allow_hosts=[site.host])
            await chat.check_evidence(checked, allow_hosts=[site.host])  # Only the missing page is left.
            await chat.send("And two?")
            elsewhere = opens()
            resumed = Chat(agent, store=elsewhere, id="talk")
            await resumed.send("And three?")
    assert [source.evidence.state for source in checked.sources] == ["quoted", "contradicted", "unreachable"]
    conversation = Conversation(elsewhere, "talk")
    record, again = [record for record in await conversation.records() if isinstance(record.body, EvidenceChecked)]
    assert isinstance(record.body, EvidenceChecked)
    assert isinstance(again.body, EvidenceChecked)
    assert [claim.text for claim in again.body.claims] == ["The bridge is old."]
    assert [(claim.evidence.state, claim.url) for claim in record.body.claims] == [
        ("quoted", url),
        ("contradicted", url),
        ("unreachable", site.url("/gone")),
    ]
    assert [claim.text for claim in record.body.claims] == [claim for claim, _, _ in claims]
    (kept,) = record.body.snapshots
    assert [claim.snapshot for claim in record.body.claims] == [kept.sha256, kept.sha256, None]
    assert await elsewhere.blob(kept.sha256) == FACTS.encode()
    assert (kept.sha256, kept.url, kept.mime_type) == (sha256(FACTS.encode()).hexdigest(), url, "text/html")
    state = await conversation.state()
    assert (state.status, len(state.messages)) == ("complete", 6)
    assert await elsewhere.check() == []
    assert await elsewhere.delete("talk")
    assert not await elsewhere.refers_to(kept.sha256)


@requirement("R231")
async def test_fork_keeps_checks_of_copied_turns(store: Store):
    claims = ["The bridge is 1,870 metres long.", "The bridge is 1,780 metres long."]
    async with serve({"/facts": page(FACTS)}) as site:
        answers = [citing([(claim, site.url("/facts"), "Facts")]).reply() for claim in claims]
        async with FakeProvider([*answers, ResponsesScript().text("Bye.").reply()]) as fake:
            agent = Agent("openai-responses:m", base_url=fake.base_url, api_key="k")
            chat = Chat(agent, store=store, id="talk")
            for _ in claims:
                await chat.check_evidence(await chat.send("How long?"), allow_hosts=[site.host])
            first, second = [
                record.seq
                for record in await Conversation(store, "talk").records()
                if isinstance(record.body, EvidenceChecked)
            ]
            early, late = await chat.fork(first), await chat.fork(second)
            await late.send("Thanks.")
    found = [
        [
            [claim.evidence.state for claim in record.body.claims]
            for record in await Conversation(store, fork.id).records()
            if isinstance(record.body, EvidenceChecked)
        ]
        for fork in (early, late)
    ]
    assert found == [[["quoted"]], [["quoted"], ["contradicted"]]]
    assert await store.delete("talk")
    assert await store.blob(sha256(FACTS.encode()).hexdigest()) == FACTS.encode()
    assert await store.check() == []


@requirement("R231")
async def test_long_claim_is_read_without_its_page(store: Store):
    digest = sha256(b"page").hexdigest()
    claim = CheckedClaim(step=0, source="s", text="long " * LONG_TEXT, evidence=Evidence("quoted"), snapshot=digest)
    writer = Writer(store, "talk", 0)
    writer.add(MessageAdded(ChatMessage.user("Hi."), opens_turn=False))
    writer.add(EvidenceChecked((claim,)), {digest: b"page"})
    await writer.commit()
    _, record = await Conversation(store, "talk").records()
    assert record.body == EvidenceChecked((claim,))
    assert len(record.blobs) == 2
    assert await store.blob(digest) == b"page"
