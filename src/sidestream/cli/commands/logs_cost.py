"""`sidestream logs cost` and `logs what-if`: what logged model calls cost, and what they would cost otherwise."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Literal

import click
from msgspec import Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.agent.models import pricing_for
from sidestream.cli import exit_codes
from sidestream.cli.display import formatting
from sidestream.cli.display.screen import one_line, write
from sidestream.cli.inputs import options
from sidestream.cli.inputs.conversations import all_conversations, find_conversation, with_store
from sidestream.errors import StoreError
from sidestream.messages.provenance import forwarded_part
from sidestream.messages.shortening import SHORTENED
from sidestream.parts import Custom, Finish, ResponseMetadata, StepFinish, StepStart, ToolCall, ToolEvent, Usage
from sidestream.prices.price import Bill, Charge, TokenKind
from sidestream.prices.pricing import Pricing, plain_tokens, price_table
from sidestream.providers.registry import model_for_prices
from sidestream.store.expiry import branches_of
from sidestream.store.ids import owner_in
from sidestream.store.records import FORKED, RunStarted, Segment, unpack
from sidestream.turn.ledger import JUDGED, MODEL_FALLBACK
from sidestream.turn.state import BACKGROUND, background_in

if TYPE_CHECKING:
    from sidestream.parts import StreamPart
    from sidestream.store.protocol import ConversationInfo, Store
    from sidestream.store.records import Row

By = Literal["model", "agent", "day", "tool"]

UNFINISHED = "model calls that did not finish"
"""Item without a price. The provider may bill an interrupted call, but its usage was never reported."""
MAIN = "(main)"
"""Agent of calls that no subagent made. Only a server logs its name."""
MODEL_TOKENS = "(model tokens)"
NOT_DIVIDED = "(not divided)"
"""Cost of calls that is unknown, or at other than the built-in prices, so that the tool fees in it are unknown."""
UNKNOWN_MODEL = "(unknown)"

_KINDS = frozenset({"run-started", "step-start", "step-finish", "tool-call", "tool-event", "custom"})
_FORWARDED = (b'"step-start"', b'"step-finish"', b'"finish"', b'"response-metadata"', b'"tool-call"', b'"tool-event"')
"""Marks of the tool events of subagents, which hold parts."""
_CACHE_LIFETIME_S = 300
_CACHE_MINIMUM = 1024
"""Tokens of the shortest prompt that providers cache."""
_UNCACHED: Mapping[TokenKind, TokenKind] = {
    "cache_read": "input",
    "cache_write": "input",
    "cache_write_1h": "input",
    "cache_read_audio": "input_audio",
}


# Model calls in the log


class ModelCall(Struct, frozen=True):
    """A logged model call."""

    run: str
    lane: tuple[str, ...]
    """Conversation, and the ids of the tool calls in which a subagent made the call."""
    time: float
    model: str
    """Model as `provider:name`. Empty means unknown."""
    agent: str
    finish: Finish


class CallReader:
    """A reader of the model calls of one agent in one conversation, with a reader for each run of a subagent."""

    def __init__(self, lane: tuple[str, ...], agent: str, calls: list[ModelCall]) -> None:
        self.agent = agent
        self.model = ""
        self.run = ""
        self._lane = lane
        self._calls = calls
        self._count = 0
        self._is_open = self._is_background = False
        self._time = 0.0
        self._names: dict[str, str] = {}
        """Names of tools, by call id."""
        self._inner: dict[str, CallReader] = {}

    def feed(self, part: "StreamPart", time: float) -> None:
        """Read the next part."""
        match part:
            case StepStart():
                # A resumed run starts a step again to wait for its background response.
                self._is_open = self._is_open and not self._is_background
                self.close()
                self._is_open, self._time = True, time
            case StepFinish(reason=reason, usage=usage, outcome=outcome):
                self._is_open = self._is_background = False
                self._count += 1
                metadata = outcome.metadata if outcome is not None else {}
                self._add(Finish(reason, usage, metadata=metadata, outcome=outcome), time)
            case ResponseMetadata(model=str(model), provider=str(provider)) if len(self._lane) > 1:
                self.model = f"{provider}:{model}"
            case ToolCall(id=id, name=name):
                self._names[id] = name
            case ToolEvent(call_id=str(call_id)) if (inner := forwarded_part(part)) is not None:
                self._of(call_id, part.tool).feed(inner, time)
            case Finish(reason=reason) if len(self._lane) > 1 and reason != "approval" and not self._count:
                # A tool that another model runs forwards only the end.
                marks = jsontext.as_object((part.provider_metadata or {}).get("sidestream"))
                self.model = str(marks.get("by") or self.model)
                self._add(part, time)
            case Custom(kind=kind) if kind == BACKGROUND:
                self._is_background = background_in([part]) is not None
            case Custom(kind=kind, data=data) if kind == MODEL_FALLBACK:
                self.model = str(jsontext.as_object(data).get("model") or self.model)
            case Custom(kind=kind, data={"usage": usage, **more}) if kind in (SHORTENED, JUDGED):
                self._add(Finish("stop", convert(usage, Usage)), time, str(more.get("model") or self.model))
            case _:
                pass

    def close(self) -> None:
        """Add the current calls, of which the log has no end."""
        for inner in self._inner.values():
            inner.close()
        if self._is_open:
            self._is_open = False
            self._add(Finish("error", Usage(unpriced=(UNFINISHED,))), self._time)

    def _of(self, call_id: str, tool: str) -> "CallReader":
        if call_id not in self._inner:
            name = self._names.get(call_id, tool)
            self._inner[call_id] = CallReader((*self._lane, call_id), name, self._calls)
        self._inner[call_id].run = self.run
        return self._inner[call_id]

    def _add(self, finish: Finish, time: float, model: str | None = None) -> None:
        if finish.usage.is_empty and not finish.usage.unpriced:
            return  # The provider refused the request, which costs nothing.
        self._calls.append(ModelCall(self.run, self._lane, time, model or self.model, self.agent, finish))


def calls_in(conversation: str, rows: "Iterable[Row]") -> tuple[list[ModelCall], int]:
    """Return the model calls of a conversation's log, and the number of damaged records."""
    calls, damaged = list[ModelCall](), 0
    reader = CallReader((conversation,), MAIN, calls)
    for row in rows:
        if row.kind == FORKED:  # What was copied counts where it was made.
            calls.clear()
        if row.kind not in _KINDS or (row.kind == "tool-event" and not any(mark in row.body for mark in _FORWARDED)):
            continue
        reader.run = row.run
        try:
            body = unpack(row).body
            if isinstance(body, RunStarted):
                reader.model = body.model
                reader.agent = jsontext.text_in(jsontext.as_object(body.details.get("job")), "agent") or MAIN
            for part in body.parts if isinstance(body, Segment) else ():
                reader.feed(part, row.time)
        except (StoreError, ValidationError):
            damaged += 1
    reader.close()
    return calls, damaged


async def read_calls(
    store: "Store", conversations: "Sequence[ConversationInfo]", since: float | None
) -> tuple[list[ModelCall], int]:
    """Return the model calls of these conversations since a time, and the number of damaged records.

    The calls before a branch or a fork count once, where they were made.
    """
    calls, damaged = list[ModelCall](), 0
    for info in conversations:
        if since is not None and info.updated < since:
            continue
        found, bad = calls_in(info.id, await store.read(info.id))
        calls += [call for call in found if since is None or call.time >= since]
        damaged += bad
    return calls, damaged


# Prices


def _pricing(model: str) -> Pricing:
    found = model_for_prices(model)
    if found is not None:
        return pricing_for(found, {})
    provider, _, name = model.partition(":")
    return Pricing(provider or UNKNOWN_MODEL, name or UNKNOWN_MODEL)


def _price_list(model: str) -> str | None:
    return getattr(model_for_prices(model), "price_list", None)


def _bill(call: ModelCall) -> Bill:
    bill = getattr(model_for_prices(call.model), "bill", None)
    if bill is not None:
        return bill(call.finish)
    name = call.model.partition(":")[2]
    return Bill(charges=(Charge(model=name, tokens=plain_tokens(call.finish.usage)),))


def _without_cost(finish: Finish) -> Finish:
    """Return the end of a call to price again. What was not reported stays unknown."""
    usage = finish.usage
    return finish if usage.is_empty else replace(finish, usage=replace(usage, cost=None, unpriced=()))


class RunPrices:
    """The pricings of several runs. Each run pays once for a container."""

    def __init__(self, create: Callable[[ModelCall], Pricing]) -> None:
        self._create = create
        self._pricings: dict[tuple[str, str, str], Pricing] = {}

    def of(self, call: ModelCall) -> Pricing:
        """Return the pricing of a call's run and model."""
        key = (call.lane[0], call.run, call.model)
        if key not in self._pricings:
            self._pricings[key] = self._create(call)
        return self._pricings[key]


class Amount(Struct):
    """A sum of model calls or tool calls."""

    calls: int = 0
    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    known: float = 0.0
    """Sum of the known costs, in US dollars."""
    unpriced: dict[str, int] = field(default_factory=dict[str, int])
    """Number of calls with an unknown cost, by the item without a price."""

    @property
    def cost(self) -> float | None:
        """The cost in US dollars. None means that a part of it is unknown."""
        return None if self.unpriced else round(self.known, 12)

    def add(self, usage: Usage) -> None:
        """Add a model call."""
        self.calls += 1
        self.input += usage.input.total
        self.cache_read += usage.input.cache_read
        self.cache_write += usage.input.cache_write
        self.output += usage.output.total
        self.reasoning += usage.output.reasoning
        self.add_cost(usage)

    def add_cost(self, usage: Usage) -> None:
        """Add the cost of a model call."""
        if usage.cost is not None:
            self.known += usage.cost
        else:
            for item in usage.unpriced or ("an unknown price",):
                self.unpriced[item] = self.unpriced.get(item, 0) + 1

    def as_json(self) -> dict[str, Any]:
        """Return the fields, with `cost` as null if a part of it is unknown."""
        return {**to_builtins(self), "known": round(self.known, 12), "cost": self.cost}

    def text(self) -> str:
        """Return the cost for a table."""
        if not self.unpriced:
            return formatting.dollars(self.known)
        return f"{formatting.dollars(self.known)} + unknown" if self.known else "unknown"


def costs_by(calls: Iterable[ModelCall], by: By) -> tuple[dict[str, Amount], Amount]:
    """Return the sums of the calls by model, agent, day or tool, and their total.

    A recorded cost is used as it is. Without one, the call is priced at the built-in prices.
    """
    groups: dict[str, Amount] = {}
    total = Amount()
    prices, paid = RunPrices(lambda call: _pricing(call.model)), set[str]()
    for call in calls:
        listed = prices.of(call).priced(_without_cost(call.finish))
        usage = call.finish.usage if call.finish.usage.cost is not None else listed
        total.add(usage)
        if by == "tool":
            _divide(groups, call, usage, listed, paid)
        else:
            groups.setdefault(_GROUPS[by](call), Amount()).add(usage)
    return groups, total


_GROUPS: Mapping[str, Callable[[ModelCall], str]] = {
    "model": lambda call: call.model or UNKNOWN_MODEL,
    "agent": lambda call: call.agent,
    "day": lambda call: datetime.fromtimestamp(call.time, UTC).date().isoformat(),
}


def _divide(groups: dict[str, Amount], call: ModelCall, usage: Usage, listed: Usage, paid: set[str]) -> None:
    """Divide the cost of a call into its tokens and its tool fees, if it was computed from the built-in prices.

    `paid` holds the containers that earlier calls have paid for.
    """
    fees = _fees(call, paid)
    if usage.cost is None or (call.finish.usage.server_tool_use and usage.cost != listed.cost):
        groups.setdefault(NOT_DIVIDED, Amount()).add(usage)
        return
    tokens = round(usage.cost - sum(fee for _, fee in fees.values()), 12)
    groups.setdefault(MODEL_TOKENS, Amount()).add(replace(usage, cost=tokens))
    for tool, (count, fee) in fees.items():
        amount = groups.setdefault(tool, Amount())
        amount.calls += count
        amount.known += fee


def _fees(call: ModelCall, paid: set[str]) -> dict[str, tuple[int, float]]:
    """Return the calls and the list fees of a model call, by tool."""
    bill = _bill(call)
    new = {f"{call.run} {container}" for container in bill.containers} - paid
    paid |= new
    first = bill.charges[0] if bill.charges else None
    price = _pricing(call.model).price_of(first.model, *first.also) if first else None
    counts = {**bill.calls, "container": len(new)}
    if price is None:
        return {}
    return {
        tool: (count, price.tools[tool] * (1 if tool in price.once_per_request else count))
        for tool, count in counts.items()
        if count and tool in price.tools
    }


# What if


class WhatIf(Struct, frozen=True, kw_only=True):
    """Other terms for logged calls. None means as logged."""

    model: str | None = None
    cache: bool | None = None
    tier: str | None = None

    def is_estimate(self, call: ModelCall) -> bool:
        """Return whether the cost of a call rests on assumed token counts."""
        return self.cache is True or (self.model is not None and self.model != call.model)


def reprice(calls: Iterable[ModelCall], terms: WhatIf) -> Iterator[tuple[ModelCall, Usage]]:
    """Yield each call with its usage at other terms, computed from the logged usage and the built-in prices."""
    prompts: dict[tuple[str, ...], tuple[int, float]] = {}
    bill = Bill()

    def create(call: ModelCall) -> Pricing:
        model = terms.model or call.model
        provider, _, name = model.partition(":")
        return Pricing(provider, name, price_list=_price_list(model), bill=lambda _: bill)

    prices = RunPrices(create)
    for call in calls:
        prompt, at = prompts.get(call.lane, (0, 0.0))
        total = call.finish.usage.input.total
        prompts[call.lane] = (total, call.time)
        bill = _other_bill(call, terms, prompt if prompt <= total and call.time - at <= _CACHE_LIFETIME_S else 0)
        yield call, prices.of(call).priced(_without_cost(call.finish))


def _other_bill(call: ModelCall, terms: WhatIf, prefix: int) -> Bill:
    bill = _bill(call)
    price_list = _price_list(terms.model or call.model)
    is_same_list = price_list is not None and price_list == _price_list(call.model)
    charges = tuple(_other_charge(charge, terms, prefix, is_same_list) for charge in bill.charges)
    calls = dict(bill.calls)
    if not is_same_list:
        # The other provider may charge for tools that are free with this one.
        calls |= {tool: count for tool, count in call.finish.usage.server_tool_use.items() if tool not in calls}
    return replace(bill, charges=charges, calls=calls)


def _other_charge(charge: Charge, terms: WhatIf, prefix: int, is_same_list: bool) -> Charge:
    tier = charge.tier if is_same_list else None
    if terms.tier is not None:
        tier = None if terms.tier == "standard" else terms.tier
    tokens = charge.tokens
    if terms.cache is not None:
        tokens = _cached(tokens, prefix) if terms.cache else _uncached(tokens)
    if terms.model is None:
        return replace(charge, tokens=tokens, tier=tier)
    factors = charge.factors if is_same_list else ()
    return Charge(model=terms.model.partition(":")[2], tokens=tokens, tier=tier, factors=factors)


def _uncached(tokens: Mapping[TokenKind, int]) -> dict[TokenKind, int]:
    found: dict[TokenKind, int] = {}
    for kind, count in tokens.items():
        plain = _UNCACHED.get(kind, kind)
        found[plain] = found.get(plain, 0) + count
    return found


def _cached(tokens: Mapping[TokenKind, int], prefix: int) -> Mapping[TokenKind, int]:
    """Return the tokens as if the prompt's prefix of this length were in the cache, and the rest written to it."""
    written = tokens.get("cache_write", 0) + tokens.get("cache_write_1h", 0)
    total = tokens.get("input", 0) + tokens.get("cache_read", 0) + written
    read = min(prefix, total) if prefix >= _CACHE_MINIMUM else 0
    logged = tokens.get("cache_read", 0)
    if total < _CACHE_MINIMUM or (read <= logged and (logged or written)):
        return tokens
    return {**tokens, "input": 0, "cache_read": read, "cache_write": total - read, "cache_write_1h": 0}


# Commands


def _since(context: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Parse an age or a day as a time in seconds since 1970."""
    import time

    if value is None:
        return None
    try:
        day = date.fromisoformat(value.strip())
    except ValueError:
        age = options.duration(context, param, value)
        return None if age is None else time.time() - age
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


_since_option = click.option(
    "--since", callback=_since, metavar="AGE|DAY", help="Count only calls since then, e.g. 30d or 2026-11-01 (UTC)."
)
_owner_option = click.option("--owner", metavar="NAME", help="Count only this owner's conversations on a server.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


@click.command()
@click.option(
    "--by",
    type=click.Choice(["model", "agent", "day", "tool"]),
    default="model",
    show_default=True,
    help="What to group by. Days are in UTC.",
)
@_since_option
@_owner_option
@options.store_option
@_json_option
def cost(by: By, since: float | None, owner: str | None, store: str | None, as_json: bool) -> int:
    """Show what the logged model calls cost, in US dollars. An unknown cost is never counted as 0."""

    async def work(opened: "Store") -> int:
        calls, damaged = await read_calls(opened, await _chosen(opened, (), owner), since)
        groups, total = costs_by(calls, by)
        rows = sorted(groups.items()) if by == "day" else sorted(groups.items(), key=lambda row: -row[1].known)
        if as_json:
            listed = [{by: name, **amount.as_json()} for name, amount in rows]
            write(sys.stdout.buffer, jsontext.dumps({"by": by, "rows": listed, "total": total.as_json()}) + b"\n")
        elif not calls:
            click.echo("No model calls.", err=True)
        else:
            shown = [_cells(name, amount) for name, amount in rows]
            _print_table((by, "calls", "input", "cached", "output", "cost"), [*shown, _cells("total", total)])
            _print_unpriced(total)
        return _code(damaged)

    return with_store(store, work)


@click.command("what-if")
@click.argument("ids", nargs=-1, metavar="[ID]…")
@click.option("-m", "--model", type=options.MODEL, metavar="MODEL", help="Price every call as a call of this model.")
@click.option(
    "--cache",
    type=click.Choice(["on", "off"]),
    help="Price the input as if prompts were cached between calls, or never.",
)
@click.option("--tier", metavar="TIER", help="Price every call at this service tier, e.g. flex or standard.")
@_since_option
@_owner_option
@options.store_option
@_json_option
def what_if(
    ids: tuple[str, ...],
    model: str | None,
    cache: str | None,
    tier: str | None,
    since: float | None,
    owner: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Price logged conversations again, for another model, cache or service tier. Sends nothing.

    ID defaults to all conversations.
    """
    if model is None and cache is None and tier is None:
        raise click.UsageError("choose --model, --cache or --tier")
    if model is not None:
        from sidestream.cli.inputs.default_model import check_model

        check_model(model)
        chat = model_for_prices(model)
        model = f"{chat.provider}:{chat.name}" if chat is not None else model
    terms = WhatIf(model=model, cache=None if cache is None else cache == "on", tier=tier)

    async def work(opened: "Store") -> int:
        calls, damaged = await read_calls(opened, await _chosen(opened, ids, owner), since)
        logged, logged_total = costs_by(calls, "model")
        others: dict[str, Amount] = {}
        total, is_about = Amount(), False
        for call, usage in reprice(calls, terms):
            others.setdefault(call.model or UNKNOWN_MODEL, Amount()).add(usage)
            total.add(usage)
            is_about = is_about or terms.is_estimate(call)
        if as_json:
            rows = [
                {"model": name, "logged": logged[name].as_json(), "what_if": others[name].as_json()} for name in logged
            ]
            totals = {"logged": logged_total.as_json(), "what_if": total.as_json()}
            asked = {"model": model, "cache": cache, "tier": tier}
            found = {"terms": asked, "about": is_about, "prices": price_table().date, "rows": rows, "total": totals}
            write(sys.stdout.buffer, jsontext.dumps(found) + b"\n")
        elif not calls:
            click.echo("No model calls.", err=True)
        else:
            about = "about " if is_about else ""
            both = [(name, logged[name], others[name]) for name in logged] + [("total", logged_total, total)]
            shown = [(name, f"{one.calls:,}", one.text(), f"{about}{two.text()}") for name, one, two in both]
            _print_table(("model", "calls", "logged", "what if"), shown)
            _print_change(logged_total, total, about)
            _print_unpriced(total)
        return _code(damaged)

    return with_store(store, work)


async def _chosen(store: "Store", ids: Sequence[str], owner: str | None) -> "list[ConversationInfo]":
    """Return the conversations with these ids and their branches, or all of an owner or of the store."""
    if not ids:
        found = await all_conversations(store)
    else:
        chosen = [await find_conversation(store, id, default_to_latest=True) for id in ids]
        branches = [branch for info in chosen for branch in await branches_of(store, info.id)]
        found = list({info.id: info for info in branches}.values())
    return [info for info in found if owner is None or owner_in(info.id) == owner]


def _cells(name: str, amount: Amount) -> tuple[str, ...]:
    counts = (amount.calls, amount.input, amount.cache_read, amount.output)
    return (name, *(f"{count:,}" for count in counts), amount.text())


def _print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    lines = [head, *((one_line(row[0], 60), *row[1:]) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        write(sys.stdout, "  ".join([line[0].ljust(widths[0]), *cells]) + "\n")


def _print_change(before: Amount, after: Amount, about: str) -> None:
    if before.cost and after.cost is not None:
        change = after.cost / before.cost - 1
        size = f"{abs(change):.0%} {'more' if change > 0 else 'less'}" if round(change, 2) else "the same"
        write(sys.stdout, f"\n{about}{size}, at the list prices of {price_table().date}\n")
    if about:
        write(sys.stdout, "about: assumes the logged token counts, although another model or cache may count others\n")


def _print_unpriced(total: Amount) -> None:
    if total.unpriced:
        write(sys.stdout, "\nunknown:\n")
        for item, count in total.unpriced.items():
            write(sys.stdout, f"  {one_line(item, 200)} ({formatting.things(count, 'call')})\n")


def _code(damaged: int) -> int:
    if damaged:
        click.echo(f"error: {damaged} damaged record(s) were skipped; see sidestream logs check", err=True)
    return exit_codes.FAILED if damaged else exit_codes.OK
