"""Conversion of tool calls, results and approvals to chunks of the UI message stream."""

from sidestream import jsontext, parts
from sidestream.jsontext import JsonObject
from sidestream.protocols.ai_sdk.content import UrlOf, data_part, error_text, filled, is_denial, with_urls
from sidestream.results.tool_labels import tool_label
from sidestream.results.tool_runs import NESTED, ToolFolds, ToolRun
from sidestream.tools.approvals import PendingApproval, digest_of

Chunk = JsonObject

AGAIN = "#"
"""Separator of a call's id and its step in the web UI, used if a call of an earlier step has the same id."""
MAX_READ = 20
"""Maximum number of sources that an approval lists as read before."""


class ToolChunks:
    """The tool calls of one message. A call keeps the first id that it was known by."""

    def __init__(self, url_of: UrlOf | None, approval_s: float | None = None) -> None:
        self.provider = "provider"
        """Name of the provider that runs hosted tools."""
        self.at: float | None = None
        """Seconds since the run began."""
        self.seq: int | None = None
        """Sequence number of the current record."""
        self.now: float | None = None
        """Current time, in seconds since 1970."""
        self._url_of = url_of
        self._approval_s = approval_s
        self._folds = ToolFolds(0)
        self._runs: dict[str, ToolRun] = {}
        """States of calls when they were last encoded, by call id."""
        self._agents: dict[str, JsonObject] = {}
        """Steps and cost of subagents, by call id."""
        self._first: dict[str, int] = {}
        """Sequence numbers of the records with which calls began, by UI id."""
        self._inputs: dict[str, tuple[parts.ToolInputStart, list[str]]] = {}
        """Incomplete inputs and their deltas, by call id."""
        self._ids: dict[str, str] = {}
        """UI ids of the newest calls, by call id."""
        self._keys: dict[str, tuple[int, str]] = {}
        """Keys of tool runs, by UI id."""
        self._names: dict[str, tuple[str, str]] = {}
        """Names and keys of tools, by call id."""
        self._requests: dict[str, parts.ToolApprovalRequest] = {}
        self._described: dict[str, Chunk] = {}
        """Data parts, by approval id."""
        self._shown: dict[str, str] = {}
        """Pending approvals named in the parts of calls, by call id. A part names one, but a call may have several."""
        self._pending: dict[str, PendingApproval] = {}
        self._asked: dict[str, float] = {}
        """Times of requests in seconds since 1970, by approval id."""
        self._decided: set[str] = set()
        self._denied: set[str] = set()
        """UI ids of denied calls."""
        self._allowed: set[str] = set()
        """UI ids of approved calls."""

    def id_of(self, call_id: str) -> str:
        """Return the id of a call in the web UI."""
        return self._ids.get(call_id, call_id)

    def knows(self, call_id: str) -> bool:
        """Return whether the call is one of this message, or of this subagent."""
        return call_id in self._names

    def states(self, part: parts.StreamPart) -> list[Chunk]:
        """Return the states of the calls that a part changes."""
        out: list[Chunk] = []
        for run in self._folds.runs.feed(part, self.at):
            self._ids[run.call_id] = self._page_id(run)
            known = self._runs.get(run.call_id)
            self._runs[run.call_id] = run
            if known is None or known.key != run.key or not run.is_over or not known.has_ended:
                out.append(self._state(run))  # Else only the end arrived, which the status implied.
        return out

    def _is_continued(self, call_id: str) -> bool:
        """Return whether a call that waited in an earlier step is made now, so that the UI has it already."""
        run = self._runs.get(call_id)
        return run is not None and run.step < self._folds.runs.step

    def _page_id(self, run: ToolRun) -> str:
        """Return the call's first id, with its step appended if a call of an earlier step has the same id."""
        is_first = self._keys.setdefault(run.id, run.key) == run.key
        return run.id if is_first else f"{run.id}{AGAIN}{run.step}"

    def agent(self, call_id: str, facts: JsonObject) -> list[Chunk]:
        """Return the state of a subagent's call, with the steps and cost of its run."""
        self._agents[call_id] = facts
        return self._again(call_id)

    def cut_off(self) -> list[Chunk]:
        """Return the states of calls that a stopped run leaves without a result."""
        return self.states(parts.Finish("error", parts.Usage()))

    def input_start(self, part: parts.ToolInputStart) -> list[Chunk]:
        """Begin an input, unless the call continues from an earlier step."""
        self._folds.code.feed(part)
        states = self.states(part)
        if self._is_continued(part.id):
            return states
        self._inputs[part.id] = (part, [])
        return [_input_start(part, self.id_of(part.id)), *states]

    def input_delta(self, part: parts.ToolInputDelta) -> list[Chunk]:
        """Return the chunks of an input delta."""
        known = self._inputs.get(part.id)
        if known is None:
            return self._code(part, part.id)
        known[1].append(part.delta)
        return [_input_delta(self.id_of(part.id), part.delta), *self._code(part, part.id)]

    def input_end(self, part: parts.ToolInputEnd) -> list[Chunk]:
        """End an input; its call follows."""
        self._folds.code.feed(part)
        self._inputs.pop(part.id, None)
        return self.states(part)

    def call(self, part: parts.ToolCall) -> list[Chunk]:
        """Return the chunks of a call."""
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
        """Return the state that a tool's progress changes, if any.

        Calls that a program or a subagent makes are shown as parts of its own call.
        """
        is_silent = self._folds.runs.is_silent(part) or part.provider_stage in NESTED
        return [] if is_silent else self.states(part)

    def result(self, part: parts.ToolResult) -> list[Chunk]:
        """Return the chunks of a result, a preview or a denial."""
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
        """Return the chunks of an approval request; `read` lists the URLs read before it."""
        if part.is_external:
            return self.states(part)  # The client executes the call without approval.
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
        """Add the turn's details of a pending approval, whose request may come before or after them."""
        self._pending[approval.approval_id] = approval
        if at is not None:
            self._asked[approval.approval_id] = at
        request = self._requests.get(approval.approval_id)
        return [] if request is None else [self._approval(request, read)]

    def decided(
        self, approval_id: str, is_approved: bool, reason: str | None, *, is_automatic: bool = False
    ) -> list[Chunk]:
        """Return the chunks of a user's or policy's decision, once per approval. A denied call has no other result."""
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
            # Otherwise a subagent or an MCP server asked, and it continues without the call or the answers.
            call = self.id_of(request.id)
            self._denied.add(call)
            out += [{"type": "tool-output-denied", "toolCallId": call}, *self._again(request.id)]
        elif is_approved and (run := self._runs.get(request.id)) is not None and run.provider_executed:
            # So far this is only the provider's request for approval; the call itself follows.
            self._allowed.add(self.id_of(request.id))
            out += self._again(request.id)
        return out

    def end_step(self) -> None:
        """Forget the step's unfinished inputs."""
        self._inputs = {}

    def reopened(self) -> list[Chunk]:
        """Return the open inputs, from their beginning."""
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
            stage=run.stages[-1].stage if run.stages else None,
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
        """Return the state of a call after a change that no part reports."""
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
    """Return the automatic approval and denial with which the protocol reports a policy's denial."""
    approval = f"policy-{call}"
    return [
        {"type": "tool-approval-request", "approvalId": approval, "toolCallId": call, "isAutomatic": True},
        {"type": "tool-approval-response", "approvalId": approval, "approved": False, "reason": reason},
        {"type": "tool-output-denied", "toolCallId": call},
    ]


def _digest(part: parts.ToolApprovalRequest) -> str:
    """Return the digest that a decision on the call must name."""
    form = _marks(part).get("form")
    return digest_of(part.name, part.input, jsontext.as_object(form) if form is not None else None)


def _marks(part: parts.ToolApprovalRequest) -> JsonObject:
    return jsontext.as_object((part.provider_metadata or {}).get("sidestream"))


def _input_start(part: parts.ToolInputStart, call: str) -> Chunk:
    executed = part.provider_executed or None
    return filled(type="tool-input-start", toolCallId=call, toolName=part.name, providerExecuted=executed)


def _input_delta(call: str, delta: str) -> Chunk:
    return {"type": "tool-input-delta", "toolCallId": call, "inputTextDelta": delta}
