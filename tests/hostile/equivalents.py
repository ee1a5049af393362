"""Mutants that mean nothing, for `make mutate`: no test can notice them."""

NOTHING_JOINED = "the number is read only if there are joined parts"
FAST_PATH = "the slow path gives the same result"

EQUIVALENTS: dict[tuple[str, str, str], str] = {
    (
        "providers/anthropic/threads.py",
        "digest = blake2b(jsontext.dumps([request.system, tools]), digest_size=8).hexdigest()",
        "digest = blake2b(jsontext.dumps([request.system, tools]), digest_size=(9)).hexdigest()",
    ): "only equality of two digests matters, not their length",
    (
        "providers/local/program.py",
        'params.hostnames = ["127.0.0.1"]',
        "pass",
    ): "the runtime listens there by default; the line keeps it there if that changes",
    (
        "providers/openai/responses/encode/input.py",
        "has_containers: bool = True",
        "has_containers: bool = False",
    ): "the only target that leaves it out reads no sessions, so it has no calls of containers",
    (
        "providers/openai/responses/websocket.py",
        "return LaneFailure(status=status or 429, headers=headers, body=body, ends_connection=ends_connection)",
        "return LaneFailure(status=status or (430), headers=headers, body=body, ends_connection=ends_connection)",
    ): "a failure that ends its connection is retried on another one, whatever its status",
    (
        "store/records.py",
        "return not message.metadata and all(type(part) is TextPart for part in message.parts)",
        "return None",
    ): FAST_PATH,
    (
        "store/records.py",
        "return ()",
        "return None",
    ): "both readers ask first whether there are any digests",
    ("store/expiry.py", "_PAGE = 200", "_PAGE = (201)"): "the pages of a list together are the same",
    (
        "store/sqlite/threads.py",
        "CHECKED_AFTER = 8",
        "CHECKED_AFTER = (9)",
    ): "the log grows by a commit more before a checkpoint, which no reader of the store sees",
    (
        "durable/log/fenced_store.py",
        "if time.monotonic() - began_s >= self._patience_s:",
        "if (time.monotonic() - began_s > self._patience_s):",
    ): "no clock hits the moment exactly",
    (
        "durable/log/open_runs.py",
        "bodies = [unpack(row).body for row in rows if start is not None and row.seq > start.seq]",
        "bodies = [unpack(row).body for row in rows if start is not None and (row.seq >= start.seq)]",
    ): "the start of a run has no parts",
    (
        "protocols/ai_sdk/message.py",
        "if known.items() <= self._run.items():",
        "if (known.items() < self._run.items()):",
    ): "a run always has a status, which a model's metadata has not",
    ("protocols/markdown.py", "step = 0", "step = (1)"): "the start of a step comes before its parts",
    (
        "turn/outbox.py",
        "self.joined: tuple[int, Sequence[StreamPart]] = (0, ())",
        "self.joined: tuple[int, Sequence[StreamPart]] = ((1), ())",
    ): NOTHING_JOINED,
    (
        "turn/outbox.py",
        "(count, joined), self.joined = self.joined, (0, ())",
        "(count, joined), self.joined = self.joined, ((1), ())",
    ): NOTHING_JOINED,
}
"""(path below the package, the line before, the line after) → the reason."""
