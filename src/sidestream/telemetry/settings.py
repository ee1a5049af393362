"""Telemetry settings. Does not import OpenTelemetry."""

import os
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURES = frozenset({"true", "span_only", "span_and_event"})


class Telemetry(Struct, frozen=True, kw_only=True):
    """Telemetry settings of an agent. Omitted providers default to the program's global configuration.

    ```python
    agent = Agent("openai-responses", telemetry=Telemetry(agent_name="support", capture_content=True))
    ```
    """

    tracer_provider: "TracerProvider | None" = None
    meter_provider: "MeterProvider | None" = None
    capture_content: bool | None = None
    """Whether spans include messages, tool inputs and tool results. None means as `CAPTURE_VARIABLE` says."""
    agent_name: str | None = None
    """Name of the agent in its spans."""

    @property
    def captures_content(self) -> bool:
        """Whether spans include the content of messages."""
        if self.capture_content is not None:
            return self.capture_content
        return os.environ.get(CAPTURE_VARIABLE, "").strip().lower() in _CAPTURES
