"""Computation of a response's cost from its bill and the built-in or user-defined prices."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream.parts import Finish, Usage
from sidestream.prices.price import Bill, Charge, Price, TokenKind

_TABLE = Path(__file__).with_name("table.json")
_DATED = r"-(\d{8}|\d{4}-\d{2}-\d{2})$"


class PriceList(Mapping[str, Price]):
    """The prices of one list, by model. Each is decoded when first read, because most runs need only one."""

    def __init__(self, prices: Mapping[str, Price | msgspec.Raw]) -> None:
        self._prices = dict(prices)

    def __getitem__(self, model: str) -> Price:
        price = self._prices[model]
        if isinstance(price, msgspec.Raw):
            price = self._prices[model] = msgspec.json.decode(price, type=Price)
        return price

    def __iter__(self) -> Iterator[str]:
        return iter(self._prices)

    def __len__(self) -> int:
        return len(self._prices)


class PriceTable(Struct, frozen=True):
    """List prices in US dollars, with their date and source."""

    date: str
    source: str
    lists: Mapping[str, Mapping[str, Price]]
    """Prices, by name of the price list and model."""
    fees: dict[str, dict[str, float]] = {}
    """Fees per call with any model, by name of the price list and tool."""

    def find(self, price_list: str, model: str) -> Price | None:
        """Find the price of a model by its name, with or without a date. Returns None if it is unknown."""
        models = self.lists.get(price_list, {})
        price = models.get(model) or models.get(re.sub(_DATED, "", model))
        fees = self.fees.get(price_list)
        return price if price is None or not fees else replace(price, tools={**fees, **price.tools})


class _StoredTable(Struct):
    date: str
    source: str
    lists: dict[str, dict[str, msgspec.Raw]]
    fees: dict[str, dict[str, float]]


@cache
def price_table() -> PriceTable:
    """Load the built-in prices, once."""
    # Not by `importlib.resources`, whose import takes longer than all that a first run does with prices.
    table = msgspec.json.decode(_TABLE.read_bytes(), type=_StoredTable)
    lists = {name: PriceList(prices) for name, prices in table.lists.items()}
    return PriceTable(table.date, table.source, lists, table.fees)


@lru_cache(maxsize=64)
def _listed(price_list: str, model: str) -> Price | None:
    """Find the price of a model in the built-in table."""
    return price_table().find(price_list, model)


DECIMALS = 12
"""Decimals of a cost. Rates have at most six per million tokens, so rounding removes only binary error."""

MAX_COUNT = 10**12
"""Maximum plausible count of tokens or calls. A larger or negative count is a provider error."""

IMPOSSIBLE = "the provider reported an impossible usage"
UNREPORTED = "the provider reported no usage"

_NONE: frozenset[str] = frozenset()


class Pricing:
    """Computes the cost of one run's responses at the prices of the model's provider."""

    def __init__(
        self,
        provider: str,
        model: str,
        *,
        price_list: str | None = None,
        bill: Callable[[Finish], Bill] | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self._provider = provider
        self._model = model
        self._list = price_list
        self._bill = bill or self._plain_bill
        self._own = prices or {}
        self._found: dict[tuple[str, ...], Price | None] = {}
        self._paid = _NONE
        """Containers already billed."""

    def price_of(self, *models: str) -> Price | None:
        """Return the price of a model under the first of its names that has one. The user's prices come first."""
        if models not in self._found:
            self._found[models] = self._find(models)
        return self._found[models]

    def _find(self, models: tuple[str, ...]) -> Price | None:
        for name in models if self._own else ():
            if (price := self._own.get(f"{self._provider}:{name}")) is not None:
                return price
        for name in () if self._list is None else models:
            if (price := _listed(self._list, name)) is not None:
                return price
        return None

    @property
    def is_known(self) -> bool:
        """Whether the model has a price."""
        return self.price_of(self._model) is not None

    def priced(self, finish: Finish) -> Usage:
        """Return a response's usage with its cost, or with the items whose price is unknown."""
        usage = finish.usage
        if usage.cost is not None or usage.unpriced:
            return usage
        if usage.is_empty:
            return replace(usage, unpriced=(UNREPORTED,))
        bill = self._bill(finish)
        for counts in (bill.calls, *[charge.tokens for charge in bill.charges]):
            if counts and (min(counts.values()) < 0 or max(counts.values()) > MAX_COUNT):
                return replace(usage, unpriced=(IMPOSSIBLE,))
        unknown = list(bill.unknown)
        total = sum([self._tokens(charge, unknown) for charge in bill.charges]) + self._fees(bill, unknown)
        if unknown:
            return replace(usage, unpriced=tuple(dict.fromkeys(unknown)))
        return replace(usage, cost=round(total, DECIMALS))

    def _plain_bill(self, finish: Finish) -> Bill:
        usage = finish.usage
        served = finish.metadata.get("model")
        also = (served,) if isinstance(served, str) else ()
        return Bill(charges=(Charge(model=self._model, also=also, tokens=plain_tokens(usage)),))

    def _tokens(self, charge: Charge, unknown: list[str]) -> float:
        """Return the cost of one call's tokens, adding items without a price to `unknown`."""
        name = f"{self._provider}:{charge.model}"
        price = self.price_of(charge.model, *charge.also)
        if price is None:
            unknown.append(name)
            return 0.0
        factors = price.factors
        if charge.tier is not None:
            price, name = price.tiers.get(charge.tier), f"{name} at the service tier {charge.tier}"
        if price is not None and price.long_from is not None and charge.prompt > price.long_from:
            price, name = price.long, f"{name} with more than {price.long_from} input tokens"
        if price is None:
            unknown.append(name)
            return 0.0
        factor, total = 1.0, 0.0
        for mode in charge.factors:
            if mode not in factors:
                unknown.append(f"{name} in the mode {mode}")
            factor *= factors.get(mode, 1.0)
        for kind, count in charge.tokens.items():
            if count:
                rate = price.rate(kind)
                if rate is None:
                    unknown.append(f"{name}: {kind} tokens")
                else:
                    total += count * rate
        return total * factor / 1_000_000

    def _fees(self, bill: Bill, unknown: list[str]) -> float:
        """Return the fees of tool calls, adding tools without a price to `unknown`."""
        new = bill.containers - self._paid if bill.containers else _NONE
        self._paid = self._paid | new if new else self._paid
        if not bill.charges or not (new or any(bill.calls.values())):
            return 0.0
        calls = {tool: count for tool, count in bill.calls.items() if count}
        if new:
            calls["container"] = len(new)
        first = bill.charges[0]
        price = self.price_of(first.model, *first.also)
        if price is None:
            return 0.0  # `_tokens` has added the model to `unknown`.
        total = 0.0
        for tool, count in calls.items():
            fee = price.tools.get(tool)
            if fee is None:
                unknown.append(f"{self._provider}:{first.model}: {tool}")
            total += (fee or 0.0) * (1 if tool in price.once_per_request else count)
        return total


def plain_tokens(usage: Usage) -> dict[TokenKind, int]:
    """Return a usage's tokens by kind, for providers that report no more detail."""
    return {
        "input": usage.input.no_cache,
        "cache_read": usage.input.cache_read,
        "cache_write": usage.input.cache_write,
        "output": usage.output.text,
        "reasoning": usage.output.reasoning,
    }
