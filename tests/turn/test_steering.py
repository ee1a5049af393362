"""Messages of the user in the turn machine: what a step, a round and an end mean for them."""

from typing import Any

import pytest

from requirements import requirement
from sidestream.limits import Limits
from sidestream.parts import Error, Finish, Steer
from sidestream.turn.state import AwaitDecision, Background, Check, Over, Send
from support.turn_drive import PLAIN, Drive, call, text, used


def steer(number: int = 1) -> Steer:
    return Steer(f"steer_{number}", "accepted", f"Message {number}.")


def begun(**settings: Any) -> Drive:
    """A turn whose first request has been made."""
    drive = Drive(PLAIN, **settings)
    drive.sending((), ())
    return drive


def ended(drive: Drive, *parts: Any, reason: Any = "stop") -> None:
    drive.opened()
    drive.received([*parts, Finish(reason, used())])


def statuses(drive: Drive) -> list[tuple[str, str]]:
    return [(part.id, part.status) for part in drive.parts if isinstance(part, Steer)]


@requirement("R115")
@pytest.mark.parametrize("reason", ["stop", "length", "content-filter", "other"])
def test_message_adds_one_step_however_answer_ended(reason: Any) -> None:
    drive = begun()
    drive.steered(steer())
    ended(drive, *text("Hm."), reason=reason)
    assert isinstance(drive.command, Send)
    drive.sending((), (), steers=drive.turn.due_steers)
    ended(drive, *text("Yes."))
    assert isinstance(drive.command, Over)
    assert [message.text for message in drive.answers] == ["Hm.", "Message 1.", "Yes."]
    assert statuses(drive) == [("steer_1", "accepted"), ("steer_1", "applied")]


@requirement("R115")
def test_round_message_precedes_user_message() -> None:
    drive = begun()
    drive.opened()
    drive.received([call("a"), Finish("tool-calls", used())])
    drive.steered(steer(1))
    drive.judged()
    drive.tool("a")
    drive.steered(steer(2))
    drive.sending((), (), steers=drive.turn.due_steers)
    assert [message.role for message in drive.answers] == ["model", "tool", "user", "user"]
    part, messages = drive.completed[-2]
    assert part == Steer("steer_1", "applied", "Message 1.")
    assert [message.role for message in messages] == ["tool", "user"]


@requirement("R115")
def test_typed_answer_is_not_checked_if_message_follows() -> None:
    drive = begun(checks_output=True)
    drive.steered(steer())
    ended(drive, *text("no JSON"))
    assert isinstance(drive.command, Send)
    assert drive.state.rejected_outputs == 0


@requirement("R115")
@pytest.mark.parametrize("problem", [None, "no JSON"])
def test_message_before_check_is_answered_instead(problem: str | None) -> None:
    drive = begun(checks_output=True)
    ended(drive, *text("1"))
    assert isinstance(drive.command, Check)
    drive.steered(steer())
    drive.checked(problem)
    assert isinstance(drive.command, Send)
    assert drive.state.rejected_outputs == 0


@requirement("R115")
@pytest.mark.parametrize("in_step", [True, False])
def test_typed_answer_request_regains_tools_after_message(in_step: bool) -> None:
    drive = Drive(PLAIN)
    drive.sending((), (), defers_output=True)
    if in_step:
        drive.steered(steer())
    ended(drive, *text("Done."))
    assert ("tools" in drive.state.without) is not in_step
    if not in_step:
        drive.steered(steer())
    assert "tools" not in drive.state.without
    assert isinstance(drive.command, Send)
    assert drive.turn.due_steers == (steer(),)


@requirement("R115")
def test_background_answer_takes_no_messages() -> None:
    drive = begun()
    drive.steered(steer())
    assert drive.turn.due_steers == (steer(),)
    drive.state.background = Background("p", "resp_1", is_streamed=True)
    assert drive.turn.due_steers == ()


@requirement("R115")
def test_calls_handed_to_caller_end_run_without_message() -> None:
    drive = begun(handed_over=frozenset({"shell"}))
    drive.steered(steer())
    ended(drive, call("a", "shell"), reason="tool-calls")
    assert isinstance(drive.command, Over)
    assert statuses(drive)[-1] == ("steer_1", "failed")
    assert drive.state.steers == ()


@requirement("R115")
def test_failed_or_waiting_run_keeps_message() -> None:
    failing = begun()
    failing.steered(steer())
    failing.failed(Error("provider", "no"))
    waiting = begun()
    waiting.steered(steer())
    ended(waiting, call("a"), reason="tool-calls")
    waiting.judged("ask")
    assert isinstance(waiting.command, AwaitDecision)
    for drive in (failing, waiting):
        assert statuses(drive) == [("steer_1", "accepted")]
        assert drive.state.steers == (steer(),)
    resumed = waiting.decided(*(entry.approve() for entry in waiting.approvals.values()))
    assert statuses(resumed) == [("steer_1", "accepted")]
    assert resumed.state.steers == (steer(),)


@requirement("R115", "R73")
def test_step_for_message_counts_towards_limit() -> None:
    drive = begun(limits=Limits(max_steps=1))
    drive.steered(steer())
    ended(drive, *text("Hm."))
    assert isinstance(drive.command, Over)
    lost = [part for part in drive.parts if isinstance(part, Steer)][-1]
    assert lost.status == "failed"
    assert lost.reason
