"""The judgement of a claim about a passage, by rules alone."""

import re
from collections.abc import Iterable, Sequence

from sidestream.evidence import alignment, lexicon, quotes
from sidestream.evidence.alignment import Conflict
from sidestream.evidence.numbers import Day, Quantity, is_ambiguous, is_continental
from sidestream.evidence.tokens import UNSPACED, Sentence, Token, is_same, paragraphs, sentences, stems_of, tokens
from sidestream.evidence.verdict import CheckName, ClaimCheck, Evidence, EvidenceState

MAX_PASSAGE_CHARS = 1_000_000
"""Maximum characters of a passage that are compared."""
MAX_CLAIM_CHARS = 2000
_CANDIDATES = 6
"""Sentences that are compared word by word: those that share most with the claim."""
_PARAGRAPHS = 8
"""Paragraphs that are split into sentences: those that share most with the claim."""
_SCORED_WORDS = 6
"""Words of a claim that are looked for in each paragraph: its longest ones."""
_FORMAT_CHARS = 20_000
"""Characters of a passage that show its number format."""
_SEPARATOR = re.compile(r"(?<=[0-9])[.,' \u00a0\u202f](?=[0-9])")
_FRAME_WORDS = 4
"""Maximum words that say whose words are quoted. A claim that says more is compared as a whole."""
_NO_WORDS = "the claim has no words to compare"
_RIVALS = frozenset({"number", "date", "name"})
"""Checks whose conflict counts for nothing if another sentence of the source has the claimed value."""
_REPORTING = stems_of(lexicon.REPORTING)
_QUOTE_LIMITS = alignment.NEGATIONS | lexicon.words("only may might if unless allegedly reportedly")
_DOCUMENT = r"(?:report|document|article|source|study|text|passage|page|file|paper|manual|guide|website|site)"
_FRAME = re.compile(
    rf"\s*(?:according to (?:the|this|that) (?:[a-z]+ )?{_DOCUMENT},|the {_DOCUMENT} "
    r"(?:says|states|notes|reports|explains|shows|writes|adds|confirms|mentions)(?: that|:)?)\s+",
    re.IGNORECASE,
)
_JOINT = re.compile(r"[\s,;]*\b(?:and|but|while|whereas)\s+(?=\S)")
"""Matches the beginning of a claim that is the second part of a sentence."""
_ORDER: tuple[EvidenceState, ...] = ("quoted", "supported", "contradicted", "not-found")


def judge(claim: str, passage: str, quote: str | None = None) -> Evidence:
    """Return what a passage establishes about a claim, and about the quote that the claim gives, if any."""
    is_cut = len(claim) > MAX_CLAIM_CHARS
    claim, passage = claim[:MAX_CLAIM_CHARS].strip(), passage[:MAX_PASSAGE_CHARS]
    found = _judge_claim(claim, passage) if quote is None else _judge_quote(claim, passage, quote)
    if is_cut and quote is None and found.state in ("quoted", "supported"):
        reason = f"only the first {MAX_CLAIM_CHARS:,} characters of the claim were compared, and the source has them"
        return Evidence("not-found", reason, (ClaimCheck("words", False),), found.place)
    return found


def _judge_claim(claim: str, passage: str) -> Evidence:
    parts = [entry.text for entry in sentences(claim)] if not quotes.quotations(claim) else [claim]
    found = [_judge_sentence(part, passage) for part in parts]
    found = [entry for entry in found if entry.reason != _NO_WORDS] or found
    if not found:
        return Evidence("not-found", "the claim has no words")
    worst = max(found, key=lambda entry: _severity(entry.state))
    return worst if worst.state not in ("quoted", "supported") or len(found) == 1 else _joined(found)


def _severity(state: EvidenceState) -> int:
    return ("quoted", "supported", "not-found", "contradicted").index(state)


def _joined(found: Sequence[Evidence]) -> Evidence:
    state = max(found, key=lambda entry: _severity(entry.state)).state
    places = [entry.place for entry in found if entry.place is not None]
    checks = tuple(check for entry in found for check in entry.checks)
    return Evidence(state, "the source says every sentence of the claim", checks, places[0] if places else None)


def _judge_quote(claim: str, passage: str, quote: str) -> Evidence:
    if not quotes.says_something(quote):
        return Evidence("not-found", "the quote is too short to prove anything", (ClaimCheck("quote", False),))
    place = quotes.place_of(quote, passage)
    if place is None:
        return Evidence(
            "not-found", "the quoted words are not in the source", (ClaimCheck("quote", False, quote[:200]),)
        )
    said = _judge_claim(claim, passage)
    passed = ClaimCheck("quote", True)
    if said.state == "contradicted":
        return Evidence("contradicted", said.reason, (passed, *said.checks), said.place)
    remark = "" if said.state in ("quoted", "supported") else "; the claim itself is not in it"
    return Evidence("quoted", f"the source has the quoted words{remark}", (passed, *said.checks), place)


def _judge_sentence(claim: str, passage: str) -> Evidence:
    """Judge one sentence."""
    cited = quotes.quotations(claim)
    places: list[tuple[int, int]] = []
    for text, _, _ in cited:
        place = quotes.place_of(text, passage)
        if place is None:
            check = ClaimCheck("quote", False, text[:200])
            return Evidence("not-found", "the quoted words are not in the source", (check,))
        places.append(place)
    if UNSPACED.search(claim):
        return _judge_unspaced(claim, passage)
    framed = _FRAME.match(claim)
    body = claim[framed.end() :] if framed is not None and framed.end() < len(claim) else claim
    body = _JOINT.sub("", body, 1) if _JOINT.match(body) else body
    said = tokens(body, continental=is_continental(body))
    if not any(_is_content(token) for token in said):
        return Evidence("not-found", _NO_WORDS)
    frame = quotes.frame_of(claim, cited)
    best: Evidence | None = None
    candidates = _candidates(said, passage)
    for sentence in candidates:
        continental = is_ambiguous(sentence.text) and is_continental(passage[:_FORMAT_CHARS])
        found = _framed_quote(frame, places, sentence, continental=continental) if cited else None
        if found is None or found.state != "quoted":
            found = _compare(said, sentence, continental=continental)
            if found.state != "not-found" and _is_question(sentence.text) and not _is_question(body):
                check = ClaimCheck("scope", False, "?")
                found = Evidence("not-found", "the source only asks this", (check,), found.place)
        if best is None or _ORDER.index(found.state) < _ORDER.index(best.state):
            best = found
        if best.state in ("supported", "quoted"):
            break
    if best is not None and best.state == "contradicted" and (other := _rival(best, said, candidates)) is not None:
        reason = f"the source differs within itself: {best.reason}"
        return Evidence("not-found", reason, best.checks, (other.start, other.end))
    if best is None:
        return Evidence("not-found", "no sentence of the source shares its words", (ClaimCheck("words", False),))
    if best.state == "supported" and best.place is not None:
        start, end = best.place
        place = quotes.place_of(body, passage[start:end])
        if place is not None:
            checks = (ClaimCheck("quote", True), *best.checks)
            return Evidence("quoted", "the source has this sentence", checks, (start + place[0], start + place[1]))
    return best


def _is_question(text: str) -> bool:
    return text.rstrip(" \n\"'”’»)]").endswith("?")


def _rival(found: Evidence, claim: Sequence[Token], candidates: Iterable[Sentence]) -> Sentence | None:
    """Return another sentence that has the value or name which the contradicted claim gives, in a similar context."""
    failed = next((check for check in found.checks if not check.passed), None)
    if failed is None or failed.name not in _RIVALS:
        return None
    given = failed.detail.partition("“")[2].partition("”")[0].casefold()
    words = [token.text.casefold() for token in claim if token.is_word and len(token.key) > 3]
    for sentence in candidates:
        folded = sentence.text.casefold()
        if (
            (sentence.start, sentence.end) != found.place
            and given in folded
            and 2 * _points(folded, words) >= len(words)
        ):
            return sentence
    return None


def _is_content(token: Token) -> bool:
    if token.value is not None:
        return True
    key = token.key
    return len(key) > 1 and key not in lexicon.PREPOSITIONS and key not in lexicon.AUXILIARIES


def _candidates(claim: Sequence[Token], passage: str) -> list[Sentence]:
    """Return the sentences that share most words with the claim, best first."""
    words = {token.text.casefold()[: max(3, len(token.key))] for token in claim if token.is_word and _is_content(token)}
    words |= {token.key for token in claim if token.is_word and len(token.key) > 3}
    values = {token.text.casefold().split()[0] for token in claim if not token.is_word}
    longest = [*sorted(words, key=len)[-_SCORED_WORDS:], *values]
    blocks = _best(((_points(block.text, longest), block) for block in paragraphs(passage)), _PARAGRAPHS)
    found = [entry for block in blocks for entry in sentences(block.text, block.start)]
    wanted = [*words, *(_SEPARATOR.sub("", value) for value in values)]
    return _best(((_points(_SEPARATOR.sub("", entry.text), wanted), entry) for entry in found), _CANDIDATES)


def _points(text: str, words: Iterable[str]) -> int:
    folded = text.casefold()
    points = 0
    for word in words:
        if word in folded:
            points += 1
    return points


def _best(scored: Iterable[tuple[int, Sentence]], count: int) -> list[Sentence]:
    """Return the entries with the highest scores, without those that have less than half of the highest.

    Of entries with the same highest score, up to four times as many are returned.
    """
    ranked = sorted((entry for entry in scored if entry[0]), key=lambda entry: -entry[0])[: 4 * count]
    top = ranked[0][0] if ranked else 0
    return [entry for at, (points, entry) in enumerate(ranked) if points == top or (at < count and 2 * points >= top)]


def _compare(claim: Sequence[Token], sentence: Sentence, *, continental: bool) -> Evidence:
    """Compare a claim with one sentence."""
    said = tokens(sentence.text, continental=continental)
    place = (sentence.start, sentence.end)
    matched = alignment.match(claim, said)
    if matched is not None and not matched.conflicts:
        voice = alignment.voice_conflict(claim, said, matched.positions)
        if voice is not None:
            return _contradicted(voice, claim, place)
        if matched.limit is None:
            return Evidence("supported", "one sentence of the source says this", _passed(claim), place)
    moved = _moved_date(claim, said)
    if moved:
        return Evidence("supported", "one sentence of the source says this", _passed(claim), place)
    negated = alignment.negation_conflict(claim, said)
    if negated is not None:
        return _contradicted(negated, claim, place)
    if matched is not None and matched.conflicts and matched.limit is None:
        return _contradicted(matched.conflicts[0], claim, place)
    exchanged = alignment.order_conflict(claim, said)
    if exchanged is not None:
        return _contradicted(exchanged, claim, place)
    if matched is not None and not matched.conflicts and matched.limit is not None:
        reason = f"the source limits this: “{matched.limit}”"
        return Evidence("not-found", reason, (ClaimCheck("scope", False, matched.limit),), place)
    return _missing(claim, said, place)


def _moved_date(claim: Sequence[Token], said: Sequence[Token]) -> bool:
    """Return whether the sentence says the same with the claim's only date in another place."""
    dated = [token for token in claim if isinstance(token.value, Day)]
    if len(dated) != 1 or len(claim) < 3:
        return False
    same = [token for token in said if isinstance(token.value, Day) and is_same(dated[0], token)]
    if len(same) != 1:
        return False
    rest = alignment.without(said, same[0])
    matched = alignment.match(alignment.without(claim, dated[0]), rest)
    if matched is None or not matched.is_support:
        return False
    if any(isinstance(token.value, Day) for token in rest) or any(token.key in lexicon.CONJUNCTIONS for token in rest):
        return False
    kept = [rest[at] for at in matched.positions]
    begin, end = alignment.clause(said, said.index(kept[0]), said.index(kept[-1]))
    at = said.index(same[0])
    head = at - (at > 0 and said[at - 1].key in ("in", "on"))
    return begin <= at < end and (head == 0 or said[head - 1] in kept)  # Not a date of a relative clause.


def _contradicted(conflict: Conflict, claim: Sequence[Token], place: tuple[int, int]) -> Evidence:
    checks = (*(check for check in _passed(claim) if check.name != conflict.check),)
    failed = ClaimCheck(conflict.check, False, conflict.detail)
    return Evidence("contradicted", conflict.detail, (*checks, failed), place)


def _missing(claim: Sequence[Token], said: Sequence[Token], place: tuple[int, int]) -> Evidence:
    """Return that the claim is not in its nearest sentence, and which of its words are not."""
    keys = {token.key for token in said}
    values = [token for token in said if not token.is_word]
    absent = [
        token
        for token in claim
        if token.key not in keys and (token.is_word or not any(is_same(token, other) for other in values))
    ]
    if not absent:
        detail = "the words are in another order"
        return Evidence(
            "not-found", f"no sentence of the source says this: {detail}", (ClaimCheck("order", False),), place
        )
    names: list[CheckName] = ["words"]
    if any(isinstance(token.value, Quantity) for token in absent):
        names.append("number")
    if any(isinstance(token.value, Day) for token in absent):
        names.append("date")
    detail = ", ".join(token.text for token in absent[:5])
    checks = tuple(ClaimCheck(name, False, detail) for name in names)
    return Evidence("not-found", f"no sentence of the source says this; its nearest lacks: {detail}", checks, place)


def _passed(claim: Sequence[Token]) -> tuple[ClaimCheck, ...]:
    """Return the checks that a claim passes if it matches: those that it has words for, and the general ones."""
    quantities = [token.value for token in claim if isinstance(token.value, Quantity)]
    present: dict[CheckName, bool] = {
        "words": True,
        "polarity": True,
        "order": True,
        "scope": True,
        "number": bool(quantities),
        "unit": any(value.unit is not None for value in quantities),
        "date": any(isinstance(token.value, Day) for token in claim),
        "name": any(token.is_name for token in claim[1:]),
    }
    return tuple(ClaimCheck(name, True) for name, is_present in present.items() if is_present)


def _framed_quote(
    frame: str, places: Sequence[tuple[int, int]], sentence: Sentence, *, continental: bool
) -> Evidence | None:
    """Return that the claim quotes this sentence and says nothing else but whose words these are, or None.

    `frame` is the claim without its quotations, `places` are those of the quotations.
    """
    if any(end <= sentence.start or start >= sentence.end for start, end in places):
        return None
    said = tokens(sentence.text, continental=continental)
    outside = [token for token in said if not any(a <= sentence.start + token.start < b for a, b in places)]
    others = [token for token in tokens(frame) if token.key not in _REPORTING]
    if len(others) > _FRAME_WORDS or list(places) != sorted(places):
        return None
    speakers = [{token.key for token in side} & lexicon.SPEAKERS for side in (tokens(frame), outside)]
    rest = iter(outside)
    kept = [next((found for found in rest if is_same(token, found)), None) for token in others]  # In this order.
    if None in kept or (all(speakers) and not speakers[0] <= speakers[1]):
        return None
    around = {token.key for token in others} | _REPORTING
    inside = [token for token in said if token not in outside]
    for dropped in outside:
        if dropped.key in _QUOTE_LIMITS and dropped not in kept and dropped.key not in around - alignment.NEGATIONS:
            begin, end = alignment.clause(said, said.index(dropped), said.index(dropped))
            if any(token in said[begin:end] for token in (*inside, *kept)):
                reason = f"the source limits the quoted words: “{dropped.text}”"
                return Evidence("not-found", reason, (ClaimCheck("polarity", False, dropped.text),), places[0])
    return Evidence("quoted", "the source has the quoted words", (ClaimCheck("quote", True),), places[0])


_UNSPACED_MARKS = "。，、；：！？「」『』（）.,;:!?\"'()“” \n"


def _judge_unspaced(claim: str, passage: str) -> Evidence:
    """Judge a claim in a script without spaces: a whole clause of the source says it, or it is not found."""
    bare = claim.strip(_UNSPACED_MARKS)
    place = quotes.place_of(bare, passage)
    if place is None:
        return Evidence("not-found", "the words are not in the source", (ClaimCheck("words", False),))
    edges = passage[place[0] - 1 : place[0]] if place[0] else "", passage[place[1] : place[1] + 1]
    if all(edge in _UNSPACED_MARKS for edge in edges):
        return Evidence("quoted", "the source has this sentence", (ClaimCheck("quote", True),), place)
    check = ClaimCheck("scope", False, "".join(edges))
    return Evidence("not-found", "the source says this as a part of a sentence only", (check,), place)
