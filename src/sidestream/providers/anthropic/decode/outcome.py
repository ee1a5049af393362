"""The end of a message: finish reason, usage, error, and the session that continues from it."""

from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject, text_in, without_none
from sidestream.parts import Error, Finish, FinishReason, StepOutcome, Usage
from sidestream.providers.anthropic.context import REPLAYED, SESSION_KEY, THREAD
from sidestream.providers.anthropic.decode.blocks import BLOCKS
from sidestream.providers.anthropic.decode.state import BlockState, MessagesState
from sidestream.providers.anthropic.encode.replay import NOTE, SUMMARY, TURN, WHOLE
from sidestream.providers.anthropic.threads import is_continuable
from sidestream.providers.shared.decoding import count_in, usage_from
from sidestream.stream.errors import classified

REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool-calls",
    "pause_turn": "other",
    "compaction": "other",
    "refusal": "content-filter",
}
"""The provider's stop reason → ours."""

CONTINUED = frozenset({"pause_turn", "compaction"})
"""Stop reasons after which the same conversation is sent again."""

RETRYABLE = frozenset({"overloaded_error", "api_error", "timeout_error", "rate_limit_error", "compaction_unavailable"})

_SAID = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})

_FACTS = (
    "model",
    "stop_reason",
    "stop_sequence",
    "stop_details",
    "container",
    "context_management",
    "input_transformations",
)


def note(s: MessagesState, facts: JsonObject, usage: Any) -> None:
    """Store what an event reports about the whole response. Counts are cumulative, so the last ones hold."""
    s.facts |= {key: facts[key] for key in _FACTS if facts.get(key) is not None}
    s.usage |= without_none(jsontext.as_object(usage))


def is_cut(s: MessagesState) -> bool:
    """Return whether a limit ended the response."""
    return REASONS.get(str(s.facts.get("stop_reason"))) == "length"


def finish_reason(s: MessagesState) -> tuple[FinishReason, str | None]:
    """Return our finish reason and the provider's."""
    raw = text_in(s.facts, "stop_reason")
    reason = REASONS.get(raw or "", "other")
    if s.has_client_call and (reason in ("stop", "tool-calls") or raw is None):
        return "tool-calls", raw
    if reason == "tool-calls":
        # The only call was to the reserved tool, which is the answer, or there was none.
        return "stop", raw
    return reason, raw


def finish(s: MessagesState) -> Finish:
    """Return the last part of a complete response."""
    reason, raw_reason = finish_reason(s)
    meaning = StepOutcome(
        message_metadata=message_metadata(s),
        replay=REPLAYED,
        summaries=summaries(s),
        is_paused=raw_reason in CONTINUED and not s.context.is_compaction,
        # Keep a message without text for its session, e.g. a summary, or a search whose result is pending.
        is_kept=any(block.kind in BLOCKS and block.kind not in _SAID for block in s.blocks),
    )
    facts = {"response_id": s.message_id, "model": s.facts.get("model"), "status": raw_reason}
    facts |= {key: value for key, value in s.facts.items() if key not in ("model", "stop_reason")}
    facts |= {"container_id": _container_id(s), "service_tier": s.usage.get("service_tier")}
    return Finish(reason, usage_of(s), raw_reason, without_none(facts), outcome=meaning)


def error_of(error: Any, fallback: str) -> Error:
    """Convert the provider's error object to a part."""
    fields = jsontext.as_object(error)
    code = text_in(fields, "type")
    code = None if code == "error" else code
    detail = text_in(jsontext.as_object(fields.get("details")), "error_code")
    kind = "rate-limit" if code == "rate_limit_error" else "provider"
    return classified(
        Error(
            kind,
            text_in(fields, "message") or fallback,
            code=detail or code,
            retryable=code in RETRYABLE or detail in RETRYABLE,
            param=text_in(fields, "param"),
        )
    )


def usage_of(s: MessagesState) -> Usage:
    """Return token counts."""
    usage = s.usage
    read, written = count_in(usage, "cache_read_input_tokens"), count_in(usage, "cache_creation_input_tokens")
    return usage_from(
        dict(usage),
        _tool_use(s),
        inputs=count_in(usage, "input_tokens") + read + written,
        outputs=count_in(usage, "output_tokens"),
        read=read,
        written=written,
        reasoning=count_in(usage.get("output_tokens_details"), "thinking_tokens"),
    )


def _tool_use(s: MessagesState) -> dict[str, int]:
    """Return the number of calls per tool. The provider's own counts take precedence."""
    counts = dict(s.server_tool_use)
    reported = jsontext.as_object(s.usage.get("server_tool_use"))
    for name in reported:
        if (count := count_in(reported, name)) > 0:
            counts[name.removesuffix("_requests")] = count
    return counts


def _container_id(s: MessagesState) -> str | None:
    return text_in(jsontext.as_object(s.facts.get("container")), "id") or s.context.container_id


def message_metadata(s: MessagesState) -> JsonObject:
    """Return the blocks and what the next request needs from them, as private metadata of the message."""
    session: JsonObject = {
        "message_id": s.message_id,
        "model": s.context.model or s.facts.get("model"),
        "base_url": s.context.base_url,
        "container_id": _container_id(s),
        "stop_reason": s.facts.get("stop_reason"),
        "files": [*s.downloads] or None,
        **s.context.files_note,
        NOTE: s.context.tools_note,
        SUMMARY: _summary(s),
        **_thread(s),
        "blocks": [_layout(block) for block in s.blocks if block.kind in BLOCKS],
    }
    return {SESSION_KEY: without_none(session)}


def _summary(s: MessagesState) -> str | None:
    """Return what a summary in the answer replaces. One without content has failed, and replaces nothing."""
    made = (block.raw for block in s.blocks if block.kind == "compaction")
    if not any(raw.get("content") or raw.get("encrypted_content") for raw in made):
        return None
    return WHOLE if s.context.is_compaction else TURN


def _thread(s: MessagesState) -> JsonObject:
    note, kinds = s.context.thread_note, [block.kind for block in s.blocks]
    if note is None or not is_continuable(s.facts.get("stop_reason"), kinds):
        return {}
    return {THREAD: note, "history": s.context.history}


def _layout(block: BlockState) -> JsonObject:
    """Return the block for resending, without the text, document or file that the message's own parts hold."""
    raw = block.raw
    if block.kind == "text" or block.is_answer:
        cited = {"citations": block.citations} if block.citations else {}
        return {"type": "text", "text_id": block.part_id, **cited}
    if block.kind == "thinking":
        return {**raw, "thinking": block.text, "signature": block.signature}
    if block.called:
        return {**raw, "id": block.part_id, "input": block.input if block.input is not None else {}}
    if block.file is not None:
        return _with_file(raw, block.file)
    return raw


def _with_file(raw: JsonObject, name: str) -> JsonObject:
    """Replace the content of a fetched document or displayed file with the name of the file that holds it."""
    content = jsontext.as_object(raw.get("content"))
    if isinstance(content.get("content"), str):
        return {**raw, "content": {**content, "content": {"file": name}}}
    document = jsontext.as_object(content.get("content"))
    source = {key: value for key, value in jsontext.as_object(document.get("source")).items() if key != "data"}
    return {**raw, "content": {**content, "content": {**document, "source": {**source, "file": name}}}}


_CODE = frozenset({"code_execution", "bash_code_execution", "text_editor_code_execution"})


def summaries(s: MessagesState) -> dict[str, list[JsonObject]]:
    """Return the code that ran in the sandbox with its results, by tool key."""
    found: dict[str, list[JsonObject]] = {}
    for block in s.blocks:
        tool = block.tool
        if tool in _CODE and block.called and block.part_id in s.results:
            result, is_error = s.results[block.part_id]
            summary: JsonObject = {"type": f"{tool}_call", "id": block.part_id, "input": block.input, "result": result}
            summary |= {"is_error": is_error, "container_id": _container_id(s)}
            found.setdefault(tool, []).append(summary)
    return found
