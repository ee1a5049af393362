"""A log as Markdown: what `logs export` and the server's export write."""

from contextlib import aclosing
from pathlib import Path

from sidestream import Agent, Chat, open_store
from sidestream.protocols.markdown import to_markdown
from sidestream.store.log.conversation import Conversation
from sidestream.testing import FakeProvider, ResponsesScript


async def test_answer_lists_its_sources_once(tmp_path: Path) -> None:
    page = {"type": "url_citation", "url": "https://a.example/x", "title": "A page", "start_index": 0, "end_index": 9}
    script = ResponsesScript().web_search("rain", sources=["https://a.example/x"]).text("It rains.", annotations=[page])
    async with aclosing(open_store(tmp_path / "talks.db")) as store, FakeProvider([script.reply()]) as fake:
        await Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk").send("Will it rain?")
        text = to_markdown(await Conversation(store, "talk").records())
    assert text.startswith("## You\n\nWill it rain?\n\n")
    assert "It rains.[^1]" in text
    assert text.endswith("\n\n[^1]: [A page](https://a.example/x)\n")


async def test_answer_without_sources_has_no_list(tmp_path: Path) -> None:
    script = ResponsesScript().text("I do not know.")
    async with aclosing(open_store(tmp_path / "talks.db")) as store, FakeProvider([script.reply()]) as fake:
        await Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk").send("Will it rain?")
        text = to_markdown(await Conversation(store, "talk").records())
    answer, finish = text.rstrip("\n").split("\n\n")[-2:]
    assert (answer, finish.startswith("*stop; ")) == ("I do not know.", True)
