"""Performance targets, as ratios of measurements of the same run."""

from typing import NamedTuple

Figures = dict[str, dict[str, dict[str, float]]]
"""Medians, by case, way and metric."""
At = tuple[str, str, str]


class Target(NamedTuple):
    """A bound on a measurement, or on its ratio to another."""

    text: str
    figure: At
    against: At | None = None
    at_most: float | None = None
    at_least: float | None = None
    less: tuple[At, ...] = ()
    """Measurements that are subtracted first."""

    def measured(self, figures: Figures) -> float | None:
        """Return the measurement or ratio, or None if a measurement is missing."""
        try:
            value = _at(figures, self.figure) - sum(_at(figures, place) for place in self.less)
            return value if self.against is None else value / _at(figures, self.against)
        except (KeyError, ZeroDivisionError):
            return None

    def is_met(self, value: float) -> bool:
        """Return whether the value is within the bound."""
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)

    @property
    def bound(self) -> str:
        """The bound as text."""
        times = " ×" if self.against is not None else ""  # noqa: RUF001
        return f"≤ {self.at_most:g}{times}" if self.at_most is not None else f"≥ {self.at_least:g}{times}"


def _at(figures: Figures, place: At) -> float:
    case, way, metric = place
    return figures[case][way][metric]


def _to_floor(text: str, case: str, way: str, at_most: float, metric: str = "cpu") -> Target:
    return Target(text, (case, way, metric), (case, "floor", metric), at_most=at_most)


def _less_than(peer: str, case: str, ours: str, at_least: float) -> Target:
    text = f"{case}: {peer} takes that many times what {ours} takes"
    return Target(text, (case, peer, "cpu"), (case, ours, "cpu"), at_least=at_least)


_WIRES = ("responses", "messages", "generate", "chat")
_BY_WIRE = {
    ("text", "stream"): (1.5, 1.6, 1.6, 1.6),
    ("text", "send_stream"): (2.0, 2.0, 2.0, 2.0),
    ("tools", "stream"): (2.0, 2.0, 2.5, 2.0),
    ("tools", "send_stream"): (2.6, 2.6, 3.0, 2.6),
}
"""Bounds to the floor, in the order of the wires."""
_LAG_MS = 1.4 * 50
"""Bound on the p99 lag of 200 streams, whose log is written every 50 ms."""
TARGETS: tuple[Target, ...] = (
    *(
        _to_floor(f"{mix}-{wire}: {way} to floor", f"{mix}-{wire}", way, bound)
        for (mix, way), bounds in _BY_WIRE.items()
        for wire, bound in zip(_WIRES, bounds, strict=True)
    ),
    *(_to_floor(f"packets: {way} to floor", "packets", way, 1.3) for way in ("stream", "send_stream")),
    _less_than("openai", "text-responses", "stream", 10),
    _less_than("openai", "tools-responses", "stream", 10),
    _less_than("pydantic-ai", "text-responses", "stream", 20),
    _less_than("pydantic-ai", "tools-responses", "stream", 20),
    _less_than("litellm", "text-responses", "stream", 2.5),
    _less_than("litellm", "tools-responses", "stream", 2.5),
    _less_than("anthropic", "text-messages", "stream", 3),
    _less_than("anthropic", "tools-messages", "stream", 3),
    _less_than("google-genai", "text-generate", "stream", 15),
    _less_than("google-genai", "tools-generate", "stream", 15),
    _to_floor("loop: ours to floor", "loop", "ours", 3),
    Target(
        "websocket: an event over WebSocket to one over HTTP",
        ("websocket", "websocket", "cpu"),
        ("websocket", "stream", "cpu"),
        at_most=1.15,
    ),
    *(_less_than(peer, "loop", "ours", 18) for peer in ("openai", "openai-agents", "langchain-openai", "pydantic-ai")),
    _to_floor("history: ours to floor", "history", "ours", 2.5),
    Target(
        "session: 1,000 messages to 10 (no more, within a tenth)",
        ("session", "1000", "cpu"),
        ("session", "10", "cpu"),
        at_most=1.1,
    ),
    *(
        Target(
            f"long: {way}, an event of 60,000 to one of 2,000",
            ("long", way, "cpu"),
            ("text-responses", way, "cpu"),
            at_most=1.1,
        )
        for way in ("stream", "send_stream")
    ),
    *(_to_floor(f"bulk: {way} to floor", "bulk", way, 4) for way in ("stream", "send_stream")),
    *(
        Target(f"bulk: {way}, MB above the text itself", ("bulk", way, "above"), at_most=25)
        for way in ("stream", "send_stream")
    ),
    _to_floor("import: `import sidestream` to floor", "import", "sidestream", 1.5),
    _to_floor("import: `from sidestream import Agent` to floor", "import", "agent", 1.3),
    _to_floor("cold: stream to floor", "cold", "stream", 1.3),
    _to_floor("command: a logged `sidestream hi` to `import aiohttp, click`", "command", "hi", 2),
    _to_floor("streams-1000: CPU per event to floor", "streams-1000", "stream", 1.5),
    _to_floor("streams-1000: p99 lag to floor", "streams-1000", "stream", 3, "p99"),
    Target("streams-1000: p99 lag, ms", ("streams-1000", "stream", "p99"), at_most=10),
    _to_floor("streams-1000: opening all to floor", "streams-1000", "stream", 2, "open"),
    *(
        Target(
            f"relay: an event through the server, {name}, to one without",
            ("relay", way, "cpu"),
            ("relay", "sdk", "cpu"),
            at_most=3,
        )
        for way, name in (("server", "Chat Completions"), ("chat", "UI message stream"))
    ),
    Target("relay-200: p99 lag, ms", ("relay-200", "server", "p99"), at_most=_LAG_MS),
    Target("relay-200: p99 lag of the UI message stream, ms", ("relay-200", "chat", "p99"), at_most=_LAG_MS),
    Target("relay-idle: kB per idle stream", ("relay-idle", "server", "memory"), at_most=200),
    Target(
        "log: with the log to two bare commits",
        ("log", "chat_log", "cpu"),
        ("log", "chat_commits", "cpu"),
        at_most=1.05,
    ),
    Target(
        "log-long: with the log to without",
        ("log-long", "chat_log", "cpu"),
        ("log-long", "chat", "cpu"),
        at_most=1.1,
    ),
    Target(
        "durable: under an engine's claim to the log alone",
        ("durable", "engine", "cpu"),
        ("durable", "log_only", "cpu"),
        at_most=1.1,
    ),
    Target("worker-200: p99 lag on SQLite, ms", ("worker-200", "sqlite", "p99"), at_most=_LAG_MS),
    Target("worker-200: p99 lag on PostgreSQL, ms", ("worker-200", "postgresql", "p99"), at_most=_LAG_MS),
    Target("claim: to the first request on PostgreSQL, ms", ("claim", "postgresql", "request"), at_most=50),
    Target("open-log: 10,000 records, wall ms", ("open-log", "load", "wall"), at_most=500),
    Target(
        "mcp: a call through the agent over the bare client's, wall ms",
        ("mcp", "local", "wall"),
        at_most=0.7,
        less=(("mcp", "function", "wall"), ("mcp", "bare", "wall")),
    ),
    Target("evidence: ten citations, CPU ms", ("evidence", "check", "cpu"), at_most=20),
    _to_floor("file-search: 10,000 passages to FTS5 and sqlite-vec", "file-search", "index", 3),
    _to_floor("web-fetch: a page of 40 kB to the bare libraries", "web-fetch", "fetch", 2),
    Target(
        "sandbox: a cold start to the bare interpreter's",
        ("sandbox", "cold", "wall"),
        ("sandbox", "bare", "wall"),
        at_most=4,
    ),
    Target("sandbox: a warm cell, wall ms", ("sandbox", "warm", "wall"), at_most=2),
    Target("sandbox: peak MB of one container before imports", ("sandbox", "many", "resident"), at_most=40),
)
