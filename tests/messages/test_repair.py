"""Histories: what is wrong with them, and how they are repaired."""

from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    MessagePart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.messages.repair import NOT_EXECUTED, Problem, repair_history, validate_history

SESSION = {"_responses_session": {"response_id": "resp_1"}}
PICTURE = DataPart(b"\x89PNG", "image/png")


def call(call_id: str, name: str = "look") -> ToolCallPart:
    return ToolCallPart(call_id, name, {"at": call_id})


def result(call_id: str, value: Any = "seen") -> ToolResultPart:
    return ToolResultPart(call_id, "look", value)


def failed(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id, "look", NOT_EXECUTED, True)


def tool(*parts: MessagePart) -> ChatMessage:
    return ChatMessage("tool", parts)


ASK, THANKS = ChatMessage.user("Look around."), ChatMessage.user("Thank you.")
SOUND = [
    ChatMessage.system("Be brief."),
    ASK,
    ChatMessage.model(ThinkingPart("Hm"), "I look.", call("a"), call("b"), metadata=SESSION),
    tool(result("a"), PICTURE, result("b")),
    ChatMessage.model("Nothing there.", metadata={"web_search": [{"type": "x", "n": 1.5}]}),
    THANKS,
    ChatMessage.model(metadata=SESSION),
    tool(ApprovalPart("mcpr_1", True)),
    ChatMessage.model(call("c")),
]


def kinds(messages: list[ChatMessage]) -> list[tuple[int, str]]:
    return [(problem.index, problem.kind) for problem in validate_history(messages)]


def same(left: list[ChatMessage], right: list[ChatMessage]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def test_valid_history_has_no_problems_and_is_unchanged():
    assert validate_history(SOUND) == []
    assert same(repair_history(SOUND), SOUND)
    assert validate_history([]) == []
    assert repair_history([]) == []


def test_problem_has_index_kind_message_and_fix():
    (problem,) = validate_history([ASK, ChatMessage.model(call("a")), THANKS])
    assert isinstance(problem, Problem)
    assert (problem.index, problem.kind, problem.is_repairable) == (1, "dangling-call", True)
    assert "'a'" in problem.message
    assert problem.fix


# Each: the history, its problems by index, and the history after repair.
BROKEN: dict[str, tuple[list[ChatMessage], list[tuple[int, str]], list[ChatMessage]]] = {
    "a call without a result": (
        [ASK, ChatMessage.model(call("a")), THANKS],
        [(1, "dangling-call")],
        [ASK, ChatMessage.model(call("a")), tool(failed("a")), THANKS],
    ),
    "one of two calls without a result": (
        [ChatMessage.model(call("a"), call("b")), tool(result("b"))],
        [(0, "dangling-call")],
        [ChatMessage.model(call("a"), call("b")), tool(failed("a"), result("b"))],
    ),
    "a result without a call": (
        [ASK, tool(result("a")), ChatMessage.model("Hm")],
        [(1, "orphan-result")],
        [ASK, ChatMessage.model("Hm")],
    ),
    "a second result of one call": (
        [ChatMessage.model(call("a")), tool(result("a", 1), result("a", 2), PICTURE)],
        [(1, "orphan-result")],
        [ChatMessage.model(call("a")), tool(result("a", 1))],
    ),
    "a result before its call": (
        [tool(result("a")), ChatMessage.model(call("a")), THANKS],
        [(0, "orphan-result"), (1, "dangling-call")],
        [ChatMessage.model(call("a")), tool(failed("a")), THANKS],
    ),
    "a result after another message": (
        [ChatMessage.model(call("a")), THANKS, tool(result("a"), PICTURE)],
        [(2, "misplaced-result")],
        [ChatMessage.model(call("a")), tool(result("a"), PICTURE), THANKS],
    ),
    "a result in a user message": (
        [ChatMessage.model(call("a")), ChatMessage.user(result("a"), "Go on.")],
        [(1, "misplaced-result")],
        [ChatMessage.model(call("a")), tool(result("a")), ChatMessage.user("Go on.")],
    ),
    "results in several messages": (
        [ChatMessage.model(call("a"), call("b")), tool(result("a")), tool(result("b")), THANKS],
        [(1, "scattered-results")],
        [ChatMessage.model(call("a"), call("b")), tool(result("a"), result("b")), THANKS],
    ),
    "results in another order": (
        [
            ChatMessage.model(call("a"), call("b")),
            tool(result("b"), PICTURE, ApprovalPart("m", True), TextPart("x"), result("a")),
        ],
        [(1, "scattered-results")],
        [
            ChatMessage.model(call("a"), call("b")),
            tool(result("a"), ApprovalPart("m", True), TextPart("x"), result("b"), PICTURE),
        ],
    ),
    "one id in two rounds": (
        [ChatMessage.model(call("a")), tool(result("a", 1)), ChatMessage.model(call("a")), tool(result("a", 2))],
        [(2, "duplicate-id")],
        [
            ChatMessage.model(call("a")),
            tool(result("a", 1)),
            ChatMessage.model(call("a_2", "look")),
            tool(result("a_2", 2)),
        ],
    ),
    "one id twice in one round, and its new one taken": (
        [ChatMessage.model(call("a_2"), call("a"), call("a")), tool(result("a_2"), result("a", 1), result("a", 2))],
        [(0, "duplicate-id")],
        [ChatMessage.model(call("a_2"), call("a"), call("a_3")), tool(result("a_2"), result("a", 1), result("a_3", 2))],
    ),
    "a call by the user": (
        [ChatMessage.user("Hi", call("a")), tool(result("a"))],
        [(0, "stray-call"), (1, "orphan-result")],
        [ChatMessage.user("Hi")],
    ),
    "messages without content": (
        [ASK, ChatMessage("user"), ChatMessage.model(" \n", ThinkingPart("")), ChatMessage.model(call("a"))],
        [(1, "empty-message"), (2, "empty-message")],
        [ASK, ChatMessage.model(call("a"))],
    ),
    "an empty message between calls and results": (
        [ChatMessage.model(call("a")), ChatMessage("user"), tool(result("a"))],
        [(1, "empty-message")],
        [ChatMessage.model(call("a")), tool(result("a"))],
    ),
}


def without_arguments(messages: list[ChatMessage]) -> list[Any]:
    """A renamed call keeps its arguments, which name the old id here."""
    return [
        (m.role, [(p.id, p.name) if isinstance(p, ToolCallPart) else p for p in m.parts], m.metadata) for m in messages
    ]


@pytest.mark.parametrize("name", BROKEN)
def test_broken_history_is_reported_and_repaired(name: str):
    history, problems, repaired = BROKEN[name]
    assert kinds(history) == problems
    assert without_arguments(repair_history(history)) == without_arguments(repaired)


def test_messages_around_repair_stay_same_objects():
    asked = ChatMessage.model(call("d"), metadata=SESSION)
    repaired = repair_history([*SOUND[:-1], asked, THANKS])
    assert same([*repaired[:-2], repaired[-1]], [*SOUND[:-1], asked, THANKS])
    assert repaired[-2] == tool(failed("d"))


def test_calls_of_last_message_wait_unless_answer_is_required():
    history = [ASK, ChatMessage.model(call("a")), ChatMessage("user")]
    assert kinds(history) == [(2, "empty-message")]
    assert repair_history(history) == history[:2]
    assert repair_history(history, answer_last=True) == [*history[:2], tool(failed("a"))]


def test_renamed_call_keeps_metadata_and_arguments():
    again = ChatMessage.model("Again.", call("a"), metadata=SESSION)
    repaired = repair_history([ChatMessage.model(call("a")), tool(result("a")), again, tool(result("a"))])
    assert repaired[2] == ChatMessage.model("Again.", ToolCallPart("a_2", "look", {"at": "a"}), metadata=SESSION)


def test_merged_messages_keep_their_metadata():
    calls = ChatMessage.model(call("a"), call("b"))
    first = ChatMessage("tool", (result("a"),), {"x": 1})
    second = ChatMessage("tool", (result("b"),), {"y": 2})
    assert repair_history([calls, first, second])[1].metadata == {"x": 1, "y": 2}


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (ChatMessage(cast(Role, "assistant"), (TextPart("Hi"),)), "unknown-role"),
        (ChatMessage.system("Be long."), "system-in-the-middle"),
        (ChatMessage("user", (TextPart("Hi"),), SESSION), "foreign-session"),
        *(
            (ChatMessage.model("Hi", metadata={"k": [value]}), "not-json")
            for value in (object(), b"x", float("nan"), (1,), {1: 2}, CYCLE)
        ),
        (ChatMessage.model(ToolCallPart("a", "look", {"x": {1}})), "not-json"),
    ],
)
def test_unrepairable_problem_is_reported_and_left_unchanged(message: ChatMessage, kind: str):
    history = [ASK, message]
    (problem,) = validate_history(history)
    assert (problem.index, problem.kind, problem.is_repairable) == (1, kind, False)
    assert same(repair_history(history), history)


def test_value_without_json_form_is_named_by_path():
    (problem,) = validate_history([ChatMessage.model("Hi", metadata={"a": [{"b": b""}]})])
    assert problem.message.startswith("metadata.a[0].b ")


def test_calls_with_unknown_role_count_as_calls():
    history = [ChatMessage(cast(Role, "assistant"), (call("a"),)), tool(result("a"))]
    assert kinds(history) == [(0, "unknown-role")]
    assert same(repair_history(history), history)


IDS = st.sampled_from(["a", "b", "a_2"])
PARTS: st.SearchStrategy[MessagePart] = st.one_of(
    st.builds(call, IDS),
    st.builds(result, IDS, st.integers(0, 9)),
    st.builds(call, IDS),
    st.builds(result, IDS, st.integers(0, 9)),
    st.builds(TextPart, st.sampled_from(["", " ", "x"])),
    st.builds(ThinkingPart, st.sampled_from(["", "x"])),
    st.just(PICTURE),
    st.just(ApprovalPart("m", True)),
)
MESSAGES = st.builds(
    ChatMessage,
    st.sampled_from(["model", "tool", "model", "tool", "user", "system", "assistant"]).map(
        lambda role: cast(Role, role)
    ),
    st.lists(PARTS, max_size=4).map(tuple),
    st.sampled_from([{}, {}, SESSION, {"k": 1}, {"k": object()}]),
)
HISTORIES = st.lists(MESSAGES, max_size=8)


def repairable(messages: list[ChatMessage]) -> list[Problem]:
    return [problem for problem in validate_history(messages) if problem.is_repairable]


@given(HISTORIES, st.booleans())
def test_repair_is_idempotent_and_leaves_no_repairable_problem(history: list[ChatMessage], answer_last: bool):
    repaired = repair_history(history, answer_last=answer_last)
    assert repairable(repaired) == []
    assert same(repair_history(repaired, answer_last=answer_last), repaired)


@given(HISTORIES)
def test_history_changes_only_if_it_has_repairable_problem(history: list[ChatMessage]):
    assert same(repair_history(history), history) == (repairable(history) == [])


@given(HISTORIES)
def test_every_call_of_repaired_history_is_answered_once(history: list[ChatMessage]):
    repaired = repair_history(history, answer_last=True)
    seen: list[str] = []
    for index, message in enumerate(repaired):
        ids = [part.id for part in message.tool_calls]
        seen += ids
        if ids:
            following = repaired[index + 1 :]
            run = next((n for n, other in enumerate(following) if other.role != "tool"), len(following))
            answers = [p.id for other in following[:run] for p in other.parts if isinstance(p, ToolResultPart)]
            assert answers == ids
    assert len(seen) == len(set(seen))


@given(HISTORIES)
def test_repair_keeps_its_input_and_all_text(history: list[ChatMessage]):
    before = [(message.parts, message.metadata) for message in history]

    def texts(messages: list[ChatMessage]) -> list[str]:
        return [message.text for message in messages if message.text.strip() and message.role != "tool"]

    assert texts(repair_history(history)) == texts(history)
    assert [(message.parts, message.metadata) for message in history] == before
