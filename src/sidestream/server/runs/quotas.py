"""Quotas per tenant or IP address. A refusal says when to try again."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from sidestream import limits
from sidestream.errors import StoreError
from sidestream.parts import Finish
from sidestream.server.errors import RequestError
from sidestream.server.settings import Caps
from sidestream.store.protocol import Store
from sidestream.store.records import Row, Segment, unpack

MINUTE_S = 60.0
DAY_S = 86_400.0
RETRY_S = 5.0
"""Seconds until a retry where the end of the runs in progress is unknown."""


class Spending(NamedTuple):
    """The cost of a run."""

    at: float
    """End of the run, in seconds since 1970."""
    dollars: float


class CapKeeper:
    """Counts what each tenant uses.

    Reads the spending of the last 24 hours from the log when a tenant first starts a run, then counts in memory. After
    that, processes that share a store do not see each other's spending.
    """

    def __init__(
        self,
        caps: Caps,
        store: Store,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        is_shared: bool = False,
    ) -> None:
        self._caps = caps
        self._store = store
        self._is_shared = is_shared
        """Whether other processes execute the runs, so that costs are only in the log."""
        self._now = now
        """Wall clock, because daily spending is compared with the times in the log."""
        self._monotonic = monotonic
        """Monotonic clock for runs per minute, so that setting the clock back does not block anyone."""
        self._starts: dict[str, deque[float]] = {}
        self._spent: dict[str, dict[str, Spending]] = {}
        """Costs by tenant and run. A resumed run reports its total cost again."""
        self._known: set[str] = set()
        """Tenants whose earlier spending has been read."""

    async def prepare(self, owner: str) -> None:
        """Read a tenant's earlier spending, once or each time if other processes execute the runs.

        Raises StoreError if the log cannot be read.
        """
        if self._caps.max_cost_per_day is None or (owner in self._known and not self._is_shared):
            return
        rows = await self._store.ended_runs(self._now() - DAY_S, prefix=f"{owner}/")
        logged = {row.run: Spending(row.time, _cost_in(row)) for row in rows}
        self._spent[owner] = {**logged, **self._spent.get(owner, {})}
        self._known.add(owner)

    def admit(self, owner: str, running: Mapping[str, float]) -> None:
        """Count a run that is about to start. `running` holds the runs in progress with their costs so far.

        Raises RequestError(429), with `Retry-After`, if the tenant has reached a quota.
        """
        caps = self._caps
        who = "this token" if owner else "this server"
        if caps.max_cost_per_day is not None and (wait_s := self._broke_for_s(owner, running, self._now())) is not None:
            reason = f"{who} has reached its limit of ${caps.max_cost_per_day:g} in 24 hours"
            raise _refusal(reason, "spend_limit_exceeded", wait_s)
        if caps.max_concurrent_runs is not None and len(running) >= caps.max_concurrent_runs:
            reason = f"{who} has reached its limit of concurrent runs, with {len(running)} in progress"
            raise _refusal(reason, "too_many_runs", RETRY_S)
        if caps.requests_per_minute is not None:
            starts, now_s = self._starts.setdefault(owner, deque()), self._monotonic()
            while starts and starts[0] <= now_s - MINUTE_S:
                starts.popleft()
            if len(starts) >= caps.requests_per_minute:
                reason = f"{who} has reached its limit of {caps.requests_per_minute} runs per minute"
                raise _refusal(reason, "rate_limit_exceeded", starts[0] + MINUTE_S - now_s)
            starts.append(now_s)

    def ended(self, owner: str, run: str, dollars: float) -> None:
        """Record the cost of a run that has ended or is waiting."""
        if self._caps.max_cost_per_day is not None:
            self._spent.setdefault(owner, {})[run] = Spending(self._now(), dollars)

    def _broke_for_s(self, owner: str, running: Mapping[str, float], now: float) -> float | None:
        """Return the seconds until enough of the spending is older than a day, or None if the quota is not used up."""
        cap = self._caps.max_cost_per_day
        assert cap is not None
        spent = self._spent.setdefault(owner, {})
        for run in [run for run, entry in spent.items() if entry.at <= now - DAY_S]:
            del spent[run]
        known = sorted({**spent, **{run: Spending(now, dollars) for run, dollars in running.items()}}.values())
        left = sum(entry.dollars for entry in known)
        for entry in known if left >= cap else ():
            left -= entry.dollars
            if left < cap:
                return entry.at + DAY_S - now
        return None


class TokenGuesses:
    """Counts wrong tokens by IP address. After some free attempts, one per second is checked."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._counts: dict[str, tuple[float, float]] = {}
        """Count of guesses and the time of the last, by network, in order of the last guess."""
        self._total = (0.0, 0.0)

    def admit(self, address: str) -> None:
        """Raise RequestError(429), with `Retry-After`, if the IP address has sent too many wrong tokens."""
        excess = max(
            self._now(self._counts.get(_network(address), (0.0, 0.0)), 1.0) + 1 - limits.MAX_TOKEN_GUESSES,
            (self._now(self._total, _TOTAL_RATE) + 1 - limits.MAX_TOTAL_TOKEN_GUESSES) / _TOTAL_RATE,
        )
        if excess > 0:
            raise _refusal("too many wrong tokens from this IP address", "too_many_attempts", excess)

    def failed(self, address: str) -> None:
        """Count a wrong token."""
        network, now_s = _network(address), self._monotonic()
        count = self._now(self._counts.pop(network, (0.0, 0.0)), 1.0)
        if len(self._counts) >= limits.MAX_GUESSING_ADDRESSES:
            del self._counts[next(iter(self._counts))]
        self._counts[network] = (count + 1, now_s)
        self._total = (self._now(self._total, _TOTAL_RATE) + 1, now_s)

    def _now(self, counted: tuple[float, float], rate: float) -> float:
        """Return how many guesses still count, when `rate` of them are forgotten per second."""
        count, at_s = counted
        return max(0.0, count - (self._monotonic() - at_s) * rate)


_TOTAL_RATE = limits.MAX_TOTAL_TOKEN_GUESSES / limits.MAX_TOKEN_GUESSES


def _network(address: str) -> str:
    """Return the IPv4 address, or the network of an IPv6 address, as one machine has all addresses of its network."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or int(found) >> 64)
    return str(found)


class Bodies:
    """Tracks the bytes reserved for request bodies and messages being read, by tenant."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def body(self, owner: str) -> "Body":
        """Return an empty reservation for a body of this tenant."""
        return Body(self._held, owner)


class Body:
    """The bytes reserved for one body."""

    def __init__(self, held: Counter[str], owner: str) -> None:
        self._held = held
        self._owner = owner
        self._size = 0

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes in total. Raises RequestError(429) if the limit is reached."""
        if size <= max(self._size, limits.SMALL_BODY_BYTES):
            return
        more = size - self._size
        if self._held[self._owner] + more > limits.MAX_OWNER_BODY_BYTES:
            who = "this token" if self._owner else "this server"
            raise _refusal(f"{who} has too many large requests in progress", "too_many_bodies", RETRY_S)
        if self._held.total() + more > limits.MAX_TOTAL_BODY_BYTES:
            raise _refusal("this server has too many large requests in progress", "too_many_bodies", RETRY_S)
        self._held[self._owner] += more
        self._size = size

    def close(self) -> None:
        """Release the reservation, so that the object can serve another body."""
        self._held[self._owner] -= self._size
        self._size = 0
        if not self._held[self._owner]:
            del self._held[self._owner]


def _refusal(reason: str, code: str, wait_s: float) -> RequestError:
    seconds = max(1, math.ceil(wait_s))
    message = f"{reason}; try again in {seconds} s"
    return RequestError(429, message, type="rate_limit_error", code=code, headers={"Retry-After": str(seconds)})


def _cost_in(row: Row) -> float:
    try:
        body = unpack(row).body
    except StoreError:
        return 0.0  # `logs check` reports damaged records.
    finish = body.parts[-1] if isinstance(body, Segment) else None
    return (finish.usage.cost or 0.0) if isinstance(finish, Finish) else 0.0
