"""The conventions' instruments, and gauges of an engine and its worker."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation
from opentelemetry.util.types import AttributeValue

from sidestream import __version__
from sidestream.telemetry.names import TASK_STATE

Attributes = dict[str, AttributeValue]

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_RUN_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOKENS = tuple(float(4**power) for power in range(14))


class Instruments:
    """The instruments that measure runs."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("sidestream", __version__)

        def histogram(name: str, unit: str, description: str, boundaries: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=boundaries)

        self.step_seconds = histogram("gen_ai.client.operation.duration", "s", "GenAI operation duration.", _SECONDS)
        self.first_chunk_seconds = histogram(
            "gen_ai.client.operation.time_to_first_chunk", "s", "Time to receive the first chunk.", _SECONDS
        )
        self.tokens = histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", _TOKENS
        )
        self.run_seconds = histogram(
            "gen_ai.invoke_agent.duration", "s", "The end-to-end duration of a single agent invocation.", _RUN_SECONDS
        )
        self.tool_seconds = histogram(
            "gen_ai.execute_tool.duration", "s", "The duration of a single tool execution.", _SECONDS
        )
        self.unknown_events: Counter = meter.create_counter(
            "sidestream.unknown_events", "{event}", "Provider events that could not be decoded."
        )
        self.retries: Counter = meter.create_counter(
            "sidestream.retries", "{retry}", "Requests retried after a failure."
        )


@lru_cache(maxsize=8)
def instruments_of(provider: MeterProvider) -> Instruments:
    """Return a provider's instruments, which are created once."""
    return Instruments(provider)


STATES = ("queued", "running", "waiting")


class EngineGauges:
    """Gauges that report the last recorded values, and nothing before the first."""

    def __init__(self, provider: MeterProvider) -> None:
        self._values: Mapping[str, float] = {}
        meter = provider.get_meter("sidestream", __version__)
        for name, unit, description, key in (
            ("sidestream.engine.oldest_queued", "s", "Age of the oldest due task.", "oldest_queued_s"),
            ("sidestream.engine.oldest_lease", "s", "Age of the oldest heartbeat of a running task.", "oldest_lease_s"),
            ("sidestream.engine.takeovers", "{takeover}", "Failovers of unfinished tasks.", "takeovers"),
            ("sidestream.worker.runs", "{run}", "Runs that this process executes.", "runs"),
            ("sidestream.worker.slots", "{run}", "Maximum concurrent runs of this process.", "slots"),
        ):
            meter.create_observable_gauge(name, [self._observed(key)], unit, description)
        description = "Tasks that are due, running or waiting."
        meter.create_observable_gauge("sidestream.engine.tasks", [self._tasks], "{task}", description)

    def record(self, values: Mapping[str, float]) -> None:
        """Set the values to report, which are fields of the engine's metrics and this process's `runs` and `slots`."""
        self._values = values

    def _observed(self, key: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> Iterable[Observation]:
            values = self._values
            return [Observation(values[key])] if key in values else []

        return observed

    def _tasks(self, _: CallbackOptions) -> Iterable[Observation]:
        values = self._values
        return [Observation(values[state], {TASK_STATE: state}) for state in STATES if state in values]


@lru_cache(maxsize=8)
def gauges_of(provider: MeterProvider) -> EngineGauges:
    """Return a provider's gauges, which are created once."""
    return EngineGauges(provider)
