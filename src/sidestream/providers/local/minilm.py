"""The embeddings model all-MiniLM-L6-v2 in numpy: a six-layer BERT with mean pooling and normalised vectors.

It uses one BLAS thread per call. Calls block, so make them in a thread.
"""

import ctypes
import functools
import math
import os
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from sidestream.errors import MissingExtraError

_SUFFIXES = ("64_", "_64", "")
_PREFIXES = ("scipy_openblas", "openblas")

_lock = threading.Lock()
_entered: list[int] = []
"""Original number of BLAS threads, once per active `single_threaded` block."""


@contextmanager
def single_threaded(np: Any) -> Generator[None]:
    """Limit OpenBLAS to one thread in the whole process, within the block. Other BLAS libraries are not changed."""
    functions = _functions(np)
    if functions is None:
        yield
        return
    get, set_ = functions
    with _lock:
        _entered.append(_entered[0] if _entered else get())
        set_(1)
    try:
        yield
    finally:
        with _lock:
            before = _entered.pop()
            if not _entered:
                set_(before)


@cache
def _functions(np: Any) -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)
    except (AttributeError, OSError):
        return None
    for prefix in _PREFIXES:
        for suffix in _SUFFIXES:
            get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            set_ = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            if get is not None and set_ is not None:
                return get, set_
    return None


MAX_TOKENS = 256
"""Context length that the model was trained with. Longer input is truncated."""
LAYERS = 6
HEADS = 12
EPSILON = 1e-12
PACK_TOKENS = 512
"""Tokens per batch: enough to read the weights once for several strings, and few enough that the rows stay in the
processor's cache."""
MAX_EXPONENT = 80.0
"""Largest exponent for which `exp` neither overflows nor underflows in 32 bits."""
GATE_ROWS = 64
"""Activation rows computed together, so that they stay in the processor's cache."""
MAX_WORKERS = 2
"""Maximum embedding threads. Each keeps a core busy, so more would starve the rest of the program."""


class Embeddings(Struct, frozen=True):
    """Vectors in the order of their input strings, and the number of tokens."""

    vectors: list[list[float]]
    tokens: int


class _Workspace:
    """Reusable buffers. New ones would cost a page fault per 4 kB of each matrix product."""

    def __init__(self, np: Any, width: int, inner: int) -> None:
        self.np = np
        sizes = {
            "joined": PACK_TOKENS * width * 3,
            "columns": MAX_TOKENS * width,
            "scores": MAX_TOKENS * MAX_TOKENS * HEADS,
            "seen": PACK_TOKENS * width,
            "attended": PACK_TOKENS * width,
            "state": PACK_TOKENS * width,
            "inner": PACK_TOKENS * inner,
            "gate": GATE_ROWS * inner,
        }
        self.ones = np.ones(MAX_TOKENS, dtype=np.float32)
        self._buffers = {name: np.empty(size, dtype=np.float32) for name, size in sizes.items()}

    def take(self, name: str, *shape: int) -> Any:
        """Return a buffer in this shape. Its old content may be overwritten."""
        return self._buffers[name][: math.prod(shape)].reshape(shape)


class _Linear(Struct, frozen=True):
    """A weight matrix, laid out for fast multiplication, and a bias."""

    weight: Any
    bias: Any

    def __call__(self, work: _Workspace, buffer: str, state: Any) -> Any:
        """Compute the product in a buffer."""
        made = work.np.matmul(state, self.weight, out=work.take(buffer, len(state), self.weight.shape[1]))
        made += self.bias
        return made


class _Norm(Struct, frozen=True):
    """Layer normalisation."""

    weight: Any
    bias: Any

    def __call__(self, work: _Workspace, state: Any) -> Any:
        """Normalise each row in place."""
        np = work.np
        state -= state.mean(axis=-1, keepdims=True)
        spread = np.einsum("ij,ij->i", state, state)
        spread /= np.float32(state.shape[-1])
        spread += np.float32(EPSILON)
        state /= np.sqrt(spread)[:, None]
        state *= self.weight
        state += self.bias
        return state


class _Layer(Struct, frozen=True, kw_only=True):
    """One layer. Query, key and value share a matrix, so that one product replaces three."""

    attention: _Linear
    output: _Linear
    output_norm: _Norm
    inner: _Linear
    outer: _Linear
    outer_norm: _Norm

    def __call__(self, work: _Workspace, state: Any, spans: Sequence[slice]) -> Any:
        """Compute the next state of several inputs, each a span of rows that attends only to itself."""
        joined = self.attention(work, "joined", state)
        seen = work.take("seen", *state.shape)
        for span in spans:
            _attend(work, joined[span], seen[span])
        attended = self.output(work, "attended", seen)
        attended += state
        self.output_norm(work, attended)
        inner = self.inner(work, "inner", attended)
        for start in range(0, len(inner), GATE_ROWS):
            _gelu(work, inner[start : start + GATE_ROWS])
        made = self.outer(work, "state", inner)
        made += attended
        return self.outer_norm(work, made)


def _attend(work: _Workspace, joined: Any, seen: Any) -> None:
    np = work.np
    length, width = seen.shape
    query, key, value = joined.reshape(length, 3, HEADS, width // HEADS).transpose(1, 2, 0, 3)
    columns = work.take("columns", HEADS, width // HEADS, length)
    columns[...] = key.transpose(0, 2, 1)
    scores = np.matmul(query, columns, out=work.take("scores", HEADS, length, length))
    if _longest(np, query) * _longest(np, key) > MAX_EXPONENT:
        scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    made = np.matmul(scores, value)
    made /= np.matmul(scores, work.ones[:length])[..., None]
    seen.reshape(length, HEADS, width // HEADS)[...] = made.transpose(1, 0, 2)


def _longest(np: Any, rows: Any) -> float:
    """Return the length of the longest vector. The product of two lengths bounds any dot product."""
    return math.sqrt(np.einsum("hij,hij->hi", rows, rows).max())


def _gelu(work: _Workspace, x: Any) -> None:
    """Compute x·Φ(x) in place, by tanh. Vectors differ by less than 1e-3 from those of the exact function."""
    np = work.np
    gate = np.multiply(x, x, out=work.take("gate", *x.shape))
    gate *= np.float32(0.044715 * math.sqrt(2 / math.pi))
    gate += np.float32(math.sqrt(2 / math.pi))
    gate *= x
    np.tanh(gate, out=gate)
    gate += np.float32(1.0)
    x *= np.float32(0.5)
    x *= gate


class MiniLM:
    """The weights and the tokenizer. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        try:
            import numpy
            import safetensors.numpy as safetensors
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise MissingExtraError("local", "The embedded model for embeddings") from error
        self._numpy: Any = numpy
        reader: Any = safetensors
        weights: Any = reader.load_file(folder / "model" / "model.safetensors")
        table = "embeddings.{}_embeddings.weight"
        self._words = weights[table.format("word")]
        self._positions = weights[table.format("position")] + weights[table.format("token_type")][0]
        self._norm = _norm(weights, "embeddings.LayerNorm")
        self._layers = [_layer(numpy, weights, f"encoder.layer.{number}") for number in range(LAYERS)]
        self._spaces: queue.SimpleQueue[_Workspace] = queue.SimpleQueue()
        for _ in range(min(MAX_WORKERS, os.cpu_count() or 1)):
            self._spaces.put(_Workspace(numpy, self._words.shape[1], self._layers[0].inner.weight.shape[1]))
        tokenizer: Any = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
        # Override the file's settings: shorter truncation, and padding.
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._tokenizing = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """Compute the vectors of strings."""
        with self._tokenizing:  # The tokenizer is stateful.
            ids: list[list[int]] = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        packs = _packs([len(row) for row in ids])
        vectors: list[list[float]] = [[]] * len(ids)

        def compute(pack: list[int]) -> None:
            for index, vector in zip(pack, self._forward([ids[index] for index in pack]), strict=True):
                vectors[index] = vector

        with single_threaded(self._numpy):
            if len(packs) < 2:
                list(map(compute, packs))
            else:
                with ThreadPoolExecutor(MAX_WORKERS, "sidestream-embed") as workers:
                    list(workers.map(compute, packs))
        return Embeddings(vectors, sum(map(len, ids)))

    def _forward(self, rows: list[list[int]]) -> list[list[float]]:
        work = self._spaces.get()  # Blocks while all are in use.
        try:
            return self._vectors(work, rows)
        finally:
            self._spaces.put(work)

    def _vectors(self, work: _Workspace, rows: list[list[int]]) -> list[list[float]]:
        np = self._numpy
        tokens = [token for row in rows for token in row]
        state = np.take(self._words, tokens, axis=0, out=work.take("state", len(tokens), self._words.shape[1]))
        spans: list[slice] = []
        for row in rows:
            start = spans[-1].stop if spans else 0
            spans.append(slice(start, start + len(row)))
            state[spans[-1]] += self._positions[: len(row)]
        self._norm(work, state)
        for layer in self._layers:
            state = layer(work, state, spans)
        summed = np.stack([state[span].mean(axis=0) for span in spans])
        return (summed / np.linalg.norm(summed, axis=1)[:, None]).astype(float).tolist()


def _packs(lengths: Sequence[int]) -> list[list[int]]:
    """Group inputs into batches by their lengths. Returns the indices of each batch."""
    packs: list[list[int]] = []
    free = 0
    for index, length in enumerate(lengths):
        if not packs or length > free:
            packs.append([])
            free = PACK_TOKENS
        packs[-1].append(index)
        free -= length
    return packs


def _layer(np: Any, weights: Any, name: str) -> _Layer:
    parts = [_linear(np, weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
    # Fold the attention scale into the query.
    scale = np.float32(1 / math.sqrt(parts[0].weight.shape[1] // HEADS))
    parts[0] = _Linear(parts[0].weight * scale, parts[0].bias * scale)
    return _Layer(
        attention=_Linear(
            np.concatenate([part.weight for part in parts], axis=1), np.concatenate([part.bias for part in parts])
        ),
        output=_linear(np, weights, f"{name}.attention.output.dense"),
        output_norm=_norm(weights, f"{name}.attention.output.LayerNorm"),
        inner=_linear(np, weights, f"{name}.intermediate.dense"),
        outer=_linear(np, weights, f"{name}.output.dense"),
        outer_norm=_norm(weights, f"{name}.output.LayerNorm"),
    )


def _linear(np: Any, weights: Any, name: str) -> _Linear:
    return _Linear(np.ascontiguousarray(weights[f"{name}.weight"].T), weights[f"{name}.bias"])


def _norm(weights: Any, name: str) -> _Norm:
    return _Norm(weights[f"{name}.weight"], weights[f"{name}.bias"])


@functools.cache
def loaded(folder: Path) -> MiniLM:
    """Load the model in a folder, once."""
    return MiniLM(folder)
