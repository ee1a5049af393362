"""OpenTelemetry: a run, its steps and its tools as spans and metrics, by the conventions for generative AI.

    agent = Agent("openai-responses", telemetry=Telemetry(capture_content=True))

A program that has configured OpenTelemetry needs nothing of this: its runs are traced. In any other program, nothing of
`opentelemetry` is imported.

May import `run` and what is below it. Only `spans`, `gauges` and what they import may import `opentelemetry`.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {"telemetry.settings": "Telemetry"},
)
