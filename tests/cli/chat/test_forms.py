"""The questions of an MCP server, as a person at a terminal answers them."""

from typing import Any

import pytest

from requirements import requirement
from sidestream.cli.chat.approvals import ApprovalPrompt
from sidestream.tools.approvals import PendingApproval, digest_of

FORM: dict[str, Any] = {
    "message": "Which seat?\x1b[2J",
    "schema": {
        "type": "object",
        "properties": {
            "row": {"type": "integer", "title": "Row"},
            "price": {"type": "number"},
            "meal": {"type": "boolean", "default": True},
            "side": {"type": "string", "enum": ["aisle", "window"], "default": "aisle"},
            "bags": {"type": "array", "items": {"type": "string", "enum": ["small", "large"]}},
        },
        "required": ["row"],
    },
}
PAGE: dict[str, Any] = {"message": "Please pay", "url": "https://pay.test/1"}


def pending(form: dict[str, Any]) -> PendingApproval:
    return PendingApproval(
        approval_id="approval_1",
        run_id="run_1",
        call_id="call_1",
        tool="book",
        input={},
        digest=digest_of("book", {}, form),
        provenance="requested by the server travel",
        server_label="travel",
        form=form,
    )


async def decided(form: dict[str, Any], *typed: str, **settings: Any) -> tuple[Any, list[str]]:
    """The decision, and what was printed and prompted."""
    lines: list[str] = []
    answers = iter(typed)

    async def read(question: str) -> str | None:
        lines.append(question)
        return next(answers, None)

    prompt = ApprovalPrompt(lambda text, *styles: lines.append(text), read, **settings)
    decisions = await prompt.decide([pending(form)], is_resumed=True)
    return (None if decisions is None else decisions[0]), lines


@requirement("R80")
async def test_form_is_filled_in_field_by_field_with_defaults():
    decision, lines = await decided(FORM, "7", "", "no", "", "small, large")
    assert (decision.is_approved, decision.answers) == (True, {"row": 7, "meal": False, "bags": ["small", "large"]})
    assert any("travel asks: Which seat?" in line for line in lines)
    assert "Row: " in lines
    assert "meal (yes, no) [yes]: " in lines
    assert not any("\x1b" in line for line in lines)


@requirement("R80")
async def test_form_is_repeated_until_answers_are_valid():
    decision, lines = await decided(FORM, "front", "", "", "", "", "7", "1.5", "", "window", "")
    assert decision.answers == {"row": 7, "price": 1.5, "side": "window"}
    assert any("row" in line and "not accept" in line for line in lines)


@requirement("R80")
async def test_form_can_be_declined_and_end_of_input_decides_nothing():
    assert (await decided(FORM, "7", "!"))[0].is_approved is False
    assert (await decided(FORM, "7"))[0] is None


@requirement("R80")
@pytest.mark.parametrize(("typed", "is_approved"), [("y", True), ("n", False)])
async def test_url_to_visit_is_confirmed(typed: str, is_approved: bool):
    decision, lines = await decided(PAGE, "what?", typed)
    assert (decision.is_approved, decision.answers) == (is_approved, None)
    assert any("https://pay.test/1" in line for line in lines)


@requirement("R80")
async def test_approve_option_does_not_answer_forms():
    decision, lines = await decided(FORM, "7", "", "", "", "", approve="run")
    assert (decision.answers, "Row: " in lines) == ({"row": 7}, True)
    assert (await decided(FORM, approve="deny"))[0].is_approved is False
