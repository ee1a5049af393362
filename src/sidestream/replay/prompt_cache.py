"""What a provider's prompt cache could read in each step of a conversation, and what broke it.

Caches hold prefixes of prompts. Tokens are estimated: the reported tokens of a prompt are spread over its text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from sidestream.jsontext import JsonObject, as_list, as_object, dumps, text_in
from sidestream.messages.shortening import SHORTENED
from sidestream.parts import Custom, Finish, Json, StepFinish, Usage
from sidestream.prices.price import Bill, Charge, TokenKind
from sidestream.prices.pricing import Pricing, plain_tokens
from sidestream.providers.registry import model_for_prices
from sidestream.replay.comparison import MISSING, Difference, RequestComparison
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.requests import ConversationRequest
from sidestream.store.protocol import Store
from sidestream.store.records import REQUEST, Segment, unpack

_ToolCause = Literal["tool-order", "tool-description", "tool-schema", "tools"]
_TextCause = Literal["settings", "time", "system", "compaction", "edit"]
Cause = Literal["model", "cache-key", _ToolCause, _TextCause, "lookback", "lifetime", "unread"]
CAUSES: Final[Mapping[Cause, str]] = {
    "model": "another model",
    "cache-key": "another cache key",
    "tool-order": "reordered tools",
    "tool-description": "a changed tool description",
    "tool-schema": "a changed tool schema",
    "tools": "added or removed tools",
    "settings": "a changed setting",
    "time": "a time or id that changes",
    "system": "a changed system prompt",
    "compaction": "a compaction of the conversation",
    "edit": "an edited earlier message",
    "lookback": "more than 20 blocks since the last cached one",
    "lifetime": "an expired cache",
    "unread": "the provider, which did not read all of an equal prefix",
}
"""Texts of the causes, as in `broken by another model`."""

FIRST: Final = "first step"
SESSION: Final = "the provider keeps the conversation, so the request has only what is new"
UNFINISHED: Final = "the log has no end of this step"
UNREPORTED: Final = "the provider reported no usage"
OTHER_API: Final = "the cache rules of this API are unknown"
OFF: Final = "caching is off"
HOSTED: Final = "hosted tools of the step before counted its prompt more than once"
SHORT: Final = "the prompt before is too short for the cache"

_Section = Literal["tools", "settings", "system", "messages"]
_ORDER: Final[tuple[_Section, ...]] = ("tools", "system", "settings", "messages")
_SECTIONS: Final[Mapping[str, _Section]] = {
    "tools": "tools",
    **dict.fromkeys(("system", "instructions", "systemInstruction", "system_instruction"), "system"),
    **dict.fromkeys(("messages", "input", "contents"), "messages"),
}
"""Sections of a prompt, by field of the request. Others are settings."""
_SESSIONS: Final = ("previous_response_id", "previous_interaction_id", "conversation", "thread", "cachedContent")
"""Fields that name state at the provider."""
_MARKS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
_OPAQUE: Final = frozenset({"signature", "thoughtSignature", "thought_signature", "encrypted_content", "data", "id"})
"""Fields whose characters say nothing about their tokens."""
_MEDIA_WEIGHT: Final = 1000
_MEDIA: Final = re.compile(r"data:[\w/+.-]+;base64,|[A-Za-z0-9+/=_-]{2000}")
_PIECES: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[A-Za-z]{1,8}|[^\W\d_]{1,3}|\d{1,3}|[^\w\s]|_")
"""Pieces of text, about as many as its tokens, whether it is prose, code or JSON."""
_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_MOVING: Final = re.compile(
    r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|\b\d{4}-\d\d-\d\d(?:[T ]\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|GMT)\b|[+-]\d\d:?\d\d\b)?)?"
    r"|\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\b)?"
    rf"|\b{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}\b|\b\d{{1,2}}\.? {_MONTH}\.? \d{{4}}\b"
    r"|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
    r"|\b(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
    r"|\b\d{10}(?:\d{3})?(?:\.\d+)?\b"
    r"|\b(?=[A-Za-z_]*\d)(?=[\d_]*[A-Za-z])\w{8,}\b"
)
"""Times, and ids with letters and digits."""
_HELD: Final = 20
"""Number of earlier prompts that the cache may still have."""
_AGREES: Final = 0.9
"""Share of the expected tokens that counts as read."""


class _Api(Struct, frozen=True, kw_only=True):
    """How an API orders a prompt, and what its cache does."""

    fields: tuple[str, ...]
    """Fields of a request in the order of the prompt."""
    minimums: tuple[tuple[str, int], ...] = (("", 1024),)
    """Shortest cached prefix in tokens, by pattern of the model's name. The first match counts."""
    step: int = 1
    """Cached prefixes are multiples of this number of tokens."""
    is_marked: bool = False
    """Whether only what a `cache_control` mark ends is cached."""


_GEMINI: Final = ((r"2\.5", 2048), ("", 4096))
_APIS: Final[Mapping[str, _Api]] = {
    r".*/messages|.*:(?:streamR|r)awPredict|.*/invoke(?:-with-response-stream)?": _Api(
        fields=("tools", "system", "tool_choice", "thinking", "output_config", "speed", "messages"),
        minimums=((r"opus-(?:4-[5-9]|[5-9])|haiku-(?:4|[5-9])", 4096), (r"haiku|sonnet-4-6", 2048), ("", 1024)),
        is_marked=True,
    ),
    r".*/responses": _Api(fields=("tools", "text", "reasoning", "instructions", "input"), step=128),
    r".*/chat/completions": _Api(
        fields=("tools", "response_format", "reasoning_effort", "verbosity", "messages"), step=128
    ),
    r".*:(?:streamG|g)enerateContent": _Api(fields=("tools", "systemInstruction", "contents"), minimums=_GEMINI),
    r".*/interactions": _Api(fields=("tools", "system_instruction", "input"), minimums=_GEMINI),
}
"""Rules by pattern of the path."""
_LOOKBACK: Final = 20
"""Blocks before a mark in which Anthropic looks for a cached prefix."""
_LIFETIME_S: Final = 300
"""Lifetime of automatic caches, which hold a prefix for at least some minutes."""
_LIFETIMES_S: Final[Mapping[str, int]] = {"5m": 300, "30m": 1800, "1h": 3600, "12h": 43200, "24h": 86400}


class CacheCall(Struct, frozen=True, kw_only=True):
    """A request of a conversation and the end of its step."""

    request: ConversationRequest
    finish: Finish | None = None
    """None means that the log has no end of the step."""
    is_compacted: bool = False
    """Whether the conversation was shortened for this request."""


class CacheStep(Struct, frozen=True, kw_only=True):
    """What the provider's cache could read in a step, and what it read. None means unknown.

    All counts are tokens. `shared`, `expected`, `lost` and `dollars` are estimates.
    """

    seq: int
    """Sequence number of the request's record."""
    time: float
    run: str
    step: int
    model: str
    prompt: int | None = None
    """Reported input tokens."""
    read: int | None = None
    """Reported tokens read from the cache."""
    written: int | None = None
    """Reported tokens written to the cache."""
    shared: int | None = None
    """Tokens of the longest prefix that the prompt shares with the one before."""
    expected: int | None = None
    """Tokens that the cache should have had of it."""
    cause: Cause | None = None
    """What broke the cache."""
    difference: Difference | None = None
    """The first field that differs from the step before, if that broke the cache."""
    lost: int | None = None
    """Tokens that the cache would have had without the break."""
    dollars: float | None = None
    """Cost of the break in US dollars."""
    note: str = ""
    """Why something is unknown, or why nothing was expected."""

    def why(self) -> str:
        """Return the cause and the first differing field, or an empty string if nothing broke the cache."""
        if self.cause is None:
            return ""
        return f"broken by {CAUSES[self.cause]}" + (f": {self.difference}" if self.difference is not None else "")


class _Block(NamedTuple):
    """A part of a prompt, in the order in which the cache compares."""

    section: _Section
    path: str
    value: Json
    """The part without cache marks."""
    text: str
    """Its comparable form."""
    lifetime_s: int | None
    """Lifetime of the prefix that a mark ends here, if there is one."""


class _Prompt:
    """The prompt of a request as its blocks, with their weights."""

    def __init__(self, call: CacheCall, api: _Api) -> None:
        body = call.request.body
        self.call = call
        self.api = api
        self.blocks = [block for name in api.fields for block in _blocks(name, body.get(name))]
        ttl = as_object(body.get("cache_control")) if api.is_marked else {}
        if ttl and self.blocks:
            self.blocks[-1] = self.blocks[-1]._replace(lifetime_s=_lifetime(ttl))
        self.weights = [_weight(block.value, marks=2 * (block.section == "tools")) for block in self.blocks]
        self.is_session = any(body.get(name) for name in _SESSIONS)
        used = call.finish.usage if call.finish is not None else Usage()
        self.usage = used.input
        self.has_hosted_calls = bool(used.server_tool_use)
        self.has_usage = self.usage.total > 0
        self._rate = self.usage.total / (sum(self.weights) or 1.0)

    @property
    def minimum(self) -> int:
        """The length of the shortest cached prefix, in tokens."""
        return next(size for name, size in self.api.minimums if re.search(name, self.call.request.model))

    @property
    def marks(self) -> dict[int, int]:
        """Lifetimes of the marked blocks, by index."""
        return {at: block.lifetime_s for at, block in enumerate(self.blocks) if block.lifetime_s is not None}

    @property
    def lifetime_s(self) -> int:
        """Lifetime of this prompt in the cache, in seconds."""
        if self.api.is_marked:
            return max(self.marks.values(), default=_LIFETIME_S)
        body = self.call.request.body
        options = as_object(body.get("prompt_cache_options"))
        # From gpt-5.6 on, a prefix is held for half an hour.
        usual = "30m" if options or re.search(r"gpt-(?:5\.[6-9]|[6-9])", self.call.request.model) else ""
        chosen = text_in(options, "ttl") or text_in(body, "prompt_cache_retention") or usual
        return _LIFETIMES_S.get(chosen, _LIFETIME_S)

    def tokens(self, blocks: int, part: float = 0.0) -> int:
        """Return the tokens of the first blocks and of a part of the next one."""
        if blocks >= len(self.blocks):
            return self.usage.total
        return round((sum(self.weights[:blocks]) + part * self.weights[blocks]) * self._rate)

    def readable(self, tokens: int) -> int:
        """Return the tokens that an automatic cache has of a prefix of this length."""
        return 0 if tokens < self.minimum else tokens - tokens % self.api.step

    def same(self, after: "_Prompt") -> int:
        """Return the number of leading blocks that both prompts share."""
        pairs = zip(self.blocks, after.blocks, strict=False)
        differ = (at for at, (one, other) in enumerate(pairs) if (one.section, one.text) != (other.section, other.text))
        return next(differ, min(len(self.blocks), len(after.blocks)))

    def cached_for(self, after: "_Prompt") -> int:
        """Return the tokens that the cache has of this prompt and `after` can read."""
        old, new = self.call.request, after.call.request
        if (old.model, self.api, _cache_key(self)) != (new.model, after.api, _cache_key(after)) or self.is_session:
            return 0
        if new.time > old.time + self.lifetime_s and not after.usage.cache_read:
            return 0
        same = self.same(after)
        if not self.api.is_marked:
            part = _shared_part(self.blocks[same], after.blocks[same : same + 1]) if same < len(self.blocks) else 0.0
            return self.readable(min(self.tokens(same, part), after.usage.total))
        for at in sorted(self.marks, reverse=True):
            if at < same and any(0 <= mark - at < _LOOKBACK for mark in after.marks):
                return self._marked(at)
        return 0

    def whole(self, limit: int) -> int:
        """Return the tokens that the cache has of this whole prompt, for a prompt of this many tokens."""
        if not self.api.is_marked:
            return self.readable(min(self.usage.total, limit))
        return self._marked(max(self.marks)) if self.marks else 0

    def _marked(self, at: int) -> int:
        """Return the tokens that the cache has up to a marked block."""
        reported = self.usage.cache_read + self.usage.cache_write
        tokens = reported if reported and at == max(self.marks) else self.tokens(at + 1)
        return 0 if tokens < self.minimum else tokens


async def cache_steps(store: Store, conversation: str) -> list[CacheStep]:
    """Return what the cache did in each step of a logged conversation.

    A log of an older version has no requests, and so no steps here.
    """
    rows = await store.read(conversation)
    requests = {request.seq: request for request in await Conversation(store, conversation).requests(rows)}
    calls: list[CacheCall] = []
    is_compacted = False
    for row in rows:
        if row.kind == REQUEST:
            request = requests[row.seq]
            if calls and calls[-1].finish is None and _step_of(calls[-1].request) == _step_of(request):
                calls.pop()  # The request was repeated.
            calls.append(CacheCall(request=request))
        elif row.kind in ("step-finish", "custom"):
            body = unpack(row).body
            for part in body.parts if isinstance(body, Segment) else ():
                match part:
                    case Custom(kind=kind) if kind == SHORTENED:
                        is_compacted = True
                    case StepFinish(reason=reason, usage=usage, outcome=outcome) if calls:
                        finish = Finish(reason, usage, metadata=outcome.metadata if outcome is not None else {})
                        if calls[-1].finish is None and calls[-1].request.run == row.run:
                            calls[-1] = replace(calls[-1], finish=finish, is_compacted=is_compacted)
                            is_compacted = False
                    case _:
                        pass
    return explain_cache(calls)


def explain_cache(calls: Sequence[CacheCall]) -> list[CacheStep]:
    """Return what the provider's cache did in each of these calls, which follow each other in one conversation.

    Each is compared with the last one before it that was answered.
    """
    steps: list[CacheStep] = []
    answered: list[_Prompt | None] = []
    for call in calls:
        request = call.request
        step = CacheStep(seq=request.seq, time=request.time, run=request.run, step=request.step, model=request.model)
        if call.finish is None:
            steps.append(replace(step, note=UNFINISHED))
            continue
        usage = call.finish.usage.input
        if usage.total > 0:
            step = replace(step, prompt=usage.total, read=usage.cache_read, written=usage.cache_write)
        api = next((api for pattern, api in _APIS.items() if re.fullmatch(pattern, request.path)), None)
        after = _Prompt(call, api) if api is not None else None
        before = answered[-1] if answered else None
        if after is None or before is None:
            steps.append(replace(step, note=OTHER_API if after is None or answered else FIRST))
        else:
            steps.append(_compared([prompt for prompt in answered[-_HELD:] if prompt is not None], after, step))
        answered.append(after)
    return steps


def _step_of(request: ConversationRequest) -> tuple[str, int]:
    return request.run, request.step


def _compared(earlier: Sequence[_Prompt], after: _Prompt, step: CacheStep) -> CacheStep:
    """Return the step with what its prompt shares with the last one before it."""
    before = earlier[-1]
    old, new = before.call.request, after.call.request
    cause: Cause | None = None
    difference: Difference | None = None
    same = before.same(after)
    if old.model != new.model:
        same, cause, difference = 0, "model", Difference("model", old.model, new.model)
    elif before.is_session or after.is_session:
        return replace(step, note=SESSION)
    elif _cache_key(before) != _cache_key(after):
        keys = (_cache_key(before) or MISSING, _cache_key(after) or MISSING)
        same, cause, difference = 0, "cache-key", Difference("prompt_cache_key", *keys)
    elif same < len(before.blocks):
        cause, difference = _cause(before, after, same)
    step = replace(step, cause=cause, difference=difference)
    if step.prompt is None or not before.has_usage:
        return replace(step, note=UNREPORTED)
    is_inside = cause not in (None, "model", "cache-key") and not after.api.is_marked
    part = _shared_part(before.blocks[same], after.blocks[same : same + 1]) if is_inside else 0.0
    shared = min(before.tokens(same, part), step.prompt)
    expected = min(max((prompt.cached_for(after) for prompt in earlier), default=0), step.prompt)
    whole = min(before.whole(step.prompt), step.prompt)
    note = ""
    if cause is None and step.read is not None and step.read < _AGREES * whole:
        if new.time > old.time + before.lifetime_s:
            cause, expected = "lifetime", 0
        elif after.marks or not after.api.is_marked:
            cause = "unread" if expected >= _AGREES * whole else "lookback"
        if cause == "unread" and (before.has_hosted_calls or any(map(_is_hosted, after.blocks[same:]))):
            cause, note = None, HOSTED
    if not whole or (after.api.is_marked and not after.marks):
        whole, note = 0, OFF if after.api.is_marked and not (before.marks and after.marks) else SHORT
    lost = max(0, whole - (step.read or 0)) if cause is not None else 0
    dollars = _dollars(after.call, lost) if lost else 0.0
    return replace(step, shared=shared, expected=expected, cause=cause, lost=lost, dollars=dollars, note=note)


def _cache_key(prompt: _Prompt) -> str:
    return text_in(prompt.call.request.body, "prompt_cache_key") or ""


# Causes


def _cause(before: _Prompt, after: _Prompt, at: int) -> tuple[Cause, Difference]:
    """Return why the prompts differ at a block of the first one, and the first field that differs."""
    one = before.blocks[at]
    other = after.blocks[at] if at < len(after.blocks) else None
    sections: set[_Section] = {block.section for block in (one, other) if block is not None}
    section = min(sections, key=lambda name: _ORDER.index(name))
    if section == "tools":
        return _tool_cause(before, after, at)
    difference = _difference(one, other)
    if section == "messages" and (after.call.is_compacted or _is_compacted(after, before)):
        return "compaction", difference
    if _is_moving(one, other):
        return "time", difference
    causes: Mapping[_Section, Cause] = {"settings": "settings", "system": "system"}
    return causes.get(section, "edit"), difference


def _tool_cause(before: _Prompt, after: _Prompt, at: int) -> tuple[Cause, Difference]:
    old, new = ([block for block in prompt.blocks if block.section == "tools"] for prompt in (before, after))
    names, others = [_name(block) for block in old], [_name(block) for block in new]
    if names != others:
        if sorted(names) == sorted(others):
            return "tool-order", Difference("tools", names, others, "order")
        added = next((block for block in new if _name(block) not in names), None)
        removed = next((block for block in old if _name(block) not in others), None)
        if removed is not None:
            return "tools", Difference(removed.path, _name(removed), MISSING, "removed")
        return "tools", Difference(
            added.path if added else "tools", MISSING, _name(added) if added else others, "added"
        )
    difference = _difference(old[at], new[at])
    if _is_moving(old[at], new[at]):
        return "time", difference
    is_description = re.fullmatch(r".*\](?:\.function)?\.description", difference.path) is not None
    return "tool-description" if is_description else "tool-schema", difference


def _name(block: _Block) -> str:
    tool = as_object(block.value)
    names = (
        text_in(as_object(tool.get("function")), "name"),
        *(text_in(tool, key) for key in ("name", "server_label", "type")),
    )
    return next(filter(None, names), next(iter(tool), ""))


def _difference(one: _Block, other: _Block | None) -> Difference:
    """Return the first field in which two blocks differ."""
    if other is None:
        return Difference(one.path, one.value, MISSING, "removed")
    found = next(iter(RequestComparison(is_exact=True).differences(one.value, other.value)), None)
    if found is None:  # Only the order of fields differs, or the role of a message.
        return Difference(one.path, one.value, other.value, "order" if one.path == other.path else "value")
    inner = found.path if not found.path or found.path.startswith("[") else f".{found.path}"
    return Difference(one.path + inner, found.before, found.after, found.change)


def _is_hosted(block: _Block) -> bool:
    """Return whether a block is a call that the provider executed."""
    kind = text_in(as_object(block.value), "type") or ""
    return kind == "server_tool_use" or (kind.endswith("_call") and kind not in ("function_call", "custom_tool_call"))


def _is_moving(one: _Block, other: _Block | None) -> bool:
    """Return whether two blocks differ only in times and ids."""
    return other is not None and one.section == other.section and _still(one.text) == _still(other.text)


def _still(text: str) -> str:
    return _MOVING.sub("…", text)


def _is_compacted(after: _Prompt, before: _Prompt) -> bool:
    known = {block.text for block in before.blocks}
    return any(
        "compaction" in (text_in(as_object(block.value), "type") or "")
        for block in after.blocks
        if block.text not in known
    )


# Prompts


def _blocks(name: str, value: Json) -> Iterator[_Block]:
    """Yield the blocks of a field of a request."""
    section = _SECTIONS.get(name, "settings")
    if section == "settings":
        yield _Block(section, name, value, dumps(value).decode(), None)
    elif isinstance(value, str):
        yield _block(section, name, value, "user" if section == "messages" else "")
    elif fields := as_object(value):  # Google's system prompt
        yield from _parts(section, name, fields)
    else:
        is_opening = section == "messages"
        for at, item in enumerate(as_list(value)):
            path, role = f"{name}[{at}]", text_in(as_object(item), "role") or ""
            if section == "messages":
                is_opening = is_opening and role in ("system", "developer")
                yield from _parts("system" if is_opening else section, path, as_object(item))
            elif declared := as_list(as_object(item).get("functionDeclarations")):
                for place, tool in enumerate(declared):
                    yield _block(section, f"{path}.functionDeclarations[{place}]", tool)
            else:
                yield _block(section, path, item)


def _parts(section: _Section, path: str, message: JsonObject) -> Iterator[_Block]:
    """Yield the blocks of a message, then what else it has, such as calls."""
    role = text_in(message, "role") or ""
    name = next((name for name in ("content", "parts") if message.get(name)), "")
    content = message.get(name)
    if isinstance(content, str):
        yield _block(section, f"{path}.{name}", content, role)
    elif isinstance(content, list):
        for at, part in enumerate(cast("list[Json]", content)):
            yield _block(section, f"{path}.{name}[{at}]", part, role)
    rest = {key: value for key, value in message.items() if key not in ("role", "content", "parts", "status", "id")}
    if not name or any(key != "type" for key in rest):
        yield _block(section, path, rest, role)


def _block(section: _Section, path: str, value: Json, role: str = "") -> _Block:
    plain = _without_marks(value)
    marks = as_object(value)
    lifetime = _lifetime(as_object(marks["cache_control"])) if marks.get("cache_control") else None
    fields = as_object(plain)
    # A marked text is a block, and without the mark a string.
    is_text = isinstance(fields.get("text"), str) and fields.keys() <= {"type", "text", "annotations", "logprobs"}
    text = dumps([role, fields["text"] if is_text else plain]).decode()
    return _Block(section, path, plain, text, lifetime)


def _lifetime(control: JsonObject) -> int:
    return _LIFETIMES_S.get(text_in(control, "ttl") or "5m", _LIFETIME_S)


def _without_marks(value: Json) -> Json:
    match value:
        case dict():
            fields = cast("JsonObject", value)
            return {key: _without_marks(inner) for key, inner in fields.items() if key not in _MARKS}
        case list():
            return [_without_marks(inner) for inner in cast("list[Json]", value)]
        case _:
            return value


def _weight(value: Json, name: str = "", *, marks: int = 0) -> float:
    """Return about how many tokens a value has, in a unit that the reported tokens then scale.

    `marks` is the number of tokens that a field has besides its name and its value.
    """
    match value:
        case str():
            if _MEDIA.match(value):
                return _MEDIA_WEIGHT
            return 0.0 if name in _OPAQUE else float(len(_PIECES.findall(value)))
        case dict():
            fields = cast("dict[str, Any]", value)
            return sum(
                len(_PIECES.findall(key)) + marks + _weight(inner, key, marks=marks) for key, inner in fields.items()
            )
        case list():
            return sum(_weight(inner, name, marks=marks) for inner in cast("list[Json]", value))
        case _:
            return 1.0


def _shared_part(one: _Block, others: Sequence[_Block]) -> float:
    """Return the share of a block's text before the first character that differs."""
    if not others or others[0].section != one.section:
        return 0.0
    texts = one.text, others[0].text
    same = next((at for at, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    whole = len(_PIECES.findall(one.text))
    return len(_PIECES.findall(one.text[:same])) / whole if whole else 0.0


# Prices


def _dollars(call: CacheCall, lost: int) -> float | None:
    """Return what it cost that the cache did not have these tokens, or None if the price is unknown."""
    assert call.finish is not None
    provider, _, name = call.request.model.partition(":")
    model = model_for_prices(call.request.model)
    finish = replace(call.finish, usage=replace(call.finish.usage, cost=None, unpriced=()))
    bill = getattr(model, "bill", None)
    plain = Charge(model=name, tokens=plain_tokens(finish.usage))
    charge = max(bill(finish).charges if bill is not None else (), key=lambda charge: charge.prompt, default=plain)
    tokens: dict[TokenKind, int] = dict(charge.tokens)
    left = lost
    kinds: tuple[TokenKind, ...] = ("cache_write_1h", "cache_write", "input")
    for kind in kinds:
        moved = min(left, tokens.get(kind, 0))
        left -= moved
        tokens[kind] = tokens.get(kind, 0) - moved
        tokens["cache_read"] = tokens.get("cache_read", 0) + moved
    if left:
        return None  # The bill does not say how these tokens were charged.
    costs: list[float] = []
    for charged in (charge, replace(charge, tokens=tokens)):
        bills = Bill(charges=(charged,))
        prices = Pricing(
            provider, name, price_list=getattr(model, "price_list", None), bill=lambda _, bills=bills: bills
        )
        cost = prices.priced(finish).cost
        if cost is None:
            return None
        costs.append(cost)
    return max(0.0, round(costs[0] - costs[1], 12))
