"""Operations in telemetry, each a span and its duration metric."""

from collections.abc import Callable
from functools import lru_cache, wraps
from time import perf_counter
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram
from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    set_span_in_context,
)

from sidestream import __version__
from sidestream.errors import OutputInvalidError, RunError, SidestreamError
from sidestream.limits import MAX_ATTRIBUTE_CHARS
from sidestream.logs import get_logger
from sidestream.providers.protocol import ChatModel, NamedInTelemetry
from sidestream.telemetry import names
from sidestream.telemetry.metrics import Attributes
from sidestream.text.redaction import redact

log = get_logger(__name__)

P = ParamSpec("P")
OwnerT = TypeVar("OwnerT")


def harmless(method: Callable[Concatenate[OwnerT, P], None]) -> Callable[Concatenate[OwnerT, P], None]:
    """Log the method's exceptions, so that telemetry never fails a run."""

    @wraps(method)
    def guarded(self: OwnerT, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            log.warning("telemetry failed", exc_info=True)

    return guarded


@lru_cache(maxsize=8)
def tracer_of(provider: TracerProvider) -> Tracer:
    """Return a provider's tracer, which is created once."""
    return provider.get_tracer("sidestream", __version__)


def provider_name(model: ChatModel) -> str:
    """Return the OpenTelemetry name of a model's provider."""
    return model.telemetry_name if isinstance(model, NamedInTelemetry) else model.provider


def shown(text: str) -> str:
    """Shorten and redact an untrusted string for an attribute, and make it valid UTF-8."""
    # Cut roughly first, so that redacting a huge string is cheap; the final cut cannot split a secret.
    text = redact(text[: 16 * MAX_ATTRIBUTE_CHARS])[:MAX_ATTRIBUTE_CHARS]
    return text.encode("utf-8", "replace").decode()


class Operation:
    """A span that ends only once. A failing exporter or processor does not fail the run."""

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        parent: Context,
        attributes: Attributes,
        measured: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        self.measured = dict(measured)
        """Attributes of the operation's metrics."""
        self.began_s = perf_counter()
        try:
            self.span = tracer.start_span(shown(name), parent, kind, attributes)
        except Exception:
            log.warning("span processor failed at the start of %s", name, exc_info=True)
            self.span: Span = INVALID_SPAN
        self.context = set_span_in_context(self.span, parent)
        self._is_over = False

    @property
    def seconds(self) -> float:
        """The elapsed time, in seconds."""
        return perf_counter() - self.began_s

    def failed(self, error: str, description: str | None = None) -> None:
        """Mark the span as failed. `error` is the name of an exception or a kind of error."""
        self.measured[names.ERROR_TYPE] = error
        self.span.set_attribute(names.ERROR_TYPE, error)
        self.span.set_status(Status(StatusCode.ERROR, shown(description) if description else None))

    def raised(self, error: BaseException, *, with_content: bool = False) -> None:
        """Mark the span as failed with this exception. Only Sidestream's own messages are included.

        A message that may contain model output is included only with `with_content`.
        """
        is_shown = isinstance(error, SidestreamError) and (with_content or not isinstance(error, OutputInvalidError))
        self.failed(type(error).__name__, str(error) if is_shown else None)
        if isinstance(error, RunError) and error.status is not None:
            self.span.set_attribute(names.STATUS_CODE, error.status)

    def end(self, duration: Histogram) -> None:
        """End the span and record its duration."""
        if self._is_over:
            return
        self._is_over = True
        try:
            duration.record(self.seconds, self.measured, self.context)
            self.span.end()
        except Exception:
            log.warning("span processor failed at the end of a span", exc_info=True)


class Attached:
    """A context manager that makes a context current, so that new spans are children of its span."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = contexts.attach(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        contexts.detach(self._token)
