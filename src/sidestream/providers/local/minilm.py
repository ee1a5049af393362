"""all-MiniLM-L6-v2 in numpy: a BERT of six layers, mean pooling, normalised vectors.

It blocks: call it in a thread.
"""

import functools
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from sidestream.errors import MissingExtraError

MAX_TOKENS = 256
"""The context that the model was trained with; longer texts are truncated."""
LAYERS = 6
HEADS = 12
EPSILON = 1e-12
BATCH = 16
"""Texts per batch, sorted by length, so that there is little padding."""

_one_at_a_time = threading.Lock()
"""The tokenizer has state, and concurrent batches are no faster."""


class Embeddings(Struct, frozen=True):
    """Vectors in the order of their texts, and the number of tokens."""

    vectors: list[list[float]]
    tokens: int


class MiniLM:
    """The weights and the tokenizer."""

    def __init__(self, folder: Path) -> None:
        try:
            import numpy
            import safetensors.numpy as safetensors
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise MissingExtraError("local", "The embedded model for embeddings") from error
        self._numpy: Any = numpy
        reader: Any = safetensors
        self._weights: Any = reader.load_file(folder / "model" / "model.safetensors")
        tokenizer: Any = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
        # The file has the settings of a server: shorter texts, and padding, which `_forward` adds per batch.
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """The vectors of the texts."""
        with _one_at_a_time:
            ids: list[list[int]] = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
            order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
            vectors: list[list[float]] = [[]] * len(ids)
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                for index, vector in zip(batch, self._forward([ids[index] for index in batch]), strict=True):
                    vectors[index] = vector
        return Embeddings(vectors, sum(map(len, ids)))

    def _forward(self, rows: list[list[int]]) -> list[list[float]]:
        np = self._numpy
        longest = max(map(len, rows))
        ids = np.array([row + [0] * (longest - len(row)) for row in rows])
        mask = np.array([[1.0] * len(row) + [0.0] * (longest - len(row)) for row in rows], dtype=np.float32)
        table = "embeddings.{}_embeddings.weight"
        state = self._weights[table.format("word")][ids]
        state = state + self._weights[table.format("position")][:longest] + self._weights[table.format("token_type")][0]
        state = self._norm(state, "embeddings.LayerNorm")
        hidden = (1.0 - mask)[:, None, None, :] * np.float32(-1e9)
        for layer in range(LAYERS):
            state = self._layer(state, hidden, f"encoder.layer.{layer}")
        summed = (state * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1)[:, None]
        return (summed / np.linalg.norm(summed, axis=1)[:, None]).astype(float).tolist()

    def _layer(self, state: Any, hidden: Any, name: str) -> Any:
        np = self._numpy
        rows, length, width = state.shape
        shape = (rows, length, HEADS, width // HEADS)
        query, key, value = (
            self._linear(state, f"{name}.attention.self.{part}").reshape(shape).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(math.sqrt(width // HEADS)) + hidden
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        seen = (scores @ value).transpose(0, 2, 1, 3).reshape(rows, length, width)
        attended = self._linear(seen, f"{name}.attention.output.dense")
        state = self._norm(state + attended, f"{name}.attention.output.LayerNorm")
        inner = _gelu(np, self._linear(state, f"{name}.intermediate.dense"))
        return self._norm(state + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _linear(self, state: Any, name: str) -> Any:
        # As one matrix: numpy would multiply the texts one by one.
        flat = state.reshape(-1, state.shape[-1]) @ self._weights[f"{name}.weight"].T
        return flat.reshape(*state.shape[:-1], -1) + self._weights[f"{name}.bias"]

    def _norm(self, state: Any, name: str) -> Any:
        np = self._numpy
        centred = state - state.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
        return centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _gelu(np: Any, x: Any) -> Any:
    """x·Φ(x), with an erf accurate to 1e-7 (Abramowitz and Stegun 7.1.26), since numpy has none."""
    z = np.abs(x) * np.float32(math.sqrt(0.5))
    t = 1.0 / (1.0 + np.float32(0.3275911) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = np.sign(x) * (1.0 - series * np.exp(-z * z))
    return x * 0.5 * (1.0 + erf)


@functools.cache
def loaded(folder: Path) -> MiniLM:
    """The model in a folder, loaded once."""
    return MiniLM(folder)
