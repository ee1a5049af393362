import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseInputItem
from pydantic import BaseModel, TypeAdapter

from requirements import requirement
from sidestream import jsontext
from sidestream.messages import sessions
from sidestream.messages.fold import MessageFold
from sidestream.messages.message import (
    NOT_EXECUTED,
    ApprovalPart,
    ChatMessage,
    DataPart,
    MessagePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    messages_from_json,
    messages_to_json,
)
from sidestream.messages.references import blob_of
from sidestream.parts import Custom, Finish, StepFinish
from sidestream.providers.openai.responses import PROVIDER, OpenAIResponsesOptions
from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder
from sidestream.providers.openai.responses.encode.replay import RULES, fresh_id, replayable
from sidestream.providers.openai.responses.encode.request import encode_request
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.encoding import EncodedRequest
from sidestream.providers.shared.histories import FILES_ABOVE
from sidestream.replay.recording import Recording
from sidestream.testing import ResponsesScript
from sidestream.tools.server_side import CodeInterpreter, Shell
from support.followups import LoggedFolds, step_end

MODEL, BASE_URL = "gpt-5.6", "https://openai.example/v1"
USER = ChatMessage.user("Hi")
NEXT = ChatMessage.user("Go on")
STATELESS = OpenAIResponsesOptions(store=False)


def answer(
    *parts: MessagePart,
    before: tuple[ChatMessage, ...] = (USER,),
    items: list[dict[str, Any]] | None = None,
    key: str = "_responses_session",
    **session: Any,
) -> ChatMessage:
    """A model message as the provider leaves it in a history."""
    content = {"response_id": "resp_1", "pending_items": [], "timestamp": 1.0, "model": MODEL, "base_url": BASE_URL}
    content |= {"history": sessions.history_digest(before), "items": items or [], **session}
    if key == "_responses_replay_session":
        content = {name: content[name] for name in ("items", "model", "base_url")}
    return ChatMessage("model", parts, sessions.stamp({key: content}, sessions.digest_of("model", parts)))


def encode(*messages: ChatMessage, **fields: Any) -> EncodedRequest[ResponsesContext]:
    return encode_request(ModelRequest(messages=messages, **fields), MODEL, BASE_URL)


def reasons(encoded: EncodedRequest[ResponsesContext]) -> list[str]:
    assert all(
        isinstance(notice, Custom) and notice.kind == "sidestream.session-fallback" for notice in encoded.notices
    )
    assert all(notice.data["message"] for notice in encoded.notices if isinstance(notice, Custom))
    return [notice.data["reason"] for notice in encoded.notices if isinstance(notice, Custom)]


TEXT = TextPart("Hello", "msg_1")
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"text_id": "msg_1"}],
}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "cipher",
    "status": None,
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "now",
    "arguments": '{"zone": "UTC"}',
    "status": "completed",
}
CALL_PART = ToolCallPart("call_1", "now", {"zone": "UTC"})
RESULT = ChatMessage("tool", (ToolResultPart("call_1", "now", "noon"),))


@requirement("R42")
def test_conversation_continues_from_newest_session():
    first = answer(TEXT)
    second = answer(TextPart("More"), before=(USER, first, NEXT), response_id="resp_2")
    encoded = encode(USER, first, NEXT, second, ChatMessage.user("Third"))
    assert encoded.body["previous_response_id"] == "resp_2"
    assert encoded.body["input"] == [{"role": "user", "content": "Third"}]
    assert encoded.notices == ()


@requirement("R42")
def test_instructions_are_resent_with_session():
    assert encode(USER, answer(TEXT), NEXT, system="Be brief.").body["instructions"] == "Be brief."


@requirement("R42")
def test_foreign_messages_after_session_are_sent():
    other = ChatMessage.model("From elsewhere", metadata={"_anthropic_session": {"signature": "s"}})
    encoded = encode(USER, answer(TEXT), NEXT, other, ChatMessage.user("Third"))
    assert encoded.body["previous_response_id"] == "resp_1"
    assert encoded.body["input"] == [
        {"role": "user", "content": "Go on"},
        {"type": "message", "role": "assistant", "content": "From elsewhere"},
        {"role": "user", "content": "Third"},
    ]


@requirement("R42")
def test_session_survives_json_round_trip():
    history = messages_from_json(messages_to_json([USER, answer(TEXT), NEXT]))
    assert encode(*history).body["previous_response_id"] == "resp_1"


@requirement("R42")
def test_pending_response_gets_only_results():
    encoded = encode(USER, answer(CALL_PART, items=[CALL], pending_items=[CALL]), RESULT)
    assert encoded.body["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": "noon"}]


@requirement("R42")
def test_pending_call_without_result_is_not_executed():
    encoded = encode(USER, answer(CALL_PART, items=[CALL], pending_items=[CALL]), NEXT)
    assert encoded.body["input"] == [
        {"type": "function_call_output", "call_id": "call_1", "output": NOT_EXECUTED},
        {"role": "user", "content": "Go on"},
    ]


SHELL = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "call_1",
    "action": {"commands": ["ls"], "max_output_length": 9, "timeout_ms": None},
    "environment": {"type": "local"},
    "status": "completed",
    "created_by": None,
}
CALLS: dict[str, dict[str, Any]] = {
    "function_call": CALL | {"caller": {"type": "program", "caller_id": "call_p"}},
    "custom_tool_call": {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "call_id": "call_1",
        "name": "sql",
        "input": "SELECT",
    },
    "shell_call": SHELL,
    "local_shell_call": {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "call_1",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "env": {}, "user": None},
    },
    "apply_patch_call": {
        "type": "apply_patch_call",
        "id": "ap_1",
        "call_id": "call_1",
        "status": "completed",
        "operation": {"type": "delete_file", "path": "a"},
    },
    "computer_call": {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "call_1",
        "status": "completed",
        "pending_safety_checks": [{"id": "sc_1", "code": "malicious_instructions", "message": None}],
        "actions": [{"type": "screenshot"}],
        "action": None,
    },
    "tool_search_call": {
        "type": "tool_search_call",
        "id": "tsc_1",
        "call_id": "call_1",
        "execution": "client",
        "arguments": {"query": "weather"},
        "status": "completed",
    },
}
SCREENSHOT = {"image_url": "data:image/png;base64,AA=="}
ANSWERS: list[tuple[str, ToolResultPart, dict[str, Any]]] = [
    (
        "function_call",
        ToolResultPart("call_1", "now", {"a": 1}),
        {"type": "function_call_output", "output": '{"a":1}', "caller": {"type": "program", "caller_id": "call_p"}},
    ),
    (
        "custom_tool_call",
        ToolResultPart("call_1", "sql", "rows"),
        {"type": "custom_tool_call_output", "output": "rows"},
    ),
    (
        "local_shell_call",
        ToolResultPart("call_1", "x", "out"),
        {"type": "local_shell_call_output", "id": "call_1", "output": "out"},
    ),
    (
        "shell_call",
        ToolResultPart("call_1", "shell", "out"),
        {
            "type": "shell_call_output",
            "output": [{"stdout": "out", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
            "max_output_length": 9,
        },
    ),
    (
        "shell_call",
        ToolResultPart("call_1", "shell", {"output": [{"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}]}),
        {
            "type": "shell_call_output",
            "output": [{"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}],
            "max_output_length": 9,
        },
    ),
    (
        "apply_patch_call",
        ToolResultPart("call_1", "apply_patch", "no such file", is_error=True),
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such file"},
    ),
    (
        "computer_call",
        ToolResultPart("call_1", "computer_use", SCREENSHOT, acknowledged=True),
        {
            "type": "computer_call_output",
            "output": {"type": "computer_screenshot", "image_url": SCREENSHOT["image_url"]},
            "acknowledged_safety_checks": [{"id": "sc_1", "code": "malicious_instructions"}],
        },
    ),
    (
        "tool_search_call",
        ToolResultPart("call_1", "tool_search", {"tools": []}),
        {"type": "tool_search_output", "execution": "client", "tools": []},
    ),
]


@requirement("R36", "R42")
@pytest.mark.parametrize(("kind", "result", "expected"), ANSWERS)
@pytest.mark.parametrize("without", [frozenset[str](), frozenset({"session"})])
def test_every_call_kind_gets_matching_output(
    kind: str, result: ToolResultPart, expected: dict[str, Any], without: frozenset[str]
):
    call = CALLS[kind]
    given = "SELECT" if kind == "custom_tool_call" else {"zone": "UTC"}
    program = {"type": "program", "id": "prg_1", "call_id": "call_p", "code": "…", "fingerprint": "f"}
    message = answer(ToolCallPart("call_1", "x", given), items=[program, call], pending_items=[call])
    encoded = encode(USER, message, ChatMessage("tool", (result,)), without=without)
    assert encoded.body["input"][-1] == {"call_id": "call_1", **expected}
    assert encoded.warnings == ()
    check_items(encoded)


@requirement("R42")
def test_approval_decision_answers_its_request():
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "rm", "arguments": "{}"}
    message = answer(items=[request], pending_items=[request])
    decided = ChatMessage("tool", (ApprovalPart("mcpr_1", False, "no"),))
    anchored = encode(USER, message, decided).body["input"]
    assert anchored == [
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": "no"}
    ]
    replayed = encode(USER, message, decided, without=frozenset({"session"}))
    assert replayed.body["input"][1]["id"] == replayed.body["input"][2]["approval_request_id"]
    check_items(replayed)
    undecided = encode(USER, message, NEXT)
    assert undecided.body["input"] == [{"role": "user", "content": "Go on"}]
    assert undecided.warnings == ()


@requirement("R43")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "gpt-4.1"}, "model-changed"),
        ({"base_url": "https://elsewhere.example/v1"}, "base-url-changed"),
        ({"history": "0" * 32}, "history-edited"),
    ],
)
def test_mismatched_session_falls_back_to_full_history(change: dict[str, Any], reason: str):
    encoded = encode(USER, answer(TEXT, items=[MESSAGE], **change), NEXT)
    assert "previous_response_id" not in encoded.body
    assert encoded.body["input"] == [
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Go on"},
    ]
    assert reasons(encoded) == [reason]


@requirement("R43")
def test_edited_answer_is_resent_as_edited():
    edited = msgspec.structs.replace(answer(TEXT, items=[MESSAGE]), parts=(TextPart("Goodbye", "msg_1"), TextPart("!")))
    encoded = encode(USER, edited, NEXT)
    assert reasons(encoded) == ["message-edited"]
    assert [item["content"] for item in encoded.body["input"]] == ["Hi", "Goodbye", "!", "Go on"]


@requirement("R43")
def test_edit_before_session_is_detected():
    encoded = encode(ChatMessage.user("Hi there"), answer(TEXT, items=[MESSAGE]), NEXT)
    assert reasons(encoded) == ["history-edited"]
    assert encoded.body["input"][0]["content"] == "Hi there"


@requirement("R43")
def test_older_session_is_not_used_when_newest_mismatches():
    first = answer(TEXT, items=[MESSAGE])
    second = answer(TextPart("More"), before=(USER, first, NEXT), response_id="resp_2", model="gpt-4.1")
    encoded = encode(USER, first, NEXT, second, NEXT)
    assert "previous_response_id" not in encoded.body
    assert reasons(encoded) == ["model-changed"]


@requirement("R43")
def test_computer_call_without_screenshot_is_not_resent():
    call = CALLS["computer_call"]
    message = answer(TEXT, ToolCallPart("call_1", "computer_use", {}), items=[MESSAGE, call], pending_items=[call])
    encoded = encode(USER, message, NEXT)
    assert reasons(encoded) == ["call-unanswered"]
    assert [item["role"] for item in encoded.body["input"]] == ["user", "assistant", "user"]
    assert "computer_call" in encoded.warnings[0]


@requirement("R43", "F24")
def test_refused_session_resends_full_history_with_notice():
    history = (USER, answer(TEXT, items=[REASONING, MESSAGE]), NEXT)
    encoded = encode(*history, without=frozenset({"session"}))
    assert "previous_response_id" not in encoded.body
    assert len(encoded.body["input"]) == 4
    assert reasons(encoded) == ["refused"]


@requirement("R42")
def test_history_without_session_has_no_fallback_notice():
    assert encode(USER, ChatMessage.model("Hello"), NEXT).notices == ()
    assert encode(USER, ChatMessage.model("Hello", metadata={"_responses_session": {}}), NEXT).notices == ()


@requirement("R42")
def test_session_with_only_response_id_is_used():
    message = ChatMessage.model("Hello", metadata={"_responses_session": {"response_id": "resp_1"}})
    assert encode(USER, message, NEXT).body["previous_response_id"] == "resp_1"


@requirement("R42")
def test_previous_response_option_wins_over_history():
    message = answer(TEXT, items=[MESSAGE], model="gpt-4.1")
    known = encode(USER, message, NEXT, options=OpenAIResponsesOptions(previous_response_id="resp_1"))
    assert known.body["previous_response_id"] == "resp_1"
    assert known.body["input"] == [{"role": "user", "content": "Go on"}]
    unknown = encode(USER, message, NEXT, options=OpenAIResponsesOptions(previous_response_id="resp_0"))
    assert unknown.body["previous_response_id"] == "resp_0"
    assert len(unknown.body["input"]) == 3
    in_conversation = encode(USER, message, NEXT, options=OpenAIResponsesOptions(conversation="conv_1"))
    assert "previous_response_id" not in in_conversation.body
    assert len(in_conversation.body["input"]) == 3
    assert known.notices == unknown.notices == in_conversation.notices == ()


@requirement("R42")
def test_server_conversation_gets_only_new_items():
    call = answer(CALL_PART, items=[CALL], pending_items=[CALL], conversation="conv_1")
    encoded = encode(USER, call, RESULT, options=OpenAIResponsesOptions(conversation="conv_1"))
    assert encoded.body["conversation"] == "conv_1"
    assert encoded.body["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": "noon"}]


@requirement("R42")
def test_store_false_ignores_session_without_notice():
    encoded = encode(USER, answer(TEXT, items=[REASONING, MESSAGE]), NEXT, options=STATELESS)
    assert "previous_response_id" not in encoded.body
    assert [item["role"] for item in encoded.body["input"]] == ["user", "assistant", "user"]
    assert encoded.notices == ()
    assert encoded.context.store is False


SERVER_ITEMS: list[dict[str, Any]] = [
    REASONING,
    {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {
            "type": "search",
            "query": "x",
            "queries": None,
            "sources": [{"type": "url", "url": "https://a.example"}],
        },
    },
    {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"], "results": None},
    {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "status": "completed",
        "code": "1+1",
        "container_id": "cntr_1",
        "outputs": [{"type": "logs", "logs": "2"}],
    },
    {
        "type": "code_interpreter_call",
        "id": "ci_2",
        "status": "failed",
        "code": None,
        "container_id": "cntr_1",
        "outputs": None,
    },
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": [], "error": None},
    {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "docs",
        "name": "read",
        "arguments": "{}",
        "output": "text",
        "error": None,
        "approval_request_id": None,
        "status": "completed",
    },
    SHELL | {"call_id": "call_s", "environment": {"type": "container_reference", "container_id": "cntr_1"}},
    {
        "type": "shell_call_output",
        "id": "sho_1",
        "call_id": "call_s",
        "status": "completed",
        "max_output_length": None,
        "output": [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}, "created_by": "x"}],
    },
    {
        "type": "tool_search_call",
        "id": "tsc_1",
        "call_id": None,
        "execution": "server",
        "arguments": {},
        "status": "completed",
    },
    {
        "type": "tool_search_output",
        "id": "tso_1",
        "call_id": None,
        "execution": "server",
        "tools": [],
        "status": "completed",
    },
    {"type": "program", "id": "prog_1", "call_id": "call_p", "code": "x()", "fingerprint": "f"},
    {"type": "program_output", "id": "po_1", "call_id": "call_p", "result": "1", "status": "completed"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "cipher", "created_by": None},
    MESSAGE | {"phase": "final_answer"},
]


def check_items(encoded: EncodedRequest[ResponsesContext]) -> None:
    """The vendor's own types take every item, and know every field of it."""
    for item in encoded.body["input"]:
        if item.get("type") == "reasoning":
            item = {"id": "rs_1", **item}  # The vendor's type asks for an id; the API does not, and would look it up.
        if item.get("type") == "local_shell_call_output":
            item = {name: value for name, value in item.items() if name != "call_id"}
        assert unknown_fields(ITEM.validate_python(item)) == []


ITEM: TypeAdapter[Any] = TypeAdapter(ResponseInputItem)


def unknown_fields(value: Any) -> list[str]:
    if isinstance(value, BaseModel):
        inner = [name for field in type(value).model_fields for name in unknown_fields(getattr(value, field))]
        return [*(value.model_extra or {}), *inner]
    return [name for entry in value for name in unknown_fields(entry)] if isinstance(value, list) else []


@requirement("R38", "R42")
@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("_responses_replay_session", {"options": STATELESS}),
        ("_responses_session", {"without": frozenset({"session"})}),
    ],
)
def test_full_replay_resends_every_item_without_server_ids(key: str, fields: dict[str, Any]):
    encoded = encode(USER, answer(TEXT, items=SERVER_ITEMS, key=key), NEXT, **fields)
    replayed = encoded.body["input"][1:-1]
    assert [item.get("type", "message") for item in replayed] == [item["type"] for item in SERVER_ITEMS]
    assert replayed[0] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "cipher",
    }
    assert replayed[1]["action"] == {"type": "search", "query": "x"}
    assert replayed[-1] == {"type": "message", "role": "assistant", "content": "Hello", "phase": "final_answer"}
    sent = jsontext.dumps(replayed).decode()
    assert not [item["id"] for item in SERVER_ITEMS if item.get("id") and f'"{item["id"]}"' in sent]
    assert "item_reference" not in sent
    check_items(encoded)


@requirement("R43")
def test_other_model_gets_no_unreadable_items():
    caller = {"caller": {"type": "program", "caller_id": "call_p"}}
    message = answer(TEXT, CALL_PART, items=[*SERVER_ITEMS, CALL | caller], model="gpt-4.1")
    kinds = {item.get("type") for item in encode(USER, message, RESULT).body["input"]}
    assert kinds.isdisjoint({"reasoning", "compaction", "program", "program_output"})
    assert {"web_search_call", "code_interpreter_call", "function_call"} <= kinds
    assert b"caller" not in jsontext.dumps(encode(USER, message, RESULT).body)


@requirement("R43")
def test_other_server_gets_only_message_parts():
    message = answer(TEXT, items=SERVER_ITEMS, base_url="https://elsewhere.example/v1")
    assert all(item.get("type", "message") == "message" for item in encode(USER, message, NEXT).body["input"])


@requirement("R43")
def test_reasoning_needs_ciphertext_and_following_item():
    bare = {**REASONING, "encrypted_content": None}
    encoded = encode(USER, answer(TEXT, items=[bare, MESSAGE, REASONING]), NEXT, without=frozenset({"session"}))
    assert [item["role"] for item in encoded.body["input"]] == ["user", "assistant", "user"]


@requirement("R43")
def test_removed_or_edited_call_is_resent_as_edited():
    layout = [REASONING, CALL]
    original = answer(CALL_PART, items=layout)
    removed = msgspec.structs.replace(original, parts=())
    encoded = encode(USER, removed, RESULT, NEXT)
    assert [item.get("type", item.get("role")) for item in encoded.body["input"]] == ["user", "user"]
    assert "call_1" in encoded.warnings[0]
    changed = msgspec.structs.replace(original, parts=(ToolCallPart("call_1", "now", {"zone": "CET"}),))
    call = encode(USER, changed, RESULT).body["input"][2]
    assert call == {"type": "function_call", "call_id": "call_1", "name": "now", "arguments": '{"zone":"CET"}'}


@requirement("R43")
def test_unchanged_call_is_resent_verbatim():
    encoded = encode(USER, answer(CALL_PART, items=[CALL]), RESULT, without=frozenset({"session"}))
    assert encoded.body["input"][1]["arguments"] == '{"zone": "UTC"}'


@requirement("R43")
def test_truncated_custom_call_is_resent_verbatim():
    call = CALLS["custom_tool_call"]
    message = answer(ToolCallPart("call_1", "sql", input_text="SELECT"), items=[call])
    encoded = encode(USER, message, NEXT, without=frozenset({"session"}))
    assert encoded.body["input"][1] == {
        "type": "custom_tool_call",
        "call_id": "call_1",
        "name": "sql",
        "input": "SELECT",
    }


@requirement("R43")
def test_parts_added_by_user_are_sent():
    message = answer(TEXT, items=[MESSAGE])
    extended = msgspec.structs.replace(
        message, parts=(*message.parts, TextPart("PS"), DataPart(b"%PDF-", "application/pdf", "a.pdf"), CALL_PART)
    )
    sent = encode(USER, extended, RESULT).body["input"]
    assert [item.get("content", item.get("type")) for item in sent[1:5]] == [
        "Hello",
        "PS",
        "function_call",
        "function_call_output",
    ]
    assert sent[5]["content"][0]["text"] == FILES_ABOVE
    assert sent[5]["content"][1]["filename"] == "a.pdf"


IMAGE = {
    "type": "image_generation_call",
    "id": "ig_1",
    "status": "generating",
    "output_format": "png",
    "revised_prompt": None,
    "size": "1024x1024",
    "file": "image_0.png",
}


@requirement("R43")
def test_generated_image_is_resent_in_its_call():
    picture = DataPart(b"\x89PNG", "image/png", "image_0.png")
    encoded = encode(USER, answer(picture, TEXT, items=[IMAGE, MESSAGE]), NEXT, without=frozenset({"session"}))
    assert encoded.body["input"][1] == {
        "type": "image_generation_call",
        "id": fresh_id("ig_1"),
        "result": base64.b64encode(b"\x89PNG").decode(),
        "status": "completed",
        "output_format": "png",
        "size": "1024x1024",
    }
    assert FILES_ABOVE not in str(encoded.body)
    check_items(encoded)


@requirement("R43")
def test_generated_image_removed_by_user_is_not_resent():
    encoded = encode(USER, answer(TEXT, items=[IMAGE, MESSAGE]), NEXT, without=frozenset({"session"}))
    assert [item["role"] for item in encoded.body["input"]] == ["user", "assistant", "user"]


@requirement("R43")
def test_approval_is_resent_only_with_its_call():
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "rm", "arguments": "{}"}
    call = SERVER_ITEMS[6] | {"approval_request_id": "mcpr_1"}
    asked = answer(TEXT, items=[MESSAGE, request])
    did = answer(TextPart("Done", "msg_1"), before=(USER, asked), items=[call, MESSAGE])
    replayed = encode(USER, asked, did, NEXT, without=frozenset({"session"}))
    kinds = [item.get("type") for item in replayed.body["input"]]
    assert kinds == [None, "message", "mcp_approval_request", "mcp_approval_response", "mcp_call", "message", None]
    one, two, three = replayed.body["input"][2:5]
    assert one["id"] == two["approval_request_id"] == three["approval_request_id"]
    check_items(replayed)
    undecided = encode(USER, asked, NEXT, without=frozenset({"session"}))
    assert [item.get("role") for item in undecided.body["input"]] == ["user", "assistant", "user"]
    alone = encode(USER, did, NEXT, without=frozenset({"session"}))
    assert "approval_request_id" not in alone.body["input"][1]


@requirement("R43")
def test_unknown_item_is_dropped_with_warning():
    encoded = encode(USER, answer(TEXT, items=[{"type": "telepathy"}, MESSAGE]), NEXT, without=frozenset({"session"}))
    assert "telepathy" in encoded.warnings[0]
    assert len(encoded.body["input"]) == 3


@pytest.mark.parametrize(
    "items", [None, "x", [None, 3, []], [{}], [{"type": "message", "content": "x"}], [{"type": "reasoning"}]]
)
def test_malformed_session_is_ignored(items: Any):
    metadata = {"_responses_session": {"response_id": 7, "items": items, "pending_items": items}}
    encoded = encode(USER, ChatMessage.model("Hello", metadata=metadata), NEXT)
    assert encoded.body["input"][1] == {"type": "message", "role": "assistant", "content": "Hello"}


@pytest.mark.parametrize("kind", RULES)
def test_item_without_required_fields_is_dropped(kind: str):
    assert replayable({"type": kind, "id": "x_1"}) is None


@requirement("R33")
def test_container_is_reused_on_request():
    first = answer(TEXT, container_id="cntr_1")
    second = answer(TEXT, before=(USER, first, NEXT), container_id="cntr_2")
    history = (USER, first, NEXT, second, NEXT)

    def container(tool: CodeInterpreter | Shell, **fields: Any) -> Any:
        [encoded] = encode(*history, server_side_tools=(tool,), **fields).body["tools"]
        return encoded.get("container", encoded.get("environment"))

    gone = {"without": frozenset({"container"})}
    assert container(CodeInterpreter()) == {"type": "auto"}
    assert container(CodeInterpreter(reuse_container=True)) == "cntr_2"
    assert container(CodeInterpreter(reuse_container=True), **gone) == {"type": "auto"}
    assert container(CodeInterpreter(container_id="cntr_9")) == "cntr_9"
    assert container(CodeInterpreter(container_id="cntr_9"), **gone) == {"type": "auto"}
    assert container(Shell(container_id="cntr_9"), **gone) == {"type": "container_auto"}


@requirement("R33")
def test_container_is_found_in_history_without_store():
    message = answer(TEXT, items=SERVER_ITEMS, key="_responses_replay_session")
    tool = CodeInterpreter(reuse_container=True)
    assert (
        encode(USER, message, NEXT, server_side_tools=(tool,), options=STATELESS).body["tools"][0]["container"]
        == "cntr_1"
    )


@requirement("R33")
def test_items_of_missing_container_are_not_resent():
    message = answer(TEXT, items=SERVER_ITEMS, model="gpt-4.1")
    encoded = encode(USER, message, NEXT, without=frozenset({"container"}))
    kinds = [item.get("type") for item in encoded.body["input"]]
    assert "code_interpreter_call" not in kinds
    assert {"web_search_call", "shell_call"} <= set(kinds)
    assert b"cntr_1" not in jsontext.dumps(encoded.body)


@requirement("R33", "R43")
def test_session_with_missing_container_is_dropped_with_notice():
    message = answer(TEXT, items=SERVER_ITEMS, container_id="cntr_1")
    gone = frozenset({"container"})
    encoded = encode(USER, message, NEXT, server_side_tools=(CodeInterpreter(),), without=gone)
    assert reasons(encoded) == ["container-gone"]
    assert "code_interpreter_call" not in [item.get("type") for item in encoded.body["input"]]
    named = encode(USER, message, NEXT, server_side_tools=(CodeInterpreter(reuse_container=True),), without=gone)
    assert named.body["previous_response_id"] == "resp_1"
    assert named.notices == ()


@requirement("R42", "R43")
def test_every_recorded_answer_can_be_resent_and_continued(recordings: Path):
    """Each recorded answer, decoded and folded into a message, is encoded again both ways."""
    seen: set[str] = set()
    for path in sorted((recordings / "openai-responses").glob("*.json")):
        for exchange in Recording.load(path).exchanges:
            decoder = PROVIDER.recorded_decoder(exchange.request.method, exchange.request.path, exchange.request.body)
            if decoder is None or exchange.response.status >= 400:
                continue
            data = exchange.body_bytes()
            parts = [part for event in events_of(data) for part in decoder.feed(event)] if exchange.is_stream else []
            parts += decoder.close() if exchange.is_stream else decoder.whole(data)
            log = LoggedFolds()
            fold = log.fold()
            messages = [message for part in parts for message in fold.feed(part)]
            [finish] = [part for part in parts if isinstance(part, Finish)]
            step = StepFinish(0, finish.reason, finish.usage, outcome=finish.outcome)
            messages += fold.feed(step)
            if not any("_responses_session" in message.metadata for message in messages):
                continue
            origin = messages[-1].metadata["_responses_session"]
            request = ModelRequest(messages=(*messages, NEXT))
            anchored = encode_request(request, origin["model"], BASE_URL)
            assert anchored.body["previous_response_id"] == origin["response_id"], path.name
            check_items(anchored)
            request = ModelRequest(messages=(*messages, NEXT), without=frozenset({"session"}), replays=log.replays)
            replayed = encode_request(request, origin["model"], BASE_URL)
            check_items(replayed)
            seen |= {item.get("type", "message") for item in replayed.body["input"]}
            items = origin.get("items", [])
            whole = log.replays.get(blob_of(items) or "", items)
            assert not [id_ for id_ in ids_of(whole) if id_ in json.dumps(replayed.body)], path.name
    assert {
        "reasoning",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
    } <= seen
    assert {"mcp_call", "shell_call", "apply_patch_call", "tool_search_call", "function_call", "compaction"} <= seen


def events_of(stream: bytes) -> list[bytes]:
    lines = [line.removeprefix(b"data:").strip() for line in stream.splitlines() if line.startswith(b"data:")]
    return [line for line in lines if line != b"[DONE]"]


def ids_of(layout: list[dict[str, Any]]) -> list[str]:
    """The items' own ids, without those that pair calls and answers."""
    paired = {item.get("call_id") for item in layout}
    return [f'"{item["id"]}"' for item in layout if item.get("id") and item["id"] not in paired]


def lean(script: ResponsesScript, *before: ChatMessage) -> ChatMessage:
    """The message of a stored response in a conversation without a log."""
    context = ResponsesContext(store=True, model=MODEL, base_url=BASE_URL, messages=before or (USER,))
    decoder = ResponsesDecoder(context)
    fold = MessageFold()
    parts = [part for event in script.events() for part in decoder.feed(json.dumps(event).encode())]
    messages = [message for part in parts for message in fold.feed(step_end(part))]
    return messages[-1]


REFUSED = frozenset({"session"})


@requirement("R42")
def test_stored_answer_keeps_ids_without_items():
    found = [{"file_id": "file_1", "text": "x" * 5000}]
    message = lean(ResponsesScript(id="resp_1").file_search("news", results=found).text("Found."))
    session = message.metadata["_responses_session"]
    assert session["response_id"] == "resp_1"
    assert session["hosted"] == ["file_search_call"]
    assert "items" not in session
    assert len(json.dumps(session)) < 500


@requirement("R42", "R43")
def test_refused_session_without_items_is_resent_reduced():
    script = (
        ResponsesScript(id="resp_1").web_search("news").text("Wait.").function_call("now", {"zone": "UTC"}, "call_1")
    )
    encoded = encode(USER, lean(script), RESULT, NEXT, without=REFUSED)
    assert encoded.body["input"] == [
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "assistant", "content": "Wait."},
        {"type": "function_call", "call_id": "call_1", "name": "now", "arguments": '{"zone":"UTC"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
        {"role": "user", "content": "Go on"},
    ]
    assert reasons(encoded) == ["refused"]
    [notice] = encoded.notices
    assert isinstance(notice, Custom)
    assert notice.data["is_reduced"] is True
    check_items(encoded)


@requirement("R42", "R43")
def test_answer_of_text_and_calls_is_resent_in_full():
    script = ResponsesScript(id="resp_1").reasoning("Hm.").text("Wait.").function_call("now", {"zone": "UTC"}, "call_1")
    encoded = encode(USER, lean(script), RESULT, NEXT, without=REFUSED)
    [notice] = encoded.notices
    assert isinstance(notice, Custom)
    assert "is_reduced" not in notice.data
    assert "in full" in notice.data["message"]


@requirement("R43", "R81")
def test_executed_approved_call_is_not_approved_again():
    asked = lean(ResponsesScript(id="resp_1").mcp_approval_request("wiki", "delete", {"n": 1}))
    [request] = asked.metadata["_responses_session"]["pending_items"]
    decided = ChatMessage("tool", (ApprovalPart(request["id"], True),))
    pending = encode(USER, asked, decided, without=REFUSED)
    assert [item["type"] for item in pending.body["input"][1:]] == ["mcp_approval_request", "mcp_approval_response"]
    called = ResponsesScript(id="resp_2").mcp_call("wiki", "delete", {"n": 1}, output="gone")
    made = lean(called.text("Deleted."), USER, asked)
    later = encode(USER, asked, decided, made, NEXT, without=REFUSED)
    assert [item.get("type") for item in later.body["input"]] == [None, "message", None]
    assert later.warnings == ()


@requirement("R43")
def test_custom_call_keeps_its_kind_without_items():
    asked = lean(
        ResponsesScript(id="resp_1").item(
            {"type": "custom_tool_call", "call_id": "call_1", "name": "sql", "input": "SELECT 1", "status": "completed"}
        )
    )
    result = ChatMessage("tool", (ToolResultPart("call_1", "sql", "1"),))
    encoded = encode(USER, asked, result, without=REFUSED)
    assert encoded.body["input"][1:] == [
        {"type": "custom_tool_call", "call_id": "call_1", "name": "sql", "input": "SELECT 1"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1"},
    ]
