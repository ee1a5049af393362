"""The instruments of the conventions, and one of our own."""

from functools import lru_cache

from opentelemetry.metrics import Counter, Histogram, MeterProvider
from opentelemetry.util.types import AttributeValue

from sidestream.version import __version__

Attributes = dict[str, AttributeValue]

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_RUN_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOKENS = tuple(float(4**power) for power in range(14))


class Instruments:
    """What runs are measured with."""

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
            "sidestream.unknown_events", "{event}", "Events of a provider that could not be understood."
        )
        self.retries: Counter = meter.create_counter(
            "sidestream.retries", "{retry}", "Requests that were made again after a failure."
        )


@lru_cache(maxsize=8)
def instruments_of(provider: MeterProvider) -> Instruments:
    """The instruments of a provider, which are made once."""
    return Instruments(provider)
