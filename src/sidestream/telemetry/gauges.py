"""How an engine and the process that drives runs for it do, as gauges."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from sidestream.telemetry.names import TASK_STATE
from sidestream.version import __version__

STATES = ("queued", "running", "waiting")


class EngineGauges:
    """Gauges that show what was recorded last, and nothing while nothing is known."""

    def __init__(self, provider: MeterProvider) -> None:
        self._values: Mapping[str, float] = {}
        meter = provider.get_meter("sidestream", __version__)
        for name, unit, description, key in (
            ("sidestream.engine.oldest_queued", "s", "How long the oldest task has been due.", "oldest_queued_s"),
            ("sidestream.engine.oldest_lease", "s", "Since the oldest heartbeat of a driven task.", "oldest_lease_s"),
            ("sidestream.engine.takeovers", "{takeover}", "Takeovers of tasks that are not over.", "takeovers"),
            ("sidestream.worker.runs", "{run}", "Runs that this process drives.", "runs"),
            ("sidestream.worker.slots", "{run}", "Runs that this process may drive at once.", "slots"),
        ):
            meter.create_observable_gauge(name, [self._observed(key)], unit, description)
        description = "Tasks that are due, driven, or wait to be woken or for their time."
        meter.create_observable_gauge("sidestream.engine.tasks", [self._tasks], "{task}", description)

    def record(self, values: Mapping[str, float]) -> None:
        """What is shown from now on: fields of the engine's figures, and `runs` and `slots` of this process."""
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
    """The gauges of a provider, which are made once."""
    return EngineGauges(provider)
