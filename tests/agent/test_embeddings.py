"""Embeddings: any number of texts as vectors, in batches, on each provider's wire; and images by Google's own output."""

import asyncio
import base64
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    AuthenticationError,
    ConfigurationError,
    Limits,
    ProviderError,
    RateLimitedError,
    UnsupportedError,
    cosine_similarity,
)
from sidestream.agent.embeddings import MAX_PARALLEL
from sidestream.errors import ProtocolError
from sidestream.parts import InputUsage
from sidestream.providers import EmbeddingsResult
from sidestream.providers.embedding import EmbedsText
from sidestream.providers.google import GoogleEmbeddingOptions
from sidestream.providers.google.provider import PROVIDER as GOOGLE
from sidestream.providers.openai import OpenAIEmbeddingOptions
from sidestream.providers.openai.account import decode_embeddings
from sidestream.providers.openai.responses import PROVIDER as OPENAI
from sidestream.providers.protocol import Settings
from sidestream.testing import FakeProvider, GeminiScript, Received, Reply, error_reply, pixel_png

PROVIDERS = pytest.mark.parametrize("provider", ["openai-responses", "google"])
OPENAI_PATH = "/v1/embeddings"
GOOGLE_PATH = "/v1/models/gemini-embedding-001:batchEmbedContents"


def texts_in(request: Received) -> list[str]:
    body = request.json
    return body["input"] if "input" in body else [entry["content"]["parts"][0]["text"] for entry in body["requests"]]


def vector_of(text: str) -> tuple[float, ...]:
    """What the server answers for `text 7`."""
    return (float(text.split()[-1]), 0.5)


def answer(request: Received, *, gate: asyncio.Event | None = None) -> Reply:
    """One vector for each text; OpenAI's come in reverse and say their index."""
    texts = texts_in(request)
    body: dict[str, Any]
    if "input" in request.json:
        as_base64 = request.json.get("encoding_format") == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": packed(vector_of(text)) if as_base64 else vector_of(text),
            }
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": 2 * len(texts), "total_tokens": 2 * len(texts)}
        body = {"object": "list", "data": data[::-1], "model": request.json["model"], "usage": usage}
    else:
        body = {
            "embeddings": [{"values": vector_of(text)} for text in texts],
            "usageMetadata": {"promptTokenCount": 2 * len(texts)},
        }
    return Reply(body=json.loads(json.dumps(body)), content_type="application/json", gate=gate)


def packed(vector: tuple[float, ...]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def served(reply: Callable[[Received], Reply] | Reply = answer) -> FakeProvider:
    fake = FakeProvider()
    fake.on("POST", "*", reply)
    return fake


def numbered(count: int) -> list[str]:
    return [f"text {number}" for number in range(count)]


@requirement("R48")
@pytest.mark.parametrize(("count", "size", "batches"), [(1, 3, [1]), (3, 3, [3]), (4, 3, [3, 1]), (7, 1, [1] * 7)])
async def test_openai_embeds_in_ordered_batches_with_summed_usage(count: int, size: int, batches: list[int]) -> None:
    options = OpenAIEmbeddingOptions(dimensions=2, user="u-1", batch_size=size)
    async with served() as fake:
        result = await Agent("openai-responses", base_url=fake.base_url, api_key="key-123456789").embed_documents(
            numbered(count), options=options
        )
    assert result.vectors == tuple(vector_of(text) for text in numbered(count))
    assert result.model == "text-embedding-3-small"
    assert result.usage.input == InputUsage(2 * count, 2 * count)
    assert sorted(len(texts_in(request)) for request in fake.requests) == sorted(batches)
    for request in fake.requests:
        assert (request.path, request.headers["authorization"]) == (OPENAI_PATH, "Bearer key-123456789")
        assert request.json == {
            "model": "text-embedding-3-small",
            "input": texts_in(request),
            "dimensions": 2,
            "user": "u-1",
        }


@requirement("R48")
async def test_openai_base64_vectors_equal_float_vectors() -> None:
    async with served() as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        plain = await agent.embed_documents(numbered(3), options=OpenAIEmbeddingOptions(encoding_format="float"))
        packed_ = await agent.embed_documents(numbered(3), options=OpenAIEmbeddingOptions(encoding_format="base64"))
        await agent.embed_query("text 1", options=OpenAIEmbeddingOptions(extra_body={"input_type": "query"}))
    assert plain == packed_
    first, second, third = [request.json for request in fake.requests]
    assert [first["encoding_format"], second["encoding_format"]] == ["float", "base64"]
    assert third == {"model": "text-embedding-3-small", "input": ["text 1"], "input_type": "query"}


@requirement("R67")
async def test_google_embeds_in_batches_of_100_with_task_type() -> None:
    options = GoogleEmbeddingOptions(task_type="RETRIEVAL_DOCUMENT", title="Notes", dimensions=2)
    async with served() as fake:
        result = await Agent("google", base_url=fake.base_url).embed_documents(numbered(250), options=options)
    assert result.vectors == tuple(vector_of(text) for text in numbered(250))
    assert (result.model, result.usage.input.total) == ("gemini-embedding-001", 500)
    assert sorted(len(texts_in(request)) for request in fake.requests) == [50, 100, 100]
    assert {request.path for request in fake.requests} == {GOOGLE_PATH}
    for entry in fake.requests[0].json["requests"]:
        assert (entry["taskType"], entry["title"], entry["outputDimensionality"]) == ("RETRIEVAL_DOCUMENT", "Notes", 2)


@requirement("R67")
async def test_google_makes_images_by_native_output() -> None:
    script = GeminiScript(model="gemini-2.5-flash-image").text("A dot.").inline_data(pixel_png())
    async with FakeProvider([script.reply()]) as fake:
        agent = Agent("google:gemini-2.5-flash-image", base_url=fake.base_url)
        result = await agent.generate_media("a dot", mime_types=["image/png"])
        (request,) = fake.requests
    assert request.path == "/v1/models/gemini-2.5-flash-image:streamGenerateContent"
    assert "IMAGE" in request.json["generationConfig"]["responseModalities"]
    assert "tools" not in request.json
    assert [(file.data, file.mime_type) for file in result.assets] == [(pixel_png(), "image/png")]
    assert (result.metadata["way"], result.text, result.finish_reason) == ("image_output", "A dot.", "stop")


@PROVIDERS
async def test_out_of_order_batches_keep_order_of_inputs(provider: str) -> None:
    gate = asyncio.Event()

    def late_first(request: Received) -> Reply:
        return answer(request, gate=gate if "text 0" in texts_in(request) else None)

    texts = numbered(100 * MAX_PARALLEL + 150)
    options = OpenAIEmbeddingOptions(batch_size=100) if provider == "openai-responses" else None
    async with served(late_first) as fake:
        agent = Agent(provider, base_url=fake.base_url)
        under_way = asyncio.create_task(agent.embed_documents(texts, options=options))
        # So many are sent only after two later ones were answered.
        await fake.wait_for_requests(MAX_PARALLEL + 2)
        gate.set()
        result = await under_way
    assert result.vectors == tuple(vector_of(text) for text in texts)


async def test_concurrent_batches_are_limited() -> None:
    count = 10
    gates = {f"text {number}": asyncio.Event() for number in range(count)}
    async with served(lambda request: answer(request, gate=gates[texts_in(request)[0]])) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        options = OpenAIEmbeddingOptions(batch_size=1)
        under_way = asyncio.create_task(agent.embed_documents(numbered(count), options=options))
        for answered in range(count):
            sent = min(answered + MAX_PARALLEL, count)
            await fake.wait_for_requests(sent)
            assert len(fake.requests) == sent  # each answer makes room for one more
            gates[texts_in(fake.requests[answered])[0]].set()
        assert len((await under_way).vectors) == len(fake.requests) == count


async def test_cancelling_stops_all_batches() -> None:
    gate = asyncio.Event()
    async with served(lambda request: answer(request, gate=gate)) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        options = OpenAIEmbeddingOptions(batch_size=1)
        under_way = asyncio.create_task(agent.embed_documents(numbered(10), options=options))
        await fake.wait_for_requests(2)
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
        await fake.wait_idle()
        assert len(fake.requests) <= MAX_PARALLEL


@PROVIDERS
async def test_one_string_has_one_vector(provider: str) -> None:
    async with served() as fake:
        agent = Agent(provider, base_url=fake.base_url)
        one = await agent.embed_query("text 7")
        several = await agent.embed_documents(text for text in numbered(2))
    assert one.vector == (7.0, 0.5)
    assert len(several.vectors) == 2
    with pytest.raises(ConfigurationError, match="2 vectors"):
        _ = several.vector


@PROVIDERS
async def test_empty_input_sends_nothing(provider: str) -> None:
    async with served() as fake:
        result = await Agent(provider, base_url=fake.base_url).embed_documents([])
        assert fake.requests == []
    assert (result.vectors, result.usage.input.total) == ((), 0)


async def test_embedding_model_is_chosen_by_model_string() -> None:
    async with served() as fake:
        chosen = Agent("openai-responses?chat=gpt-x&embeddings=e-1", base_url=fake.base_url)
        default = Agent("openai-responses:gpt-x", base_url=fake.base_url)
        own = Agent(OPENAI.chat_model("e-2", Settings(base_url=fake.base_url)))
        google = Agent("google?embeddings=e-3", base_url=fake.base_url)
        agents = (chosen, default, own, google)
        assert [(await agent.embed_query("text 1")).model for agent in agents] == [
            "e-1",
            "text-embedding-3-small",
            "e-2",
            "e-3",
        ]
    assert chosen.model.name == default.model.name == "gpt-x"
    assert [request.json.get("model") for request in fake.requests] == ["e-1", "text-embedding-3-small", "e-2", None]
    assert fake.requests[-1].path == "/v1/models/e-3:batchEmbedContents"


@PROVIDERS
@pytest.mark.parametrize(
    ("status", "error"), [(400, ProviderError), (401, AuthenticationError), (429, RateLimitedError)]
)
async def test_rejected_batch_raises_typed_error(provider: str, status: int, error: type[ProviderError]) -> None:
    def refuse_last(request: Received) -> Reply:
        refused = "text 249" in texts_in(request)
        return error_reply(status, "no", "not today") if refused else answer(request)

    async with served(refuse_last) as fake:
        agent = Agent(provider, base_url=fake.base_url, limits=Limits(max_retries=0))
        with pytest.raises(error, match="not today") as raised:
            await agent.embed_documents(numbered(250))
    assert raised.value.status == status


BROKEN_ANSWERS: list[Any] = [
    b"no json",
    [],
    {},
    {"data": None, "embeddings": None},
    {"data": [7], "embeddings": [7]},
    {"data": [{"index": 0}], "embeddings": [{}]},
    {"data": [{"index": 0, "embedding": [1.0]}], "embeddings": [{"values": [1.0]}]},
    {
        "data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}],
        "embeddings": [{"values": [1.0]}, {"values": [1.0, 2.0]}],
    },
    {
        "data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": []}],
        "embeddings": [{"values": []}, {"values": []}],
    },
    {
        "data": [{"index": 0, "embedding": ["1"]}, {"index": 1, "embedding": [1.0]}],
        "embeddings": [{"values": ["1"]}, {"values": [1.0]}],
    },
    b'{"data": [{"index": 0, "embedding": [1e999]}, {"index": 1, "embedding": [1]}],'
    b'"embeddings": [{"values": [1e999]}, {"values": [1]}]}',
]


@PROVIDERS
@pytest.mark.parametrize("body", BROKEN_ANSWERS, ids=range(len(BROKEN_ANSWERS)))
async def test_invalid_embedding_response_raises_protocol_error(provider: str, body: Any) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with served(Reply(body=data, content_type="application/json")) as fake:
        with pytest.raises(ProtocolError):
            await Agent(provider, base_url=fake.base_url).embed_documents(numbered(2))


@pytest.mark.parametrize(
    "entry",
    [
        {"index": 1, "embedding": [1.0]},
        {"index": 2, "embedding": [1.0]},
        {"index": -1, "embedding": [1.0]},
        {"index": "0", "embedding": [1.0]},
        {"index": False, "embedding": [1.0]},
        {"index": None, "embedding": [1.0]},
        {"index": 0, "embedding": [True]},
        {"index": 0, "embedding": [10**400]},
        {"index": 0, "embedding": {"0": 1.0}},
        {"index": 0, "embedding": "AAA"},
        {"index": 0, "embedding": "AAAA"},
        {"index": 0, "embedding": "AA==\n!"},
        {"index": 0, "embedding": "ä"},
    ],
)
def test_invalid_or_misplaced_vector_raises_protocol_error(entry: dict[str, Any]) -> None:
    body = json.dumps({"data": [entry, {"index": 1, "embedding": [2.0]}]}).encode()
    with pytest.raises(ProtocolError):
        decode_embeddings(body, 2, "e-1")


def test_response_without_indexes_and_usage_keeps_order() -> None:
    body = json.dumps({"data": [{"embedding": [1, 2.5]}, {"embedding": packed((3.0, 4.0))}]}).encode()
    expected = EmbeddingsResult(vectors=((1.0, 2.5), (3.0, 4.0)), model="e-1")
    assert decode_embeddings(body, 2, "e-1") == expected


async def test_invalid_embedding_input_is_rejected_before_sending() -> None:
    async with served() as fake:
        agent: Any = Agent("openai-responses", base_url=fake.base_url)
        with pytest.raises(ConfigurationError, match="embed_query"):
            await agent.embed_documents("one text")
        with pytest.raises(ConfigurationError, match=r"not int \(index 1\)"):
            await agent.embed_documents(["a", 1])
        with pytest.raises(UnsupportedError, match="OpenAIEmbeddingOptions, not GoogleEmbeddingOptions"):
            await agent.embed_query("a", options=GoogleEmbeddingOptions())
        google: Any = Agent("google", base_url=fake.base_url)
        with pytest.raises(UnsupportedError, match="GoogleEmbeddingOptions, not OpenAIEmbeddingOptions"):
            await google.embed_query("a", options=OpenAIEmbeddingOptions())
        anthropic = Agent("anthropic", base_url=fake.base_url)
        with pytest.raises(UnsupportedError, match="anthropic does not support embeddings"):
            await anthropic.embed_documents([])
        with pytest.raises(UnsupportedError, match="anthropic does not support embeddings"):
            await Agent(anthropic.model).embed_documents([])
        assert fake.requests == []


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 2049}, {"batch_size": 0}, {"dimensions": 0}, {"encoding_format": "x"}]
)
def test_embedding_options_are_validated(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        OpenAIEmbeddingOptions(**wrong)


def test_models_of_both_providers_embed() -> None:
    settings = Settings(api_key="key-123456789")
    assert isinstance(OPENAI.chat_model("e", settings), EmbedsText)
    assert isinstance(GOOGLE.chat_model("e", settings), EmbedsText)


@pytest.mark.parametrize(
    ("a", "b", "cosine"),
    [
        ((1, 0), (5, 0), 1.0),
        ((1, 0), (0, 2), 0.0),
        ((1, 2), (-2, -4), -1.0),
        ((1, 0), (1, 1), math.sqrt(0.5)),
        ((1e-200, 0), (1e200, 0), 1.0),
    ],
)
def test_cosine_similarity_is_computed(a: tuple[float, ...], b: tuple[float, ...], cosine: float) -> None:
    assert cosine_similarity(a, b) == pytest.approx(cosine)
    assert -1 <= cosine_similarity(a, b) <= 1


@pytest.mark.parametrize(
    ("a", "b", "problem"),
    [
        ((1, 0), (1, 0, 0), "2 and 3"),
        ((0, 0), (1, 0), "zeros"),
        ((), (), "zeros"),
        ((math.nan, 0), (1, 0), "non-finite"),
        ((1, 0), (math.inf, 0), "non-finite"),
    ],
)
def test_incomparable_vectors_raise_configuration_error(
    a: tuple[float, ...], b: tuple[float, ...], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        cosine_similarity(a, b)
