"""What a provider has besides chat: vectors, lists of models, files made to order, answers in the background."""

import pytest
from msgspec.structs import replace

from conformance.suite.subjects import KEY, Subject, run_parts
from conformance.suite.wires import Completions, Text, embeddings
from sidestream import Agent, cosine_similarity
from sidestream.errors import UnsupportedError
from sidestream.parts import Finish
from sidestream.providers.capabilities import instead_of
from sidestream.providers.openai.chat import PRESETS
from sidestream.providers.openai.chat.provider import CompletionsProvider
from sidestream.providers.protocol import MakesMedia
from sidestream.testing import ChatScript, FakeProvider
from sidestream.wire.http import close_session
from support.streams import one, streamed_text


async def test_strings_are_embedded_in_order_or_refused(subject: Subject) -> None:
    texts = ["a cat", "a small kitten", "stock exchange"]
    if not subject.caps.embeddings:
        async with subject.open() as talk:
            with pytest.raises(UnsupportedError):
                await talk.agent.embed_documents(texts)
            assert talk.transport.calls == []
        return
    async with subject.open() as talk:
        if talk.fake is not None:
            talk.fake.on("POST", "*", embeddings)
        result = await talk.agent.embed_documents(texts)
        single = await talk.agent.embed_query(texts[1])
    cat, kitten, stocks = result.vectors
    assert single.vector == pytest.approx(kitten, abs=1e-3)
    assert result.model == subject.provider.default_models["embeddings"]
    if subject.setting == "scripted":
        assert result.vectors == tuple((float(len(text)), 1.0) for text in texts)
    else:
        assert cosine_similarity(cat, kitten) > cosine_similarity(cat, stocks)


async def test_empty_list_gives_no_vectors_and_no_request(subject: Subject) -> None:
    if not subject.caps.embeddings:
        return
    async with subject.open() as talk:
        assert (await talk.agent.embed_documents([])).vectors == ()
        assert talk.transport.calls == []


async def test_models_are_listed(subject: Subject) -> None:
    if not subject.caps.list_models:
        async with subject.open() as talk:
            with pytest.raises(UnsupportedError):
                await talk.agent.list_models()
        return
    async with subject.open(subject.wire.models("one-model", "two-model")) as talk:
        models = await talk.agent.list_models()
    names = [model.name for model in models]
    assert len(set(names)) == len(names) > 0
    assert any("chat" in model.kinds for model in models)
    if subject.setting == "scripted":
        assert names == ["one-model", "two-model"]


async def test_media_is_generated_or_refused_as_claimed(subject: Subject) -> None:
    async with subject.open() as talk:
        assert isinstance(talk.agent.model, MakesMedia) == subject.caps.media
        if subject.caps.media:
            plan = talk.agent.model.media_plan(("image/png",))
            assert plan.way
            assert {type(tool) for tool in plan.server_side_tools} <= subject.provider.server_side_tools
        else:
            with pytest.raises(UnsupportedError):
                await talk.agent.generate_media("a dot", mime_types=["image/png"])
        assert talk.transport.calls == []


async def test_background_answer_is_requested_as_claimed(wired: Subject) -> None:
    options = wired.row.options
    has_option = "background" in options.__struct_fields__
    if not wired.caps.background:
        assert instead_of(wired.caps, "background")
        if has_option:  # of another server with this API
            async with wired.open(options=replace(options, background=True)) as talk:
                with pytest.raises(UnsupportedError, match="background"):
                    await talk.agent.send("Take your time.")
        return
    assert has_option
    async with wired.open(Text("Done."), options=replace(options, background=True)) as talk:
        parts = await run_parts(talk.agent, "Take your time.")
        (body,) = talk.bodies
    assert body["background"] is True
    assert streamed_text(parts) == "Done."
    assert one(parts, Finish).reason == "stop"


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
async def test_every_preset_answers_and_lists_models(
    preset: CompletionsProvider,
) -> None:
    async with FakeProvider([ChatScript().reasoning("Hm.").text("Hello.").reply()]) as fake:
        fake.on("GET", "/v1/models", Completions().models("some-model"))
        agent = Agent(f"{preset.name}:some-model", base_url=fake.base_url, api_key=KEY)
        result = await agent.send("hi")
        models = await agent.list_models()
        assert fake.requests[0].json["model"] == "some-model"
        if not preset.caps.embeddings:
            with pytest.raises(UnsupportedError):
                await agent.embed_query("hi")
        await close_session()
    assert (result.output, result.thinking) == ("Hello.", "Hm.")
    assert preset.caps.thinking
    assert [model.name for model in models] == ["some-model"]
