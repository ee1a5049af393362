"""The parts of the stream: their names, fields and JSON form, which scripts rely on, and what importing them costs."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given, strategies as st

import sidestream
from requirements import requirement
from sidestream import parts
from sidestream.evidence import ClaimCheck, Evidence
from sidestream.parts import (
    Custom,
    Error,
    ErrorKind,
    File,
    Finish,
    FinishReason,
    InputUsage,
    OutputUsage,
    Raw,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    Source,
    SourceKind,
    Steer,
    StepFinish,
    StepOutcome,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
    part_from_json,
)

USAGE = Usage(InputUsage(6, 3, 2, 1), OutputUsage(5, 4, 1), {"web_search": 2}, {"total_tokens": 11})
USAGE_JSON = {
    "input": {"total": 6, "no_cache": 3, "cache_read": 2, "cache_write": 1},
    "output": {"total": 5, "text": 4, "reasoning": 1},
    "server_tool_use": {"web_search": 2},
    "raw": {"total_tokens": 11},
    "cost": None,
    "unpriced": [],
}

SHORTEST: list[tuple[StreamPart, dict[str, Any]]] = [
    (StreamStart(()), {"type": "stream-start", "warnings": []}),
    (ResponseMetadata(), {"type": "response-metadata"}),
    (TextStart("t"), {"type": "text-start", "id": "t"}),
    (TextDelta("t", "Hi"), {"type": "text-delta", "id": "t", "delta": "Hi"}),
    (TextEnd("t"), {"type": "text-end", "id": "t"}),
    (ReasoningStart("r:0"), {"type": "reasoning-start", "id": "r:0"}),
    (ReasoningDelta("r:0", "Hm"), {"type": "reasoning-delta", "id": "r:0", "delta": "Hm"}),
    (ReasoningEnd("r:0"), {"type": "reasoning-end", "id": "r:0"}),
    (
        ToolInputStart("c", "f", False),
        {"type": "tool-input-start", "id": "c", "name": "f", "provider_executed": False},
    ),
    (ToolInputDelta("c", "{"), {"type": "tool-input-delta", "id": "c", "delta": "{"}),
    (ToolInputEnd("c"), {"type": "tool-input-end", "id": "c"}),
    (
        ToolCall("c", "f", "f", True, {}),
        {"type": "tool-call", "id": "c", "name": "f", "tool": "f", "provider_executed": True, "input": {}},
    ),
    (ToolEvent("f", "started", {}), {"type": "tool-event", "tool": "f", "stage": "started", "event": {}}),
    (
        ToolResult("c", "f", "f", None, False, True),
        {
            "type": "tool-result",
            "id": "c",
            "name": "f",
            "tool": "f",
            "result": None,
            "is_error": False,
            "provider_executed": True,
        },
    ),
    (
        ToolApprovalRequest("a", "c", "f", {}),
        {"type": "tool-approval-request", "approval_id": "a", "id": "c", "name": "f", "input": {}},
    ),
    (Source("s", "url"), {"type": "source", "id": "s", "kind": "url"}),
    (File("i", "image/png"), {"type": "file", "id": "i", "mime_type": "image/png"}),
    (Custom("k", 1), {"type": "custom", "kind": "k", "data": 1}),
    (Raw("p", [1]), {"type": "raw", "provider": "p", "event": [1]}),
    (
        Steer("m", "accepted", "And?"),
        {"type": "steer", "id": "m", "status": "accepted", "text": "And?"},
    ),
    (StepStart(0), {"type": "step-start", "step": 0}),
    (StepFinish(0, "stop", USAGE), {"type": "step-finish", "step": 0, "reason": "stop", "usage": USAGE_JSON}),
    (Error("tool", "m"), {"type": "error", "kind": "tool", "message": "m"}),
    (Finish("stop", USAGE), {"type": "finish", "reason": "stop", "usage": USAGE_JSON}),
]
"""Each part with only what it must have, and its JSON."""

OPTIONAL: dict[type, dict[str, Any]] = {
    ResponseMetadata: {"id": "r", "model": "m", "created": 1.5, "provider": "p"},
    TextEnd: {"annotations": ({"type": "x"},), "text": "final"},
    ReasoningEnd: {"signature": "s", "encrypted_content": "e", "text": "final"},
    ToolInputStart: {"tool": "custom"},
    ToolCall: {"input_error": "e", "input_text": "{", "action": {"actions": []}, "provider_tool": "t"},
    ToolEvent: {"call_id": "c", "output_index": 2, "provider_tool": "t", "provider_stage": "s"},
    ToolResult: {"preliminary": True, "error_type": "KeyError", "error_message": "x"},
    ToolApprovalRequest: {"server_label": "wiki", "is_external": True},
    Source: {
        "url": "u",
        "file_id": "f",
        "title": "t",
        "start": 0,
        "end": 3,
        "marker_start": 1,
        "marker_end": 3,
        "claim_start": 0,
        "claim_end": 1,
        "cited_text": "abc",
        "evidence": Evidence("supported", "r", (ClaimCheck("words", True),), (0, 3)),
        "text_id": "t",
    },
    File: {"name": "a.png", "data": b"\x00\xff", "url": "u", "tool": "image_generation", "call_id": "c"},
    Steer: {"content": ({"type": "text", "text": "And?"},), "reason": "r"},
    Error: {"code": "c", "status": 500, "retryable": True, "param": "p", "retry_after": 7.5},
    Finish: {"raw_reason": "completed", "metadata": {"model": "m"}},
}
"""Part → its optional fields, each with a value; `provider_metadata` is one of every part."""


INTERNAL = {"outcome"}
"""Fields that are no part of the public JSON."""


@pytest.mark.parametrize("part", [StepFinish(0, "stop", Usage()), Finish("stop", Usage())])
def test_decoder_outcome_is_left_out_of_public_json(part: StepFinish | Finish):
    outcome = StepOutcome(
        message_metadata={"_p_session": {"id": "r"}}, summaries={"t": [1]}, is_paused=True, is_kept=True
    )
    assert msgspec.structs.replace(part, outcome=outcome).to_json() == part.to_json()


@requirement("R1")
@pytest.mark.parametrize(("part", "expected"), SHORTEST, ids=[expected["type"] for _, expected in SHORTEST])
def test_part_json_has_tag_and_fields_without_absent_ones(part: StreamPart, expected: dict[str, Any]):
    assert json.loads(part.to_json()) == expected
    assert part.type == expected["type"]
    assert next(iter(json.loads(part.to_json()))) == "type"


@requirement("R1")
@pytest.mark.parametrize(("part", "expected"), SHORTEST, ids=[expected["type"] for _, expected in SHORTEST])
def test_part_has_listed_optional_fields_with_same_json_names(part: StreamPart, expected: dict[str, Any]):
    optional = {**OPTIONAL.get(type(part), {}), "provider_metadata": {"p": {"k": 1}}}
    assert set(part.__struct_fields__) - INTERNAL == (expected.keys() - {"type"}) | optional.keys()
    full = msgspec.structs.replace(part, **optional)
    written = json.loads(full.to_json())
    assert written.keys() == expected.keys() | optional.keys()
    assert part_from_json(full.to_json()) == full


@requirement("R1")
def test_list_of_parts_is_complete():
    assert {type(part) for part, _ in SHORTEST} == set(get_args(StreamPart))
    assert len(SHORTEST) == 24


@requirement("R1", "R6")
@pytest.mark.parametrize("part", [part for part, _ in SHORTEST], ids=lambda part: part.type)
def test_part_is_frozen(part: StreamPart):
    for field in part.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(part, field, None)


@requirement("R7")
def test_finish_reasons_are_listed():
    expected = {"stop", "length", "content-filter", "tool-calls", "approval", "limit", "error", "other"}
    assert set(get_args(FinishReason)) == expected


def test_error_and_source_kinds_are_listed():
    expected = {
        "provider",
        "truncated",
        "protocol",
        "timeout",
        "rate-limit",
        "context-overflow",
        "limit",
        "tool",
        "tool-raised",
    }
    assert set(get_args(ErrorKind)) == expected
    assert set(get_args(SourceKind)) == {"url", "document", "place", "container_file", "file_path"}


@requirement("R8")
def test_usage_of_two_steps_adds_up_and_keeps_raw_objects():
    other = Usage(InputUsage(10, 10), OutputUsage(1, 1), {"web_search": 1, "mcp": 1}, {"total_tokens": 11})
    total = USAGE + other
    assert total.input == InputUsage(16, 13, 2, 1)
    assert total.output == OutputUsage(6, 5, 1)
    assert total.server_tool_use == {"web_search": 3, "mcp": 1}
    assert total.raw == {"steps": [{"total_tokens": 11}, {"total_tokens": 11}]}
    assert len(((total + other).raw or {})["steps"]) == 3
    assert USAGE.server_tool_use == {"web_search": 2}


@requirement("R8")
def test_adding_empty_usage_is_identity():
    assert Usage() + USAGE == USAGE
    assert USAGE + Usage() == USAGE


def test_bytes_are_base64_in_json():
    assert json.loads(File("i", "image/png", data=b"\x00\xff").to_json())["data"] == "AP8="


@given(st.text(st.characters(codec=None)), st.recursive(st.text(st.characters(codec=None)), st.lists, max_leaves=3))
def test_any_text_with_lone_surrogates_round_trips(text: str, value: Any):
    # Halves of a pair that stand side by side are one character in JSON, so they are joined before comparing.
    joined = json.loads(json.dumps([text, value]))
    for part in (TextDelta("t", joined[0]), Raw("p", {"deep": joined[1]})):
        line = part.to_json()
        assert "\n" not in line
        assert part_from_json(line) == part


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", '{"type":"nonsense"}', '{"type":"text-start"}', '{"type":"text-start","id":3}']
)
def test_invalid_part_line_is_refused(line: str):
    with pytest.raises(ValueError, match=r"."):
        part_from_json(line)


def test_line_with_field_of_later_version_is_read():
    assert part_from_json('{"type":"text-start","id":"t","colour":"red"}') == TextStart("t")


# The package


def test_public_names_match_type_stub():
    tree = ast.parse(Path(sidestream.__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    seen = {alias.name: str(node.module) for node in imports for alias in node.names if alias.name != "__version__"}
    assert sorted(seen) == sorted(sidestream.__all__)
    for name, module in seen.items():
        assert getattr(sidestream, name) is getattr(sys.modules[module], name)


def test_every_part_is_public():
    names = {type(part).__name__ for part, _ in SHORTEST}
    assert names <= set(parts.__all__)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError):
        _ = sidestream.Nonsense  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "statement",
    [
        "import sidestream",
        "from sidestream import ChatMessage, WebSearch; from sidestream.parts import TextDelta",
        "from sidestream import Agent",
    ],
)
def test_import_loads_only_msgspec_and_standard_library(statement: str):
    program = (
        f"import sys; before = set(sys.modules); {statement}; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    # msgspec itself takes typing_extensions where it finds it.
    allowed = {"sidestream", "msgspec", "typing_extensions"} | sys.stdlib_module_names
    assert set(result.stdout.split()) <= allowed


@requirement("R106")
@pytest.mark.parametrize("part", [part for part, _ in SHORTEST], ids=lambda part: part.type)
def test_every_part_has_literal_type_and_round_trips(part: StreamPart) -> None:
    (tag,) = get_args(get_args(get_type_hints(type(part))["type"])[0])
    assert part.type == tag == json.loads(part.to_json())["type"]
    assert part_from_json(part.to_json()) == part
    assert part_from_json(part.to_json().encode()) == part


@requirement("R230")
def test_source_of_older_log_is_unchecked():
    old = part_from_json('{"type":"source","id":"s","kind":"url","url":"https://a.test/","verified":true}')
    assert isinstance(old, Source)
    assert (old.evidence.state, "evidence" in old.to_json()) == ("unchecked", False)
    checked = msgspec.structs.replace(
        old, evidence=Evidence("contradicted", "r", (ClaimCheck("unit", False, "d"),), (2, 5))
    )
    assert part_from_json(checked.to_json()) == checked
