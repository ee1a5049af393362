"""OpenTelemetry spans and metrics of runs, steps and tools, following the conventions for generative AI.

    agent = Agent("openai-responses", telemetry=Telemetry(capture_content=True))

If a program has configured OpenTelemetry, its runs are traced automatically. Otherwise, `opentelemetry` is not
imported.

May import `run` and what is below it. Only `spans`, `gauges` and what they import may import `opentelemetry`.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {"telemetry.settings": "Telemetry"},
)
