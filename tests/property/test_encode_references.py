"""A request refers to what its server gave, or to what stands before in the request itself, and to nothing else.

Histories are made of answers of any provider, one after the other, whole or mutated, and edited afterwards; each is
continued with any provider, at the server that gave the ids and at another one.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import Struct
from msgspec.structs import replace

from conftest import RECORDINGS
from hostile.corpus import events_of, recorded, scripted, with_events
from hostile.mutations import MUTATIONS
from requirements import requirement
from sidestream import ChatMessage, CodeInterpreter, ConfigurationError, jsontext
from sidestream.messages.fold import MessageFold
from sidestream.messages.message import ApprovalPart, TextPart, ToolResultPart
from sidestream.parts import ToolApprovalRequest, ToolCall
from sidestream.providers.google.encode.contents import UNSIGNED
from sidestream.providers.protocol import ChatModel, ModelRequest, Settings
from sidestream.providers.registry import find_provider
from sidestream.replay.recording import Exchange
from support.followups import MODELS, NEXT, QUESTION, TOOL, UNSTORED, LoggedFolds, decoded

LARGEST = 60_000
OTHER_SERVER = "https://elsewhere.example/v1"
APIS = sorted({*MODELS} - {"open-responses"})


class Wire(Struct, frozen=True):
    """Which fields of a request are ids, by type of the object that holds them (empty: any)."""

    given: frozenset[tuple[str, str]]
    """What only the server can have made: it looks it up, or has signed or encrypted it."""
    answers: frozenset[tuple[str, str]]
    """What refers to a call in the same request, or in an answer that the server holds."""
    defines: frozenset[tuple[str, str]]
    """What a later field may refer to."""
    holder: str = ""
    """The field that names the answer that the server holds."""


def pairs(*names: str) -> frozenset[tuple[str, str]]:
    """`type.field`, or `.field` for objects of any type."""
    return frozenset((kind, field) for kind, _, field in (name.rpartition(".") for name in names))


_RESPONSES = Wire(
    given=pairs(
        ".previous_response_id",
        "code_interpreter_call.container_id",
        "code_interpreter.container",
        "container_reference.container_id",
        ".encrypted_content",
        ".fingerprint",
        "item_reference.id",
    ),
    answers=pairs(
        "function_call_output.call_id",
        "custom_tool_call_output.call_id",
        "local_shell_call_output.call_id",
        "local_shell_call_output.id",
        "shell_call_output.call_id",
        "apply_patch_call_output.call_id",
        "computer_call_output.call_id",
        "program_output.call_id",
        "tool_search_output.call_id",
        ".approval_request_id",
        ".caller_id",
    ),
    defines=pairs(
        "function_call.call_id",
        "custom_tool_call.call_id",
        "local_shell_call.call_id",
        "shell_call.call_id",
        "apply_patch_call.call_id",
        "computer_call.call_id",
        "program.call_id",
        "tool_search_call.call_id",
        "mcp_approval_request.id",
    ),
    holder="previous_response_id",
)
WIRES = {
    "openai-responses": _RESPONSES,
    "openai-chat": Wire(
        given=frozenset(), answers=pairs(".tool_call_id"), defines=pairs("function.id", "custom.id")
    ),
    "anthropic": Wire(
        given=pairs(
            ".container", "server_tool_use.id", "mcp_tool_use.id", ".signature", ".encrypted_content",
            ".encrypted_index", ".encrypted_stdout", "redacted_thinking.data", "container_upload.file_id",
        ),
        answers=pairs(".tool_use_id", ".tool_id"),
        defines=pairs("tool_use.id", "server_tool_use.id", "mcp_tool_use.id"),
    ),
    "google": Wire(given=pairs(".thoughtSignature", ".id"), answers=frozenset(), defines=frozenset()),
    "google-interactions": Wire(
        given=pairs(".previous_interaction_id", ".signature"),
        answers=pairs(".call_id"),
        defines=pairs(
            "function_call.id", "code_execution_call.id", "google_search_call.id", "url_context_call.id",
            "file_search_call.id", "mcp_server_tool_call.id", "google_maps_call.id",
        ),
        holder="previous_interaction_id",
    ),
}  # fmt: skip

OPAQUE = frozenset({"input", "args", "arguments", "output", "response", "result", "parameters", "schema"})
"""Fields below the first level whose content is the tool's or the model's, not the API's."""


class Answer(Struct, frozen=True):
    """An answer that a conversation may hold."""

    api: str
    name: str
    exchange: Exchange

    def __repr__(self) -> str:
        return f"{self.api}/{self.name}"


@cache
def answers() -> list[Answer]:
    made = [Answer(api, "scripted", exchange) for api, exchange in scripted().items()]
    return made + [
        Answer(api, name, exchange)
        for api, found in recorded(RECORDINGS).items()
        for name, exchange in found.items()
        if len(exchange.body_bytes()) < LARGEST
    ]


def of(api: str) -> str:
    """Open Responses is the same API."""
    return "openai-responses" if api == "open-responses" else api


def model_at(api: str, base_url: str | None = None, *, is_other: bool = False) -> ChatModel:
    name, model = MODELS[api]
    return find_provider(name).chat_model(model + "-2" * is_other, Settings(api_key="k", base_url=base_url))


def strings_in(value: Any) -> Iterator[str]:
    """Every text and number in a value."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from strings_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings_in(inner)
    elif value is not None:
        yield str(value)


def ids_in(exchange: Exchange) -> set[str]:
    """What a server gave in an answer; signatures may come in pieces."""
    found: set[str] = set()
    pieces: dict[Any, str] = {}
    for event in events_of(exchange):
        try:
            value = jsontext.loads(event)
        except (ValueError, RecursionError):
            continue
        found |= set(strings_in(value))
        if isinstance(value, dict) and isinstance(delta := value.get("delta"), dict) and "signature" in delta:
            place = json.dumps(value.get("index"))
            pieces[place] = pieces.get(place, "") + str(delta["signature"])
            found.add(pieces[place])
    return found


class Conversation(Struct):
    """A history, what its servers gave, and the log that holds the rest."""

    messages: list[ChatMessage]
    given: dict[str, set[str]]
    log: LoggedFolds
    is_logged: bool


def converse(random: Random, chosen: list[Answer], ways: list[str], *, is_logged: bool, store: bool) -> Conversation:
    """The answers one after the other, their calls answered, their requests for approval approved."""
    talk = Conversation([QUESTION], {}, LoggedFolds(), is_logged)
    for answer, way in zip(chosen, ways, strict=True):
        exchange = answer.exchange
        if way:
            events = events_of(exchange)
            exchange = with_events(exchange, MUTATIONS[way](random, events, [events]))
        parts = decoded(exchange, model_at(answer.api), talk.messages, store=store)
        fold = talk.log.fold() if is_logged else MessageFold()
        for part in parts:
            talk.messages += fold.feed(part)
        calls = [part for part in parts if isinstance(part, ToolCall) and not part.provider_executed]
        requests = [part for part in parts if isinstance(part, ToolApprovalRequest)]
        results = [ToolResultPart(call.id, call.name, "done") for call in calls]
        replies = (*(ApprovalPart(request.approval_id, True) for request in requests), *results)
        talk.messages += [ChatMessage("tool", replies)] if replies else []
        talk.messages += [NEXT] if random.random() < 0.5 else []
        talk.given.setdefault(of(answer.api), set()).update(ids_in(exchange))
    return talk


def edited(random: Random, messages: list[ChatMessage], edit: str) -> list[ChatMessage]:
    """The history after a user changed it."""
    place = random.randrange(len(messages))
    message = messages[place]
    before, after = messages[:place], messages[place + 1 :]
    match edit:
        case "remove":
            return [*before, *after]
        case "repeat":
            return [*before, message, *messages[random.randrange(place + 1) :]]
        case "move":
            return [*after[:1], *before, message, *after[1:]]
        case "reword":
            parts = [replace(p, text="Else.") if isinstance(p, TextPart) else p for p in message.parts]
            return [*before, replace(message, parts=tuple(parts)), *after]
        case "cut parts":
            return [*before, replace(message, parts=message.parts[: random.randrange(len(message.parts) + 1)]), *after]
        case _:
            return messages


EDITS = ["", "remove", "repeat", "move", "reword", "cut parts"]


def references(value: Any, opaque: frozenset[str] = frozenset()) -> Iterator[tuple[str, str, str]]:
    """(type, field, text) of every field of a request, in its order."""
    if isinstance(value, dict):
        kind = str(value.get("type", ""))
        for key, inner in value.items():
            if isinstance(inner, str):
                yield kind, key, inner
            elif key not in opaque:
                yield from references(inner, OPAQUE)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner, OPAQUE)


def foreign(api: str, body: Any, given: set[str]) -> list[str]:
    """The references of a request to what neither its server gave nor itself holds."""
    wire = WIRES[api]
    known = set(given) if wire.holder and wire.holder in body else set[str]()
    found: list[str] = []
    for kind, field, text in references(body):
        is_given = bool({(kind, field), ("", field)} & wire.given) and text != UNSIGNED
        is_answer = bool({(kind, field), ("", field)} & wire.answers)
        if (is_given and text not in given) or (is_answer and text not in known):
            found.append(f"{kind}.{field} = {text[:60]}")
        if {(kind, field), ("", field)} & wire.defines:
            known.add(text)
    return found


@requirement("R42", "R43", "R75")
@pytest.mark.parametrize("api", APIS)
@settings(max_examples=30)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_request_refers_only_to_ids_of_its_server(api: str, data: st.DataObject, random: Random) -> None:
    own = [answer for answer in answers() if of(answer.api) == api]
    count = data.draw(st.integers(1, 4))
    chosen = data.draw(st.lists(st.sampled_from(own) | st.sampled_from(answers()), min_size=count, max_size=count))
    ways = data.draw(st.lists(st.sampled_from(["", "", *sorted(MUTATIONS)]), min_size=count, max_size=count))
    store, is_logged = data.draw(st.booleans()), data.draw(st.booleans())
    talk = converse(random, chosen, ways, is_logged=is_logged, store=store)
    history = talk.messages
    for edit in data.draw(st.lists(st.sampled_from(EDITS), max_size=3)):
        history = edited(random, history, edit) or [QUESTION]
    request = ModelRequest(
        messages=(*history, NEXT),
        tools=(TOOL,),
        server_side_tools=data.draw(st.sampled_from([(), (CodeInterpreter(reuse_container=True),)])),
        without=data.draw(st.sampled_from([frozenset(), frozenset({"session"})])),
        options=data.draw(st.sampled_from([None, UNSTORED.get(api)])),
    )
    is_elsewhere = data.draw(st.booleans())
    model = model_at(api, OTHER_SERVER if is_elsewhere else None, is_other=data.draw(st.booleans()))
    try:
        encoded = talk.log.encode(model, request) if is_logged else model.encode(request)
    except ConfigurationError:
        return
    given_here = set[str]() if is_elsewhere else talk.given.get(api, set())
    assert foreign(api, jsontext.loads(encoded.call.body or b""), given_here) == []


@requirement("R42", "R43", "R75")
@pytest.mark.parametrize(
    ("api", "name"),
    [
        ("anthropic", "v-anthropic-programmatic-tool-calling.1-stream#0"),
        ("openai-responses", "v-programmatic-tool-calling.2-stream#0"),
        ("openai-responses", "v-programmatic-tool-calling.3-stream#0"),
    ],
)
def test_calls_and_results_of_missing_program_do_not_name_it(api: str, name: str, recordings: Path) -> None:
    chosen = [answer for answer in answers() if (answer.api, answer.name) == (api, name)]
    talk = converse(Random(0), chosen, [""], is_logged=False, store=False)
    encoded = model_at(api).encode(ModelRequest(messages=(*talk.messages, NEXT), tools=(TOOL,)))
    body = jsontext.loads(encoded.call.body or b"")
    assert foreign(api, body, talk.given[api]) == []
