"""The list prices that come with the package."""

import re
from functools import cache

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream.prices.price import Price

_DATED = r"-(\d{8}|\d{4}-\d{2}-\d{2})$"


class PriceTable(Struct, frozen=True):
    """List prices in US dollars, with their date and source."""

    date: str
    source: str
    lists: dict[str, dict[str, Price]]
    """Name of a price list → model → its price."""
    fees: dict[str, dict[str, float]] = {}
    """Name of a price list → tool → its fee per call with every model."""

    def find(self, price_list: str, model: str) -> Price | None:
        """The price of a model, by its name or the name without its date; None if it is unknown."""
        models = self.lists.get(price_list, {})
        price = models.get(model) or models.get(re.sub(_DATED, "", model))
        fees = self.fees.get(price_list)
        return price if price is None or not fees else replace(price, tools={**fees, **price.tools})


@cache
def price_table() -> PriceTable:
    """The prices that the package knows, with their date and source; read once, when first needed."""
    from importlib.resources import files

    text = (files("sidestream.prices") / "table.json").read_bytes()
    return msgspec.json.decode(text, type=PriceTable)
