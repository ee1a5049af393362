"""What a history loses when it is too long: calls keep their results, and the question stays."""

from hypothesis import given, strategies as st

from sidestream.messages.message import ChatMessage, ToolCallPart, ToolResultPart
from sidestream.messages.repair import validate_history
from sidestream.messages.shortening import is_shortenable, plan, shortened, shortened_by, transcript
from sidestream.messages.tokens import message_tokens

SYSTEM = ChatMessage.system("Be brief.")


def turn(number: int, rounds: int = 0, size: int = 40) -> list[ChatMessage]:
    messages = [ChatMessage.user(f"question {number}")]
    for place in range(rounds):
        call = f"c{number}_{place}"
        messages.append(ChatMessage.model(ToolCallPart(call, "f", {"n": place})))
        messages.append(ChatMessage("tool", (ToolResultPart(call, "f", "x" * size),)))
    return [*messages, ChatMessage.model(f"answer {number} " + "y" * size)]


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.text.strip("y ") or message.role for message in messages]


def test_older_turns_are_dropped_and_last_ones_kept() -> None:
    history = [SYSTEM, *turn(1), *turn(2), *turn(3), ChatMessage.user("question 4")]
    dropped = plan(history, total=1000, budget=600, keep_turns=2)
    kept = shortened(history, dropped, None)
    assert texts(kept) == ["Be brief.", "question 3", "answer 3", "question 4"]


def test_fewer_turns_are_kept_if_they_do_not_fit() -> None:
    history = [*turn(1), *turn(2, size=4000), ChatMessage.user("question 3")]
    kept = shortened(history, plan(history, total=1000, budget=100, keep_turns=2), None)
    assert texts(kept) == ["question 3"]


def test_rounds_of_current_turn_are_dropped_last() -> None:
    history = [*turn(1), *turn(2, rounds=5, size=1000)[:-1]]
    kept = shortened(history, plan(history, total=1000, budget=450, keep_turns=2), "So far.")
    assert validate_history(kept) == []
    assert kept[0].text.endswith("So far.")
    assert kept[1].text == "question 2"
    assert [message.role for message in kept[2:]] == ["model", "tool"] * 2


def test_summary_follows_system_message_and_is_summarised_again() -> None:
    history = [SYSTEM, *turn(1), *turn(2), *turn(3)]
    once = shortened(history, plan(history, total=100, budget=50, keep_turns=1), "One and two.")
    assert [message.role for message in once] == ["system", "user", "user", "model"]
    again = [*once, *turn(4), *turn(5)]
    (dropped,) = plan(again, total=100, budget=50, keep_turns=1)
    assert "One and two." in transcript(again[dropped[0] : dropped[1]], 1000)


def test_single_question_cannot_be_shortened() -> None:
    assert plan([SYSTEM, ChatMessage.user("x" * 10_000)], total=9999, budget=1, keep_turns=1) == ()
    assert not is_shortenable([ChatMessage.user("x")])
    assert not is_shortenable([])


def test_long_transcript_loses_its_middle() -> None:
    text = transcript([ChatMessage.user("first " + "x" * 10_000), ChatMessage.model("last")], 100)
    assert len(text) < 450
    assert "first" in text
    assert text.endswith("last")


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 500)), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(0, 3000),
    st.booleans(),
    st.booleans(),
)
def test_shortening_never_leaves_result_without_call(
    turns: list[tuple[int, int]], keep_turns: int, budget: int, is_open: bool, has_system: bool
) -> None:
    history = [SYSTEM] * has_system
    for number, (rounds, size) in enumerate(turns):
        history += turn(number, rounds, size)
    history = history[:-1] if is_open else history
    total = message_tokens(history)
    dropped = plan(history, total=total, budget=budget, keep_turns=keep_turns)
    kept = shortened(history, dropped, "summary" if dropped else None)
    assert validate_history(kept) == validate_history(history) == []
    assert f"question {len(turns) - 1}" in texts(kept)
    assert kept[-1] is history[-1]
    assert not has_system or kept[0] is SYSTEM
    data = {"dropped": [list(entry) for entry in dropped], "summary": "summary" if dropped else None}
    assert shortened_by(history, data) == kept


def test_only_whole_rounds_of_current_turn_are_dropped() -> None:
    question = ChatMessage.user("question")
    assert not is_shortenable([question, ChatMessage.model("One"), ChatMessage.model("and two")])
    called = ChatMessage.model(ToolCallPart("c", "f", {}))
    answered = ChatMessage("tool", (ToolResultPart("c", "f", "x"),))
    assert not is_shortenable([question, called, answered])
    assert is_shortenable([question, called, answered, ChatMessage.model("One")])
