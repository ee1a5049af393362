"""Activation of tracing. Imports OpenTelemetry only if runs are traced."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

from sidestream.errors import MissingExtraError
from sidestream.providers.protocol import ChatModel
from sidestream.run.settings import RunListener
from sidestream.telemetry.settings import Telemetry

if TYPE_CHECKING:
    from sidestream.providers.embedding import EmbeddingsResult
    from sidestream.telemetry.metrics import EngineGauges

DISABLED_VARIABLE = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"

_GLOBAL = Telemetry()


def listener_for(telemetry: Telemetry | bool) -> RunListener | None:
    """Create a listener that traces a run, or return None if OpenTelemetry is not configured or is disabled.

    Raises MissingExtraError if explicit settings need OpenTelemetry and it is not installed.
    """
    settings = _active(telemetry)
    if settings is None:
        return None
    from sidestream.telemetry.spans import RunSpans

    return RunSpans(settings)


def embedding_span(
    telemetry: Telemetry | bool, model: ChatModel
) -> AbstractContextManager[Callable[["EmbeddingsResult"], None]]:
    """Trace a call that embeds texts, given its result. Does nothing if OpenTelemetry is not configured."""
    settings = _active(telemetry)
    if settings is None:
        return nullcontext(_ignored)
    from sidestream.telemetry.spans import EmbeddingSpan

    return EmbeddingSpan(settings, model)


def _ignored(result: "EmbeddingsResult") -> None:
    """Ignore the result."""


def engine_gauges(telemetry: Telemetry | bool) -> "EngineGauges | None":
    """Return the gauges for an engine and its worker, or None if OpenTelemetry is not configured."""
    settings = _active(telemetry)
    if settings is None:
        return None
    from opentelemetry import metrics

    from sidestream.telemetry.metrics import gauges_of

    return gauges_of(settings.meter_provider or metrics.get_meter_provider())


def _active(telemetry: Telemetry | bool) -> Telemetry | None:
    """Return the settings, or None if telemetry is off."""
    settings = telemetry if isinstance(telemetry, Telemetry) else _GLOBAL
    is_given = settings.tracer_provider is not None or settings.meter_provider is not None
    if telemetry is False or not (is_given or is_configured()):
        return None
    try:
        import_module("opentelemetry.trace")
    except ModuleNotFoundError as error:
        raise MissingExtraError("otel", "Telemetry") from error
    return settings


def is_configured() -> bool:
    """Return whether the program has configured OpenTelemetry and has not disabled Sidestream's instrumentation."""
    trace, metrics = sys.modules.get("opentelemetry.trace"), sys.modules.get("opentelemetry.metrics")
    if trace is None and metrics is None:
        return False
    has_spans = trace is not None and _is_real(trace.get_tracer_provider())
    has_metrics = metrics is not None and _is_real(metrics.get_meter_provider())
    disabled = os.environ.get(DISABLED_VARIABLE, "").split(",")
    return (has_spans or has_metrics) and not {"sidestream", "*"} & {name.strip() for name in disabled}


def _is_real(provider: object) -> bool:
    """Return whether this is not one of the API's no-op providers."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
