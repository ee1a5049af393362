"""Matplotlib backend for the kernel that remembers which figures code has saved itself.

Runs inside the container; imports nothing of ours.
"""

from typing import Any

from matplotlib.backends.backend_agg import (  # pyright: ignore
    FigureCanvasAgg,  # pyright: ignore
    FigureManagerBase,  # pyright: ignore
)


class FigureCanvas(FigureCanvasAgg):  # pyright: ignore
    """A canvas that draws with Agg."""

    def print_figure(self, *arguments: Any, **settings: Any) -> Any:
        """Mark the figure as saved, and save it. Called by `savefig`."""
        self.figure._was_saved = True  # pyright: ignore
        return super().print_figure(*arguments, **settings)  # pyright: ignore


class FigureManager(FigureManagerBase):  # pyright: ignore
    """A manager that shows nothing, since open figures are sent when the cell ends."""

    @classmethod
    def pyplot_show(cls, *arguments: Any, **settings: Any) -> None:
        """Do nothing. Called by `show`."""
