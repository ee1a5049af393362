"""How large the context windows of models are."""

from contextlib import suppress

from sidestream.agent.models import Models, list_models
from sidestream.errors import RunError
from sidestream.limits import Limits
from sidestream.providers.protocol import ChatModel, KnowsWindow, ListsModels


class ContextWindows:
    """The context windows of an agent's models. A provider's list of models is requested once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._listed: dict[str, int | None] = {}

    async def of(self, models: Models, model: ChatModel) -> int | None:
        """In tokens; None if neither the model nor its provider says."""
        if isinstance(model, KnowsWindow) and model.context_window is not None:
            return model.context_window
        if model.name not in self._listed and isinstance(model, ListsModels):
            with suppress(RunError):
                found = await list_models(model, models.transport, self._limits)
                self._listed |= {info.name: info.max_input_tokens for info in found}
        return self._listed.setdefault(model.name, None)
