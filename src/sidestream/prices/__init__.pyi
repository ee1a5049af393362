"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.prices.pricing import (
    PriceTable as PriceTable,
    price_table as price_table,
)
