"""The protocol of models that embed texts."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.stream.parts import Usage
from sidestream.transport.calls import HttpCall

Vector = tuple[float, ...]


class EmbeddingsResult(Struct, frozen=True, kw_only=True):
    """Vectors in the order of their texts, and what they cost."""

    vectors: tuple[Vector, ...] = ()
    model: str
    usage: Usage = Usage()

    @property
    def vector(self) -> Vector:
        """The vector of a single text. Raises ConfigurationError if there are several."""
        if len(self.vectors) != 1:
            raise ConfigurationError(f"there are {len(self.vectors)} vectors, not one; read `vectors`")
        return self.vectors[0]


class EmbeddingCall(Struct, frozen=True):
    """A request for one batch, and how many texts are in it."""

    call: HttpCall
    count: int


@runtime_checkable
class EmbedsText(Protocol):
    """A model that converts texts to vectors."""

    @property
    def name(self) -> str:
        """The model's name at its provider."""
        ...

    def embedding_calls(self, texts: Sequence[str], options: Any) -> Sequence[EmbeddingCall]:
        """One call per batch, in order; none for no texts. Raises UnsupportedError for options of another provider."""
        ...

    def read_embeddings(self, body: bytes, count: int) -> EmbeddingsResult:
        """The `count` vectors of a batch, in the order of its texts. Raises ProtocolError."""
        ...
