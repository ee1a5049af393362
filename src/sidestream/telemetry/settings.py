"""How runs are traced. Imports nothing of OpenTelemetry."""

import os
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURES = frozenset({"true", "span_only", "span_and_event"})


class Telemetry(Struct, frozen=True, kw_only=True):
    """How the runs of an agent are traced. What is not given is what the program has configured globally.

    ```python
    agent = Agent("openai-responses", telemetry=Telemetry(agent_name="support", capture_content=True))
    ```
    """

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
