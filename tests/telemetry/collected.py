"""What a run reports to OpenTelemetry: spans and metrics in memory, read from the real SDK."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sidestream.telemetry import Telemetry


class OpenSpans(SpanProcessor):
    """The names of the spans that have begun and not ended."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.names.append(span.name)

    def on_end(self, span: ReadableSpan) -> None:
        # A span may have been renamed while it was open.
        self.names.remove(span.name) if span.name in self.names else self.names.pop()


class Collected:
    """Spans and metrics of the runs of one test."""

    def __init__(self) -> None:
        self.open = OpenSpans()
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(self.open)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._metrics], shutdown_on_exit=False)

    def telemetry(self, **settings: Any) -> Telemetry:
        """The settings of an agent that reports here."""
        return Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **settings)

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended, in that order."""
        return self._spans.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans whose names begin like this, in the order of their beginning."""
        found = [span for span in self.spans if span.name.startswith(name)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def children(self, parent: ReadableSpan) -> list[str]:
        """The names of a span's children, in the order of their beginning."""
        found = [span for span in self.spans if span.parent and span.parent.span_id == parent.context.span_id]
        return [span.name for span in sorted(found, key=lambda span: span.start_time or 0)]

    def points(self, metric: str) -> list[Any]:
        """The data points of a metric."""
        data = self._metrics.get_metrics_data()
        if data is None:
            return []
        every = [m for r in data.resource_metrics for scope in r.scope_metrics for m in scope.metrics]
        return [point for found in every if found.name == metric for point in found.data.data_points]

    def text(self) -> str:
        """Everything that was reported, as text, to look for what must not be there."""
        return "\n".join(span.to_json() for span in self.spans) + str(self._metrics.get_metrics_data())


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}
