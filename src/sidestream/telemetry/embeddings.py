"""Telemetry of embedding calls."""

from collections.abc import Callable
from types import TracebackType

from opentelemetry import context as contexts, metrics, trace
from opentelemetry.trace import SpanKind

from sidestream.providers.embedding import EmbeddingsResult
from sidestream.providers.protocol import ChatModel
from sidestream.telemetry import names
from sidestream.telemetry.metrics import Attributes, instruments_of
from sidestream.telemetry.operation import Attached, Operation, harmless, provider_name, tracer_of
from sidestream.telemetry.settings import Telemetry


class EmbeddingSpan:
    """The span of one call, however many batches it sends. It holds no texts or vectors."""

    def __init__(self, settings: Telemetry, model: ChatModel) -> None:
        self._instruments = instruments_of(settings.meter_provider or metrics.get_meter_provider())
        common: Attributes = {
            names.OPERATION: "embeddings",
            names.PROVIDER: provider_name(model),
            names.REQUEST_MODEL: model.name,
        }
        tracer = tracer_of(settings.tracer_provider or trace.get_tracer_provider())
        self._operation = Operation(
            tracer, f"embeddings {model.name}", contexts.get_current(), common, common, kind=SpanKind.CLIENT
        )
        self._attached = Attached(self._operation.context)

    def __enter__(self) -> Callable[[EmbeddingsResult], None]:
        self._attached.__enter__()
        return self._ended

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._attached.__exit__(kind, error, trace)
        if isinstance(error, Exception):
            self._operation.raised(error)
        self._operation.end(self._instruments.step_seconds)

    @harmless
    def _ended(self, result: EmbeddingsResult) -> None:
        operation, tokens = self._operation, result.usage.input.total
        if result.vectors:
            operation.span.set_attribute(names.DIMENSIONS, len(result.vectors[0]))
        if tokens:
            operation.span.set_attribute(names.INPUT_TOKENS, tokens)
            counted = operation.measured | {names.TOKEN_TYPE: "input"}
            self._instruments.tokens.record(tokens, counted, operation.context)
