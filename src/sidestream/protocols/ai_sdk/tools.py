"""Tool calls, their results and approvals as chunks of the UI message stream."""

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.protocols.ai_sdk.content import UrlOf, data_part, error_text, filled, is_denial, with_urls
from sidestream.results.tool_labels import tool_label
from sidestream.results.tool_runs import ToolFolds, ToolRun
from sidestream.stream import parts
from sidestream.tools.approvals import PendingApproval, digest_of

Chunk = JsonObject

AGAIN = "#"
"""Stands between the id of a call and its step, on the page, if a call of an earlier step has that id."""
MAX_READ = 20
"""Sources that an approval names as read before."""


class ToolChunks:
    """The calls of one message. A call keeps the first id that it was known by."""

    def __init__(self, url_of: UrlOf | None, approval_s: float | None = None) -> None:
        self.provider = "provider"
        """Who runs hosted tools."""
        self.at: float | None = None
        """Seconds since the run began."""
        self.seq: int | None = None
        """The number of the record that is encoded."""
        self.now: float | None = None
        """Seconds since 1970."""
        self._url_of = url_of
        self._approval_s = approval_s
        self._folds = ToolFolds(0)
        self._runs: dict[str, ToolRun] = {}
        """Call → its state when it was last encoded."""
        self._agents: dict[str, JsonObject] = {}
        """Call → what is known of the agent that runs as its tool."""
        self._first: dict[str, int] = {}
        """Call → the number of the record with which it began."""
        self._inputs: dict[str, tuple[parts.ToolInputStart, list[str]]] = {}
        """Inputs that are open."""
        self._ids: dict[str, str] = {}
        """Call id → the id under which the page knows the newest call with it."""
        self._keys: dict[str, tuple[int, str]] = {}
        """Id on the page → the record that has it."""
        self._names: dict[str, tuple[str, str]] = {}
        """Call id → name and key of its tool."""
        self._requests: dict[str, parts.ToolApprovalRequest] = {}
        self._described: dict[str, Chunk] = {}
        """Approval id → its data part."""
        self._shown: dict[str, str] = {}
        """Call → the pending approval that its part names: a part has one, a call may have several."""
        self._pending: dict[str, PendingApproval] = {}
        self._asked: dict[str, float] = {}
        """Approval id → since when it is pending, in seconds since 1970."""
        self._decided: set[str] = set()
        self._denied: set[str] = set()
        """Denied calls, by their ids on the page."""
        self._allowed: set[str] = set()
        """Allowed calls, by their ids on the page."""

    def id_of(self, call_id: str) -> str:
        """The id under which the page knows a call."""
        return self._ids.get(call_id, call_id)

    def states(self, part: parts.StreamPart) -> list[Chunk]:
        """The states of the calls that a part changes."""
        out: list[Chunk] = []
        for run in self._folds.runs.feed(part, self.at):
            self._ids[run.call_id] = self._page_id(run)
            known = self._runs.get(run.call_id)
            self._runs[run.call_id] = run
            if known is None or known.key != run.key or not run.is_over or not known.has_ended:
                out.append(self._state(run))  # Else only its end has come, which its status has told.
        return out

    def _is_continued(self, call_id: str) -> bool:
        """Whether a call that waited in an earlier step is made now; the page has it already."""
        run = self._runs.get(call_id)
        return run is not None and run.step < self._folds.runs.step

    def _page_id(self, run: ToolRun) -> str:
        """The first id that a call was known by; with its step, if a call of an earlier step has it."""
        is_first = self._keys.setdefault(run.id, run.key) == run.key
        return run.id if is_first else f"{run.id}{AGAIN}{run.step}"

    def agent(self, call_id: str, facts: JsonObject) -> list[Chunk]:
        """The state of a call whose tool is an agent, with what is known of its run."""
        self._agents[call_id] = facts
        return self._again(call_id)

    def cut_off(self) -> list[Chunk]:
        """The states of the calls that a stopped run leaves without a result."""
        return self.states(parts.Finish("error", parts.Usage()))

    def input_start(self, part: parts.ToolInputStart) -> list[Chunk]:
        """An input begins."""
        self._folds.code.feed(part)
        states = self.states(part)
        if self._is_continued(part.id):
            return states
        self._inputs[part.id] = (part, [])
        return [_input_start(part, self.id_of(part.id)), *states]

    def input_delta(self, part: parts.ToolInputDelta) -> list[Chunk]:
        """An input grows."""
        known = self._inputs.get(part.id)
        if known is None:
            return self._code(part, part.id)
        known[1].append(part.delta)
        return [_input_delta(self.id_of(part.id), part.delta), *self._code(part, part.id)]

    def input_end(self, part: parts.ToolInputEnd) -> list[Chunk]:
        """An input is complete; the call follows."""
        self._folds.code.feed(part)
        self._inputs.pop(part.id, None)
        return self.states(part)

    def call(self, part: parts.ToolCall) -> list[Chunk]:
        """A tool is called."""
        states = self.states(part)
        self._names[part.id] = (part.name, part.tool)
        if self._is_continued(part.id):
            return states
        chunk = filled(
            type="tool-input-available",
            toolCallId=self.id_of(part.id),
            toolName=part.name,
            input=with_urls(part.input, self._url_of),
            providerExecuted=part.provider_executed or None,
        )
        if part.input_error is not None:
            chunk |= {"type": "tool-input-error", "input": part.input_text or "", "errorText": part.input_error}
        return [*self._code(part, part.id), chunk, *states]

    def event(self, part: parts.ToolEvent) -> list[Chunk]:
        """A tool is on its way."""
        return [] if self._folds.runs.is_silent(part) else self.states(part)

    def result(self, part: parts.ToolResult) -> list[Chunk]:
        """A result or a preview."""
        states = self.states(part)
        call, executed = self.id_of(part.id), part.provider_executed or None
        if call in self._denied:
            return states
        if is_denial(part):
            self._denied.add(call)
            return [*_refused(call, error_text(part)), *self._again(part.id)]
        if part.is_error and not part.preliminary:
            chunk = filled(
                type="tool-output-error", toolCallId=call, errorText=error_text(part), providerExecuted=executed
            )
            return [chunk, *states]
        preliminary = part.preliminary or None
        chunk = filled(
            type="tool-output-available", toolCallId=call, providerExecuted=executed, preliminary=preliminary
        )
        chunk["output"] = with_urls(part.result, self._url_of)
        return [chunk, *states]

    def request(self, part: parts.ToolApprovalRequest, read: list[str]) -> list[Chunk]:
        """A call waits for a decision; `read` is what the run has read before."""
        if part.is_external:
            return self.states(part)  # The client executes it: there is nothing to approve.
        self._requests[part.approval_id] = part
        if self.now is not None:
            self._asked.setdefault(part.approval_id, self.now)
        out = [self._approval(part, read), *self.states(part)]
        if self._shown.setdefault(part.id, part.approval_id) == part.approval_id:
            request = filled(
                type="tool-approval-request",
                approvalId=part.approval_id,
                toolCallId=self.id_of(part.id),
                reason=self._origin(part),
                signature=_digest(part),
            )
            out.insert(0, request)
        return out

    def pending(self, approval: PendingApproval, at: float | None, read: list[str]) -> list[Chunk]:
        """What waits for a person, as the turn holds it; the request comes before or after it."""
        self._pending[approval.approval_id] = approval
        if at is not None:
            self._asked[approval.approval_id] = at
        request = self._requests.get(approval.approval_id)
        return [] if request is None else [self._approval(request, read)]

    def decided(
        self, approval_id: str, is_approved: bool, reason: str | None, *, is_automatic: bool = False
    ) -> list[Chunk]:
        """A decision on a call, of a person or of a policy; one that is denied has no other result."""
        request = self._requests.get(approval_id)
        if approval_id in self._decided or request is None:
            return []
        self._decided.add(approval_id)
        out: list[Chunk] = []
        if self._shown.get(request.id) == approval_id:
            del self._shown[request.id]
            response = filled(approvalId=approval_id, approved=is_approved, reason=reason or None)
            out.append({"type": "tool-approval-response", **response})
        if (described := self._described.pop(approval_id, None)) is not None:
            decided = filled(approved=is_approved, automatic=is_automatic or None)
            out.append({**described, "data": {**described["data"], **decided}})
        if not is_approved and "form" not in _marks(request) and request.name in self._names.get(request.id, ()):
            # Else an agent that runs as a tool or a server asked; it continues without the call or the answers.
            call = self.id_of(request.id)
            self._denied.add(call)
            out += [{"type": "tool-output-denied", "toolCallId": call}, *self._again(request.id)]
        elif is_approved and (run := self._runs.get(request.id)) is not None and run.provider_executed:
            # Only a request of the provider's: the call itself follows.
            self._allowed.add(self.id_of(request.id))
            out += self._again(request.id)
        return out

    def end_step(self) -> None:
        """Inputs do not outlive their step."""
        self._inputs = {}

    def reopened(self) -> list[Chunk]:
        """The open inputs, from their beginning."""
        return [
            chunk
            for start, deltas in self._inputs.values()
            for chunk in (
                _input_start(start, self.id_of(start.id)),
                _input_delta(self.id_of(start.id), "".join(deltas)),
            )
        ]

    def _code(self, part: parts.StreamPart, call_id: str) -> list[Chunk]:
        code = self._folds.code.feed(part)
        if not code:
            return []
        return [{"type": "data-code", "data": {"call": self.id_of(call_id), "delta": code}, "transient": True}]

    def _state(self, run: ToolRun) -> Chunk:
        seconds, page_id = run.seconds, self._page_id(run)
        if self.seq is not None:
            self._first.setdefault(page_id, self.seq)
        return data_part(
            "tool",
            page_id,
            call=page_id,
            tool=run.tool,
            name=run.name,
            label=self._label(run, page_id),
            where=self.provider if run.provider_executed else "here",
            status=run.status,
            step=run.step,
            stage=run.stages[-1].name if run.stages else None,
            queries=list(run.queries) or None,
            pages=run.result_count,
            snippet=run.snippet or None,
            previews=run.previews or None,
            server=run.server,
            grant=run.grant,
            exit=run.exit_code,
            error=run.error,
            agent=self._agents.get(run.call_id),
            ms=None if seconds is None else round(seconds * 1000),
            seq=self._first.get(page_id),
        )

    def _label(self, run: ToolRun, page_id: str) -> str:
        return tool_label(
            run,
            is_agent=run.call_id in self._agents,
            is_allowed=page_id in self._allowed,
            is_denied=page_id in self._denied,
        )

    def _again(self, call_id: str) -> list[Chunk]:
        """The state of a call, of which more is known than its parts say."""
        run = self._runs.get(call_id)
        return [] if run is None else [self._state(run)]

    def _origin(self, part: parts.ToolApprovalRequest) -> str | None:
        pending = self._pending.get(part.approval_id)
        return pending.provenance if pending is not None else jsontext.text_in(_marks(part), "provenance")

    def _expires(self, approval_id: str) -> float | None:
        asked = self._asked.get(approval_id)
        return None if asked is None or self._approval_s is None else asked + self._approval_s

    def _approval(self, part: parts.ToolApprovalRequest, read: list[str]) -> Chunk:
        pending = self._pending.get(part.approval_id)
        chunk = data_part(
            "approval",
            part.approval_id,
            approval=part.approval_id,
            call=self.id_of(part.id),
            tool=part.name,
            input=with_urls(part.input, self._url_of),
            server=part.server_label,
            digest=_digest(part),
            expires=self._expires(part.approval_id),
            form=with_urls(_marks(part).get("form"), self._url_of),
            origin=self._origin(part),
            checks=_marks(part).get("safety_checks"),
            remote=(pending is not None and pending.is_remote) or None,
            remember=(pending is not None and pending.can_remember) or None,
            read=read[:MAX_READ] or None,
        )
        self._described[part.approval_id] = chunk
        return chunk


def _refused(call: str, reason: str) -> list[Chunk]:
    """A policy denied the call: the protocol wants an approval that says so."""
    approval = f"policy-{call}"
    return [
        {"type": "tool-approval-request", "approvalId": approval, "toolCallId": call, "isAutomatic": True},
        {"type": "tool-approval-response", "approvalId": approval, "approved": False, "reason": reason},
        {"type": "tool-output-denied", "toolCallId": call},
    ]


def _digest(part: parts.ToolApprovalRequest) -> str:
    """What a decision on the call must name."""
    form = _marks(part).get("form")
    return digest_of(part.name, part.input, jsontext.as_object(form) if form is not None else None)


def _marks(part: parts.ToolApprovalRequest) -> JsonObject:
    return jsontext.as_object((part.provider_metadata or {}).get("sidestream"))


def _input_start(part: parts.ToolInputStart, call: str) -> Chunk:
    executed = part.provider_executed or None
    return filled(type="tool-input-start", toolCallId=call, toolName=part.name, providerExecuted=executed)


def _input_delta(call: str, delta: str) -> Chunk:
    return {"type": "tool-input-delta", "toolCallId": call, "inputTextDelta": delta}
