"""A backend of matplotlib for the kernel: remembers which figures code has saved itself. Runs inside; imports nothing
of ours."""

from typing import Any

from matplotlib.backends.backend_agg import (  # pyright: ignore
    FigureCanvasAgg,  # pyright: ignore
    FigureManagerBase,  # pyright: ignore
)


class FigureCanvas(FigureCanvasAgg):  # pyright: ignore
    """Draws with Agg."""

    def print_figure(self, *arguments: Any, **settings: Any) -> Any:
        """Called by `savefig`."""
        self.figure._was_saved = True  # pyright: ignore
        return super().print_figure(*arguments, **settings)  # pyright: ignore


class FigureManager(FigureManagerBase):  # pyright: ignore
    """Shows nothing: open figures are sent when the cell ends."""

    @classmethod
    def pyplot_show(cls, *arguments: Any, **settings: Any) -> None:
        """Called by `show`."""
