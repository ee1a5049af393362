"""Protocol for models that compute text embeddings."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.parts import Usage
from sidestream.transport.calls import HttpCall

Vector = tuple[float, ...]


class EmbeddingsResult(Struct, frozen=True, kw_only=True):
    """Vectors in the order of their input strings, and the usage."""

    vectors: tuple[Vector, ...] = ()
    model: str
    usage: Usage = Usage()

    @property
    def vector(self) -> Vector:
        """The vector of a single input string. Raises ConfigurationError unless there is exactly one."""
        if len(self.vectors) != 1:
            raise ConfigurationError(f"the result has {len(self.vectors)} vectors, not one; read `vectors`")
        return self.vectors[0]


class EmbeddingCall(Struct, frozen=True):
    """A request for one batch, and the number of strings in it."""

    call: HttpCall
    count: int


@runtime_checkable
class EmbedsText(Protocol):
    """A model that converts strings to vectors."""

    @property
    def name(self) -> str:
        """The provider's name for the model."""
        ...

    def embedding_calls(self, texts: Sequence[str], options: Any) -> Sequence[EmbeddingCall]:
        """Return one call per batch, in order, or none for empty input.

        Raises UnsupportedError for options of another provider.
        """
        ...

    def read_embeddings(self, body: bytes, count: int) -> EmbeddingsResult:
        """Parse the `count` vectors of a batch, in input order. Raises ProtocolError if the body does not hold them."""
        ...
