"""Whether runs are traced, and how. Imports nothing of OpenTelemetry."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from msgspec import Struct

from sidestream.errors import MissingExtraError
from sidestream.providers.embedding import EmbeddingsResult
from sidestream.providers.protocol import ChatModel
from sidestream.run.listener import RunListener

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURES = frozenset({"true", "span_only", "span_and_event"})
DISABLED_VARIABLE = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"


class Telemetry(Struct, frozen=True, kw_only=True):
    """How the runs of an agent are traced. What is not given is what the program has configured globally."""

    tracer_provider: "TracerProvider | None" = None
    meter_provider: "MeterProvider | None" = None
    capture_content: bool | None = None
    """True: spans have messages, and the inputs and results of tools. None: if `CAPTURE_VARIABLE` says so."""
    agent_name: str | None = None
    """The name of the agent in its spans."""

    @property
    def captures_content(self) -> bool:
        """True if spans have the content of messages."""
        if self.capture_content is not None:
            return self.capture_content
        return os.environ.get(CAPTURE_VARIABLE, "").strip().lower() in _CAPTURES


_GLOBAL = Telemetry()


def listener_for(telemetry: Telemetry | bool) -> RunListener | None:
    """What traces a run; None if OpenTelemetry is not configured, or switched off.

    Raises MissingExtraError for explicit settings where OpenTelemetry is not installed.
    """
    settings = _active(telemetry)
    if settings is None:
        return None
    from sidestream.telemetry.spans import RunSpans

    return RunSpans(settings)


def embedding_span(
    telemetry: Telemetry | bool, model: ChatModel
) -> AbstractContextManager[Callable[[EmbeddingsResult], None]] | None:
    """Surrounds the embedding of texts, and takes its result; None if OpenTelemetry is not configured."""
    settings = _active(telemetry)
    if settings is None:
        return None
    from sidestream.telemetry.embeddings import EmbeddingSpan

    return EmbeddingSpan(settings, model)


def _active(telemetry: Telemetry | bool) -> Telemetry | None:
    """The settings, if there is something to report to."""
    settings = telemetry if isinstance(telemetry, Telemetry) else _GLOBAL
    is_given = settings.tracer_provider is not None or settings.meter_provider is not None
    if telemetry is False or not (is_given or is_configured()):
        return None
    try:
        import opentelemetry.trace  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ModuleNotFoundError as error:
        raise MissingExtraError("otel", "Telemetry") from error
    return settings


def is_configured() -> bool:
    """True if the program has configured OpenTelemetry, and has not switched Sidestream off there."""
    trace, metrics = sys.modules.get("opentelemetry.trace"), sys.modules.get("opentelemetry.metrics")
    if trace is None and metrics is None:
        return False
    has_spans = trace is not None and _is_real(trace.get_tracer_provider())
    has_metrics = metrics is not None and _is_real(metrics.get_meter_provider())
    disabled = os.environ.get(DISABLED_VARIABLE, "").split(",")
    return (has_spans or has_metrics) and not {"sidestream", "*"} & {name.strip() for name in disabled}


def _is_real(provider: object) -> bool:
    """False for the API's own providers, which do nothing."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
