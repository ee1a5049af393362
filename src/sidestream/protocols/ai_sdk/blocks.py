"""Conversion of text, reasoning and sources to chunks of the UI message stream."""

from collections.abc import Iterable

from sidestream.jsontext import JsonObject, as_object
from sidestream.parts import ReasoningDelta, ReasoningEnd, ReasoningStart, Source, TextDelta, TextEnd, TextStart
from sidestream.protocols.ai_sdk.content import evidence_of, filled, source_chunk, source_of, utf16
from sidestream.results.citations import claim_span
from sidestream.store.records import CheckedClaim

Chunk = JsonObject


class _Block:
    """An open text or reasoning block, and its text so far."""

    __slots__ = ("deltas", "id", "is_text", "name")

    def __init__(self, name: str, *, is_text: bool) -> None:
        self.name = name
        """Name, unique in the message. A client that rejoins gets the block again with another `id`."""
        self.id = name
        self.is_text = is_text
        self.deltas: list[str] = []

    @property
    def kind(self) -> str:
        return "text" if self.is_text else "reasoning"

    def start(self) -> Chunk:
        metadata = {"sidestream": {"block": self.name}}
        return {"type": f"{self.kind}-start", "id": self.id, "providerMetadata": metadata}

    def delta(self, text: str) -> Chunk:
        return {"type": f"{self.kind}-delta", "id": self.id, "delta": text}


class BlockChunks:
    """The blocks of one message, and the sources they cite."""

    def __init__(self) -> None:
        self.step = 0
        """Index of the current step."""
        self._made: dict[tuple[int, str], tuple[Source, Chunk]] = {}
        """Chunks of the sources, by step and source id."""
        self.read: dict[str, None] = {}
        """URLs of all sources so far."""
        self._count = 0
        self._open: dict[tuple[bool, str], _Block] = {}
        self._ended: dict[str, tuple[str, str]] = {}
        """Name and text of the step's finished text blocks, by our id."""
        self._sources: dict[str, dict[str, Source]] = {}
        """Sources of the step's text blocks, by block id and source id."""
        self._said: dict[tuple[int, str], str] = {}
        """Texts of finished blocks, by step and our id."""
        self._unsent: dict[str, list[Source]] = {}
        """Sources whose spans reach beyond the text so far, by block id."""

    def start(self, part: TextStart | ReasoningStart) -> list[Chunk]:
        """Begin a block."""
        is_text = isinstance(part, TextStart)
        self._count += 1
        block = self._open[is_text, part.id] = _Block(f"{'t' if is_text else 'r'}{self._count}", is_text=is_text)
        return [block.start()]

    def delta(self, part: TextDelta | ReasoningDelta) -> list[Chunk]:
        """Return the chunk of a delta."""
        block = self._open[type(part) is TextDelta, part.id]
        block.deltas.append(part.delta)
        return [block.delta(part.delta)]

    def end(self, part: TextEnd | ReasoningEnd) -> list[Chunk]:
        """End a block.

        A final text that differs from the deltas is appended, or sent as the same block again.
        """
        block = self._open.pop((isinstance(part, TextEnd), part.id))
        so_far = "".join(block.deltas)
        out: list[Chunk] = []
        end: Chunk = {"type": f"{block.kind}-end", "id": block.id}
        text = so_far if part.text is None else part.text
        if text != so_far and text.startswith(so_far):
            out.append(block.delta(text[len(so_far) :]))
        elif text != so_far and not block.is_text:
            end["providerMetadata"] = {"sidestream": {"block": block.name, "text": text}}
        elif text != so_far:
            # A stream cannot retract text. UIs that know the block's name show only the final text.
            metadata = {"sidestream": {"block": block.name, "text": text}}
            out.append({**end, "providerMetadata": metadata})
            block.id = end["id"] = f"{block.name}="
            out += [{**block.start(), "providerMetadata": metadata}, *([block.delta(text)] if text else ())]
        if block.is_text:
            self._ended[part.id] = (block.name, text)
            self._said[self.step, part.id] = text
            out += [self._source(source) for source in self._unsent.pop(part.id, ())]
            if cited := self._sources.get(part.id):
                end["citations"] = [_citation(source, text) for source in cited.values()]
        return [*out, end]

    def source(self, part: Source) -> list[Chunk]:
        """Return the chunk of a source, or hold it back until the text it supports has arrived."""
        if part.url is not None:
            self.read[part.url] = None
        if part.text_id is None:
            return [source_chunk(source_of(part))]
        known = self._sources.setdefault(part.text_id, {})
        if known.get(part.id) == part:
            return []
        known[part.id] = part
        if len(self._text(part.text_id)[1]) < (part.end or 0):
            # Logs store a block's text slightly later than the parts that refer to it.
            self._unsent.setdefault(part.text_id, []).append(part)
            return []
        return [self._source(part)]

    def close(self) -> list[Chunk]:
        """End open blocks and emit the sources held back."""
        out: list[Chunk] = [{"type": f"{block.kind}-end", "id": block.id} for block in self._open.values()]
        out += [self._source(source) for sources in self._unsent.values() for source in sources]
        self._open, self._unsent = {}, {}
        return out

    def end_step(self) -> None:
        """Forget the step's blocks, because ids are unique within a step only."""
        self._open, self._ended, self._sources, self._unsent = {}, {}, {}, {}

    def reopened(self) -> list[Chunk]:
        """Return the starts of open blocks, with new ids."""
        for block in self._open.values():
            block.id = f"{block.name}+"
        return [block.start() for block in self._open.values()]

    def _text(self, text_id: str) -> tuple[str | None, str]:
        """Return the name of a block of this step, and its text so far."""
        block = self._open.get((True, text_id))
        if block is None:
            return self._ended.get(text_id, (None, ""))
        block.deltas = ["".join(block.deltas)]
        return block.name, block.deltas[0]

    def _source(self, part: Source) -> Chunk:
        name, text = self._text(part.text_id or "")
        chunk = source_chunk(source_of(part, _spans(part, text), name))
        self._made[self.step, part.id] = part, chunk
        return chunk

    def checked(self, claims: Iterable[CheckedClaim]) -> list[Chunk]:
        """Return the sources that a check of the finished turn was about, with what it established."""
        out: list[Chunk] = []
        for claim in claims:
            made = self._made.get((claim.step, claim.source))
            if made is None or made[0].url != claim.url:
                continue
            part, chunk = made
            said = self._said.get((claim.step, part.text_id or ""))
            if said is not None and said[slice(*claim_span(part, said))] != claim.text:
                continue  # Another turn of a provider whose source ids are the same in each turn.
            metadata = as_object(as_object(chunk.get("providerMetadata")).get("sidestream"))
            found = evidence_of(claim.evidence)
            if metadata.get("evidence") != found:
                chunk = {**chunk, "providerMetadata": {"sidestream": {**metadata, "evidence": found}}}
                self._made[claim.step, claim.source] = part, chunk
                out.append(chunk)
        return out


def _citation(part: Source, text: str) -> JsonObject:
    return filled(
        source=source_of(part, {name: at for name, at in _spans(part, text).items() if name.startswith("marker")}),
        startIndex=_unit(text, part.start),
        endIndex=_unit(text, part.end),
        citedText=part.cited_text,
    )


def _spans(part: Source, text: str) -> JsonObject:
    """Return a source's spans in its text: the provider's, the citing link's and those of the claim before it."""
    return {
        "start": _unit(text, part.start),
        "end": _unit(text, part.end),
        "markerStart": _unit(text, part.marker_start),
        "markerEnd": _unit(text, part.marker_end),
        "claimStart": _unit(text, part.claim_start),
        "claimEnd": _unit(text, part.claim_end),
    }


def _unit(text: str, index: int | None) -> int | None:
    return None if index is None or index < 0 else utf16(text, index)
