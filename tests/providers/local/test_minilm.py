"""The embeddings model: the same vectors as a plain implementation, and threads that are left as they were."""

import math
import os
from typing import Any

import numpy as np
import pytest

from sidestream.errors import ConfigurationError
from sidestream.providers.local import minilm
from sidestream.providers.local.files import EMBEDDINGS, folder_of
from sidestream.providers.local.minilm import HEADS, LAYERS, MiniLM, loaded

TEXTS = [
    "",
    "word",
    "The cat sleeps on the windowsill.",
    "Boil the pasta for nine minutes, then drain it. " * 8,
    "Bridges carry loads; cables of steel hold them. " * 40,  # longer than the model reads
    "Grüße aus Köln, 你好, привет 🙂",
]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    try:
        return loaded(folder_of(EMBEDDINGS))
    except ConfigurationError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def plain(weights: Any, ids: list[int]) -> Any:
    """One text, step by step, with the exact activation."""

    def linear(state: Any, name: str) -> Any:
        return state @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(state: Any, name: str) -> Any:
        centred = state - state.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
        return centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def erf(values: Any) -> Any:
        return np.fromiter(map(math.erf, values.ravel().tolist()), values.dtype, values.size).reshape(values.shape)

    table = "embeddings.{}_embeddings.weight"
    state = weights[table.format("word")][ids] + weights[table.format("position")][: len(ids)]
    state = norm(state + weights[table.format("token_type")][0], "embeddings.LayerNorm")
    for number in range(LAYERS):
        name = f"encoder.layer.{number}"
        parts = [linear(state, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
        query, key, value = (part.reshape(len(ids), HEADS, -1).transpose(1, 0, 2) for part in parts)
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        seen = (scores @ value).transpose(1, 0, 2).reshape(len(ids), -1)
        state = norm(state + linear(seen, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        inner = linear(state, f"{name}.intermediate.dense")
        inner = inner * 0.5 * (1 + erf(inner / math.sqrt(2)))
        state = norm(state + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
    summed = state.mean(axis=0)
    return summed / np.linalg.norm(summed)


def test_vectors_match_plain_implementation(model: MiniLM):
    import safetensors.numpy

    weights = safetensors.numpy.load_file(folder_of(EMBEDDINGS) / "model" / "model.safetensors")
    vectors = model.embed(TEXTS).vectors
    for text, vector in zip(TEXTS, vectors, strict=True):
        expected = plain(weights, model._tokenizer.encode(text).ids)
        assert np.abs(expected - np.array(vector)).max() <= 1e-3


def test_vector_is_independent_of_batch(model: MiniLM):
    together = model.embed(TEXTS * 3).vectors
    assert np.abs(np.array(together[2]) - np.array(model.embed([TEXTS[2]]).vectors[0])).max() < 1e-5
    # Which rows share a matrix product, and so its rounding, depends on the processor.
    assert np.abs(np.array(together[3]) - np.array(together[3 + len(TEXTS)])).max() < 1e-5


def test_numpy_threads_are_restored(model: MiniLM):
    functions = minilm._functions(np)
    if functions is None:
        pytest.skip("this numpy has another BLAS than OpenBLAS")
    get, put = functions
    before = get()
    put(2)
    try:
        with minilm.single_threaded(np):
            assert get() == 1
            model.embed(["a"])
            assert get() == 1
        assert get() == 2
    finally:
        put(before)
