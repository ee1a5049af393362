"""What a library showed of a scripted answer, judged by the markers that are found in what it yielded."""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.losses import probes
from bench.losses.libraries import Library
from sidestream.testing import Received

YES, RAW, NO, NOT_TRIED = "yes", "raw only", "no", "not tried"
_SHOWN = 120
_MISTAKES = {"TypeError", "AttributeError", "NameError", "KeyError", "AssertionError", "ImportError", "TimeoutError"}

Leaf = Sequence[Any]
"""Path, the class that holds it, value."""


@dataclass(frozen=True)
class Cell:
    """A verdict, a few words that qualify it, and what it was read from."""

    verdict: str
    evidence: str
    note: str = ""

    @property
    def text(self) -> str:
        return f"{self.verdict} ({self.note})" if self.note else self.verdict


@dataclass(frozen=True)
class Observation:
    """What one library yielded for one probe, and the requests that the provider received."""

    library: Library
    events: list[dict[str, Any]]
    results: list[dict[str, Any]]
    error: str | None
    warnings: list[str]
    is_loop_over: bool
    requests: list[Received]

    def is_own(self, leaf: Leaf) -> bool:
        """True if the library's own type holds this value, not the vendor's."""
        path, owner, _ = leaf
        return owner.partition(".")[0] == self.library.own and not any(
            marker in path or marker in owner for marker in self.library.raw
        )

    def found(self, leaves: Iterable[Leaf], missing: str) -> Cell:
        """Typed if one of these values is, raw if there is any."""
        known = list(leaves)
        own = [leaf for leaf in known if self.is_own(leaf)]
        if known:
            return Cell(YES if own else RAW, _shown((own or known)[0]))
        return self.absent(missing)

    def absent(self, evidence: str, note: str = "") -> Cell:
        """Not shown; not tried, if the library was called in a wrong way, which says nothing about it."""
        if (self.error or "").partition(":")[0] in _MISTAKES:
            return Cell(NOT_TRIED, f"{evidence}{self._trouble}")
        return Cell(NO, f"{evidence}; {self.kinds}{self._trouble}", note)

    @property
    def kinds(self) -> str:
        """The classes that the loop yielded."""
        names = dict.fromkeys(event["type"].rpartition(".")[2] for event in self.events)
        return f"the loop yielded {len(self.events)} objects: {', '.join(names) or 'none'}"

    @property
    def _trouble(self) -> str:
        said = [self.error or "", *dict.fromkeys(text for text in self.warnings if "not yet implemented" in text)]
        return "".join(f"; {text[:240]}" for text in said if text)


def _shown(leaf: Leaf) -> str:
    path, owner, value = leaf
    text = str(value).replace("\n", "\\n")
    return f"{path} = {text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''} (held by {owner})"


def _holding(objects: list[dict[str, Any]], *markers: str | bytes) -> list[Leaf]:
    """The values in which one of the markers occurs, bytes also as base64."""
    texts = [marker if isinstance(marker, str) else base64.b64encode(marker).decode() for marker in markers]
    texts += [marker.decode() for marker in markers if isinstance(marker, bytes) and marker.isascii()]
    leaves = [leaf for each in objects for leaf in each["leaves"]]
    return [leaf for leaf in leaves if isinstance(leaf[2], str) and any(text in leaf[2] for text in texts)]


def _stages(observation: Observation) -> Cell:
    """Each stage is the end of a value of an object that names the call."""
    of_call = [event for event in observation.events if _holding([event], probes.SEARCH_ID)]
    stages = {stage: _ending(of_call, stage) for stage in probes.STAGES}
    missing = [stage for stage, leaves in stages.items() if not leaves]
    if not missing:
        verdicts = [observation.found(leaves, "") for leaves in stages.values()]
        return min(verdicts, key=lambda cell: cell.verdict == YES)
    shown = [stage for stage in probes.STAGES if stage not in missing]
    note = "start and end of the call" if len(of_call) > 1 else "end of the call" if of_call else ""
    evidence = f"stages of the call in the stream: {', '.join(shown) or 'none'}; objects that name it: {len(of_call)}"
    return observation.absent(evidence, note)


_STATUS = (".stage", ".provider_stage", ".status")


def _ending(objects: list[dict[str, Any]], stage: str) -> list[Leaf]:
    leaves = [leaf for each in objects for leaf in each["leaves"] if isinstance(leaf[2], str)]
    exact = [leaf for leaf in leaves if leaf[2].endswith(f"web_search_call.{stage}")]
    # In doubt for the library: the status of the call's item counts as a stage too.
    return exact + [
        leaf for leaf in leaves if leaf[2] == stage and leaf[0].endswith((".stage", ".provider_stage", ".status"))
    ]


def _code(observation: Observation) -> Cell:
    early = [event for event in observation.events if not _holding([event], probes.LAST_CODE)]
    if parts := _holding(early, probes.FIRST_CODE):
        return observation.found(parts, "")
    whole = _holding(observation.events, probes.LAST_CODE)
    return observation.absent("no object has a part of the code", "whole code at the end" if whole else "")


def _previews(observation: Observation) -> Cell:
    return observation.found(_holding(observation.events, probes.PREVIEW), "the bytes of the preview are in no object")


def _citations(observation: Observation) -> Cell:
    """The page and both ends of its span, in the result; typed if each of them is."""
    leaves = [leaf for each in observation.results for leaf in each["leaves"]]
    wanted = {
        marker: [leaf for leaf in leaves if leaf[2] == marker] for marker in (probes.PAGE, probes.START, probes.END)
    }
    if missing := [str(marker) for marker, found in wanted.items() if not found]:
        return observation.absent(f"not in the result: {', '.join(missing)}")
    return min((observation.found(found, "") for found in wanted.values()), key=lambda cell: cell.verdict == YES)


def _file(observation: Observation) -> Cell:
    cell = observation.found(_holding(observation.results, probes.FILE), "the bytes of the file are not in the result")
    if cell.verdict == NO and (ids := _holding(observation.results, probes.FILE_ID)):
        downloads = sum("/containers/" in request.path for request in observation.requests)
        evidence = f"the bytes of the file are not in the result, only {_shown(ids[0])}; the library downloaded"
        return Cell(NO, f"{evidence} {downloads} files", "its id")
    return cell


def _cut(observation: Observation) -> Cell:
    if observation.error is None:
        ends = [_shown(leaf) for leaf in _holding(observation.results, probes.HALF)[:1]]
        return Cell(NO, "; ".join(["the loop ended as for a complete answer", *ends]))
    if not _holding(observation.events, probes.HALF[:5]):
        return Cell(NOT_TRIED, f"failed before any text: {observation.error}")
    return Cell(YES, observation.error, "after the loop" if observation.is_loop_over else "")


def _approval(observation: Observation) -> Cell:
    visible = observation.found(_holding(observation.events, probes.APPROVAL_ID), "the request is in no object")
    if visible.verdict not in (YES, RAW):
        return visible
    if not any(probes.is_approved(request) for request in observation.requests):
        return Cell(NO, f"{visible.evidence}; but no approval reached the provider", "visible, no answer")
    how = "the library's API" if observation.library.has_approval_api else "the vendor's JSON"
    verdict = YES if observation.library.has_approval_api else RAW
    return Cell(verdict, f"{visible.evidence}; the approval reached the provider, through {how}")


def _unknown(observation: Observation) -> Cell:
    """Nobody can have a type for it, so it counts as shown in any form."""
    cell = observation.found(_holding(observation.events, probes.UNKNOWN_MARKER), "it is in no object")
    return Cell(YES if cell.verdict == RAW else cell.verdict, cell.evidence)


JUDGES: dict[str, Callable[[Observation], Cell]] = {
    "stages": _stages,
    "code": _code,
    "previews": _previews,
    "citations": _citations,
    "file": _file,
    "broken": _cut,
    "ended": _cut,
    "approval": _approval,
    "unknown": _unknown,
}
