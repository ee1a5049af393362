"""What a lane knows of messages to its responses, whatever a server says of them."""

from typing import Any

from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.transport.calls import SentSteer, SteerReport
from sidestream.wire.socket.stream import LaneSteers

REPORTS = st.builds(
    SteerReport,
    status=st.sampled_from(["accepted", "pending", "failed"]),
    id=st.sampled_from([None, "a", "b", "c"]),
    code=st.none() | st.just("code"),
)
FACTS = st.lists(st.just("send") | st.just("apply") | REPORTS, max_size=30)
OVER = ("applied", "failed")


def lane(*facts: Any) -> tuple[LaneSteers, list[SentSteer]]:
    steers, sent = LaneSteers(), list[SentSteer]()
    for fact in facts:
        if fact == "send":
            sent.append(steers.sent("r"))
        elif fact == "apply":
            steers.apply()
        else:
            steers.take(fact)
    return steers, sent


def says(status: Any, id: str | None = None) -> SteerReport:
    return SteerReport(status=status, id=id)


@requirement("R115")
@given(FACTS)
def test_message_is_held_until_applied_or_failed(facts: list[Any]):
    steers, sent = LaneSteers(), list[SentSteer]()
    for fact in facts:
        over = [(steer, steer.status) for steer in sent if steer.status in OVER]
        if fact == "send":
            sent.append(steers.sent("r"))
        elif fact == "apply":
            steers.apply()
        else:
            steers.take(fact)
        assert all(steer.status == status for steer, status in over)
        assert steers.is_empty == all(steer.status in OVER for steer in sent)
        assert steers.has_unanswered == any(steer.status == "sent" for steer in sent)
        assert steers.has_pending == any(steer.status == "pending" for steer in sent)
    steers.drop("gone", "It is gone.")
    assert steers.is_empty
    assert all(steer.status in OVER for steer in sent)


@requirement("R115")
def test_answers_arrive_in_message_order():
    _, sent = lane("send", "send", "send", says("accepted", "a"), says("failed"), says("accepted", "b"), "apply")
    assert [steer.status for steer in sent] == ["applied", "failed", "applied"]


@requirement("R115")
def test_message_sent_as_successor_begins_is_not_taken_by_it():
    steers, sent = lane("send", says("accepted", "a"), "send", "apply")
    assert [steer.status for steer in sent] == ["applied", "sent"]
    assert not steers.is_settled
    steers.take(says("failed"))
    assert [steer.status for steer in sent] == ["applied", "failed"]
    assert steers.is_empty


@requirement("R115")
def test_repeated_steer_id_from_server_loses_no_message():
    steers, sent = lane("send", "send", says("accepted", "a"), says("accepted", "a"), says("accepted", "b"), "apply")
    assert [steer.status for steer in sent] == ["applied", "applied"]
    assert steers.is_empty


@requirement("R115")
def test_refusal_with_unknown_id_fails_first_unanswered_message():
    _, sent = lane("send", "send", says("accepted", "a"), says("failed", "new"))
    assert [steer.status for steer in sent] == ["accepted", "failed"]
