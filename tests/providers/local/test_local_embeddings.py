"""Vectors of the embedded model: like texts lie together, whatever else is in their batch."""

import math

import pytest

from providers.local.embedded import skip_without
from requirements import requirement
from sidestream import Agent, cosine_similarity
from sidestream.errors import UnsupportedError
from sidestream.providers.local.server import running_pid
from sidestream.providers.openai.account import OpenAIEmbeddingOptions

skip_without("numpy", "safetensors", "tokenizers", model="all-minilm-l6-v2")

PASSAGES = [
    "The cat sleeps on the warm windowsill.",
    "Interest rates were raised by the central bank.",
    "Boil the pasta for nine minutes in salted water.",
    "The telescope saw a galaxy ten billion light years away.",
]
QUERIES = ["a kitten takes a nap", "monetary policy", "how to cook spaghetti", "astronomy"]


@requirement("R91")
async def test_query_is_nearest_to_its_passage_without_server() -> None:
    server = running_pid()
    agent = Agent("local")
    passages = await agent.embed_documents(PASSAGES)
    assert (passages.model, len(passages.vectors)) == ("all-minilm-l6-v2", len(PASSAGES))
    for number, query in enumerate(QUERIES):
        vector = (await agent.embed_query(query)).vector
        assert len(vector) == 384
        assert math.isclose(math.hypot(*vector), 1, abs_tol=1e-5)
        near = [cosine_similarity(vector, passage) for passage in passages.vectors]
        assert near.index(max(near)) == number
        assert sorted(near)[-1] > sorted(near)[-2] + 0.1
    assert running_pid() == server


async def test_vector_is_independent_of_batch() -> None:
    agent = Agent("local")
    texts = [*PASSAGES, "short", "long " * 60, *(f"text number {number}" for number in range(12))]
    together = await agent.embed_documents(texts)
    apart = await agent.embed_documents(texts, options=OpenAIEmbeddingOptions(batch_size=7))
    assert together.usage.input.total == apart.usage.input.total > len(texts)
    for one, other in zip(together.vectors, apart.vectors, strict=True):
        assert math.isclose(cosine_similarity(one, other), 1, abs_tol=1e-5)
    assert cosine_similarity(together.vectors[0], together.vectors[1]) < 0.5


async def test_tokens_after_256_are_ignored() -> None:
    agent = Agent("local")
    result = await agent.embed_documents(["word " * 300, "word " * 300 + "galaxy"])
    assert result.usage.input.total == 2 * 256
    assert math.isclose(cosine_similarity(*result.vectors), 1, abs_tol=1e-6)


async def test_empty_list_gives_no_vectors_and_empty_string_gives_one() -> None:
    agent = Agent("local")
    assert (await agent.embed_documents([])).vectors == ()
    empty = await agent.embed_query("")
    assert (len(empty.vector), empty.usage.input.total) == (384, 2)


async def test_unsupported_embedding_options_raise() -> None:
    with pytest.raises(UnsupportedError):
        await Agent("local").embed_query("text", options=OpenAIEmbeddingOptions(dimensions=64))
    with pytest.raises(UnsupportedError):
        await Agent("local?embeddings=smollm2-135m").embed_query("text")
