"""Comparison of a claim's tokens with those of one sentence: the same words in the same order, and what differs."""

import re
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from sidestream.evidence import lexicon, numbers
from sidestream.evidence.numbers import Day, Quantity
from sidestream.evidence.tokens import OPPOSITES, Token, is_same, stem, stems_of
from sidestream.evidence.verdict import CheckName

MAX_STARTS = 6
"""Maximum positions of a claim's first word in a sentence that are tried."""
NEGATIONS = stems_of(lexicon.NEGATIONS)
_NEGATING = stems_of(lexicon.NEGATING)
_LIMITS = stems_of(lexicon.LIMITS)
_LOCAL_LIMITS = stems_of(lexicon.LOCAL_LIMITS)
_FACTIVE = stems_of(lexicon.FACTIVE)
_UNREAL = stems_of(lexicon.UNREAL)
_COMPANY_FORMS = stems_of(lexicon.COMPANY_FORMS)
_UNTIL = stems_of(lexicon.UNTIL)
_ALL_BUT = stems_of(lexicon.ALL_BUT)
_BEHIND_NUMBER = stems_of(lexicon.BEHIND_NUMBER)
_SYMMETRIC = stems_of(lexicon.SYMMETRIC)
_CODE = re.compile(numbers.CODE)
_ORDINAL = re.compile(r"\d+\.")
_WEEKDAYS = {stem(day): day for day in numbers.WEEKDAYS}
_MONTHS = {stem(name): number for name, number in numbers.MONTHS.items()}
_MAX_NAME = 4
_MAX_RUN = 2
_MAX_PHRASE = 5


class Conflict(Struct, frozen=True):
    """A place where the claim says something else than the source."""

    check: CheckName
    claimed: str
    """Words of the claim. Empty means that it has none there."""
    found: str
    """Words of the source. Empty means that it has none there."""

    @property
    def detail(self) -> str:
        """The difference in words."""
        if not self.claimed:
            return f"the source says “{self.found}”, the claim does not"
        if not self.found:
            return f"the claim says “{self.claimed}”, the source does not"
        return f"the claim says “{self.claimed}”, the source “{self.found}”"


class Match(Struct, frozen=True):
    """Positions of the claim's tokens in a sentence, and what speaks against the match."""

    positions: tuple[int, ...]
    conflicts: tuple[Conflict, ...] = ()
    limit: str | None = None
    """Words of the source that the claim leaves out although they change what it says."""

    @property
    def is_support(self) -> bool:
        """Whether the sentence says what the claim says."""
        return not self.conflicts and self.limit is None


def match(claim: Sequence[Token], sentence: Sequence[Token]) -> Match | None:
    """Return the best match of the claim in the sentence with at most one conflict, or None."""
    if not claim or not sentence:
        return None
    best: Match | None = None
    for positions, conflicts in _paths(claim, sentence):
        limit = _limit(() if conflicts else claim, sentence, positions)
        found = Match(positions, conflicts, limit)
        if found.is_support:
            return found
        if best is None or _rank(found) < _rank(best):
            best = found
    return best


def _rank(found: Match) -> tuple[int, int]:
    return (found.limit is not None, len(found.conflicts))


def _paths(claim: Sequence[Token], sentence: Sequence[Token]) -> list[tuple[tuple[int, ...], tuple[Conflict, ...]]]:
    """Return the ways to find the claim's tokens in order, first those without a conflict."""
    paths: list[tuple[tuple[int, ...], tuple[Conflict, ...]]] = []
    starts = [at for at, token in enumerate(sentence) if is_same(claim[0], token)][:MAX_STARTS]
    for start in starts:
        path = _nearest(claim, sentence, start)
        if path is not None:
            paths.append((path, ()))
    if not paths:
        found = _with_conflict(claim, sentence)
        if found is not None:
            paths.append(found)
    return paths


def _nearest(claim: Sequence[Token], sentence: Sequence[Token], start: int) -> tuple[int, ...] | None:
    path: list[int] = []
    at = start
    for token in claim:
        while at < len(sentence) and not is_same(token, sentence[at]):
            at += 1
        if at == len(sentence):
            return None
        path.append(at)
        at += 1
    return tuple(path)


def _with_conflict(
    claim: Sequence[Token], sentence: Sequence[Token]
) -> tuple[tuple[int, ...], tuple[Conflict, ...]] | None:
    """Return the way with exactly one conflicting place, which may span the words of a name."""
    size, last = len(claim), len(sentence)
    head = _nearest_prefix(claim, sentence)
    tail = _nearest_suffix(claim, sentence)
    # The claim agrees up to `cut` and from `cut + width` on; between them is the conflict.
    for cut in range(min(len(head), size - 1), -1, -1):
        before = head[cut - 1] if cut else -1
        for width in range(1, min(_MAX_NAME, size - cut) + 1):
            kept = size - cut - width
            if kept > len(tail):
                continue
            after = tail[len(tail) - kept] if kept else last
            if after <= before + 1 or (kept == 0 and cut == 0):
                continue
            end = after if kept else min(last, before + 1 + width + 1)
            for stop in range(min(end, before + 1 + _MAX_NAME), before + 1, -1):
                found = conflict(claim[cut : cut + width], sentence[before + 1 : stop])
                if found is not None:
                    places = range(before + 1, stop)
                    return (*head[:cut], *places, *(tail[len(tail) - kept :] if kept else ())), (found,)
    return None


def _nearest_prefix(claim: Sequence[Token], sentence: Sequence[Token]) -> list[int]:
    path: list[int] = []
    at = 0
    for token in claim:
        while at < len(sentence) and not is_same(token, sentence[at]):
            at += 1
        if at == len(sentence):
            break
        path.append(at)
        at += 1
    return path


def _nearest_suffix(claim: Sequence[Token], sentence: Sequence[Token]) -> list[int]:
    path: list[int] = []
    at = len(sentence) - 1
    for token in reversed(claim):
        while at >= 0 and not is_same(token, sentence[at]):
            at -= 1
        if at < 0:
            break
        path.append(at)
        at -= 1
    return path[::-1]


def conflict(claimed: Sequence[Token], found: Sequence[Token]) -> Conflict | None:
    """Return the conflict between a few words of the claim and those in their place in the source."""
    one, other = claimed[0], found[0]
    check: CheckName | None = None
    if len(claimed) == len(found) == 1:
        check = _single_conflict(one, other)
    if check is None and all(map(_is_plain_name, claimed)) and all(map(_is_plain_name, found)):
        check = "name" if _are_other_names(claimed, found) else None
    return None if check is None else Conflict(check, _text(claimed), _text(found))


def _text(words: Sequence[Token]) -> str:
    return " ".join(token.value.text if isinstance(token.value, Quantity) else token.text for token in words)


def _single_conflict(claimed: Token, found: Token) -> CheckName | None:
    one, other = claimed.value, found.value
    if isinstance(one, Quantity) and isinstance(other, Quantity):
        return numbers.conflict(one, other)
    if isinstance(one, Day) and isinstance(other, Day):
        return "date" if numbers.is_conflict(one, other) else None
    if one is not None or other is not None:
        return None
    if found.key in OPPOSITES.get(claimed.key, ()):
        return "polarity"
    if _CODE.fullmatch(claimed.key) and _CODE.fullmatch(found.key):
        return "number" if re.sub(r"\d", "", claimed.key) == re.sub(r"\d", "", found.key) else None
    if claimed.key in _WEEKDAYS and found.key in _WEEKDAYS:
        return "date"
    if claimed.key in _MONTHS and found.key in _MONTHS and claimed.is_name and found.is_name:
        return "date" if _MONTHS[claimed.key] != _MONTHS[found.key] else None
    short, long = sorted((claimed.key, found.key), key=len)
    is_negated = any(long == prefix + short for prefix in lexicon.NEGATING_PREFIXES)
    return "polarity" if is_negated and len(short) > 3 and not long.startswith("inter") else None


def _is_plain_name(token: Token) -> bool:
    return (
        token.is_name
        and token.key not in lexicon.PRONOUNS
        and token.key not in _MONTHS
        and token.key not in _WEEKDAYS
        and token.key not in NEGATIONS
        and token.key not in _LIMITS
        and token.key not in _LOCAL_LIMITS
        and token.key not in lexicon.PREPOSITIONS
        and token.key not in lexicon.RELATIVES
        and token.key not in lexicon.CONJUNCTIONS
    )


def _are_other_names(claimed: Sequence[Token], found: Sequence[Token]) -> bool:
    """Return whether two names share no word and neither abbreviates the other."""
    one, other = {token.key for token in claimed}, {token.key for token in found}
    if one == other:
        return False
    if one & other:
        return len(claimed) == len(found) and not _initials_match(claimed, found)
    short, long = sorted((_text(claimed), _text(found)), key=len)
    initials = "".join(token.text[0] for token in (found if short == _text(claimed) else claimed))
    letters = "".join(letter for letter in short if letter.isalnum())
    return letters.casefold() != initials.casefold() and not long.casefold().startswith(letters.casefold())


def _initials_match(claimed: Sequence[Token], found: Sequence[Token]) -> bool:
    pairs = zip(claimed, found, strict=True)
    return all(
        one.key == other.key or (one.key[0] == other.key[0] and 1 in (len(one.key), len(other.key)))
        for one, other in pairs
    )


def _limit(claim: Sequence[Token], sentence: Sequence[Token], positions: Sequence[int]) -> str | None:
    """Return the words that the claim may not leave out, or None."""
    first, last = positions[0], positions[-1]
    kept = set(positions)
    begin, end = clause(sentence, first, last)
    for at in range(begin, end):
        key = sentence[at].key
        if at in kept or not (key in NEGATIONS or key in _LIMITS or key in _LOCAL_LIMITS):
            continue
        if key not in _LOCAL_LIMITS or (first - 2 <= at <= last):
            return sentence[at].text
    for at in positions:
        if at + 1 < end and at + 1 not in kept and _limits_number(sentence, at):
            return _text(sentence[at + 1 : at + 3])
        if at + 2 < end and at + 2 not in kept and _is_range(sentence[at : at + 3]):
            return _text(sentence[at + 1 : at + 3])
    is_score = any(isinstance(sentence[at].value, Quantity) for at in (last - 1, last) if at in kept)
    if is_score and last + 2 < end and sentence[last + 1].key == "to" and sentence[last + 2].value is not None:
        return _text(sentence[last + 1 : last + 3])
    if end > last + 1 and sentence[last + 1].key in lexicon.ALTERNATIVES:
        return _text(sentence[last + 1 : last + 3])
    if claim and any(sentence[at].key in NEGATIONS for at in positions):
        until = next((token for token in sentence[last + 1 : end] if token.key in _UNTIL), None)
        if until is not None:
            return until.text
    if first and (unreal := next((token for token in sentence[begin:first] if token.key in _UNREAL), None)) is not None:
        return unreal.text
    if not _begins_clause(sentence, first):
        return _text(sentence[max(begin, first - 2) : first])
    for place, (one, other) in enumerate(pairwise(positions)):
        if claim and _has_dash_or_colon(sentence[other]) and not claim[place + 1].gap.strip():
            return sentence[other].gap.strip()
        if other > one + 1 and not _may_skip(sentence, one + 1, other):
            return _text(sentence[one + 1 : other])
        if claim and other > one + 1 and sentence[one].is_possessive and not claim[place].is_possessive:
            return _text(sentence[one:other])
    return None


def _limits_number(sentence: Sequence[Token], at: int) -> bool:
    """Return whether the word behind a number changes what it means: "$5 an hour", "480 BC", "3 or more"."""
    following = sentence[at + 1]
    if not isinstance(sentence[at].value, Quantity | Day):
        return False
    is_count = (
        isinstance(following.value, Quantity) and at + 2 < len(sentence) and sentence[at + 2].key in _BEHIND_NUMBER
    )
    return following.key in _BEHIND_NUMBER or is_count or following.gap.strip() == "/"


def _is_range(tokens: Sequence[Token]) -> bool:
    """Return whether three tokens are a range of numbers or years, such as "10 to 20 days"."""
    first, middle, last = tokens
    return middle.key == "to" and isinstance(first.value, Quantity | Day) and isinstance(last.value, Quantity | Day)


def clause(sentence: Sequence[Token], first: int, last: int) -> tuple[int, int]:
    """Return the start and end of the clauses that hold the tokens between two positions."""
    begin = first
    while begin > 0 and not _is_boundary(sentence, begin):
        begin -= 1
    end = last + 1
    while end < len(sentence) and not _is_boundary(sentence, end):
        end += 1
    return begin, end


def _is_boundary(sentence: Sequence[Token], at: int) -> bool:
    """Return whether another clause begins at this token."""
    token = sentence[at]
    if _has_dash_or_colon(token) or ("," in token.gap and token.key in lexicon.CLAUSE_WORDS):
        return True
    is_negative_part = token.key == "and" and at + 1 < len(sentence) and sentence[at + 1].key in _NEGATING
    return is_negative_part or token.key in lexicon.CLAUSE_BREAKS


def _has_dash_or_colon(token: Token) -> bool:
    return any(mark in token.gap for mark in ";:—") or " – " in token.gap or " - " in token.gap


def _begins_clause(sentence: Sequence[Token], first: int) -> bool:
    """Return whether nothing before the first word can be its head: "the owner of Acme", "firms that bought Acme"."""
    if first == 0:
        return True
    token, before = sentence[first], sentence[first - 1]
    if any(mark in token.gap for mark in ',;:—("“„«') or " – " in token.gap:
        return True
    if before.key == "that":
        return first == 1 or sentence[first - 2].key in _FACTIVE
    if before.key == "but" and first > 1 and sentence[first - 2].key in _ALL_BUT:
        return False
    if before.key in lexicon.CONJUNCTIONS:
        return before.key not in lexicon.ALTERNATIVES
    if first == 1 and len(before.text) <= 3 and token.gap[:1] in (")", ".") and before.text.isalnum():
        return True  # The number of an item or a paragraph.
    opening = sentence[0].key in lexicon.PREPOSITIONS or isinstance(sentence[0].value, Day)
    return opening and isinstance(before.value, Day) and first <= 3


def _may_skip(sentence: Sequence[Token], start: int, end: int) -> bool:
    """Return whether a claim may leave out these words of the source between its own."""
    run = sentence[start:end]
    following = sentence[end]
    if following.value is not None and any(token.key in lexicon.BOUND_TO_NUMBER for token in run):
        return False
    is_weekday = len(run) == 1 and run[0].key in _WEEKDAYS and isinstance(following.value, Day)
    if is_weekday or all(token.key in _COMPANY_FORMS for token in run):
        return True
    enclosed = any(mark in run[0].gap for mark in ",(—") and any(mark in following.gap for mark in ",)—")
    if enclosed and not any(token.key in lexicon.CONJUNCTIONS for token in run):
        return True
    if any(map(_has_dash_or_colon, (*run, following))) or any("," in token.gap for token in run[1:-1]):
        return False
    last = run[-1].key
    if last in lexicon.CONJUNCTIONS and last not in lexicon.ALTERNATIVES and last not in lexicon.CLAUSE_BREAKS:
        return following.key not in lexicon.PREPOSITIONS  # "…, and in 2020 it closed" is another statement.
    if any(token.key in lexicon.CONJUNCTIONS or token.key in lexicon.RELATIVES for token in run):
        return False
    if run[0].key in lexicon.PREPOSITIONS:
        return len(run) <= _MAX_PHRASE and run[0].key not in lexicon.BEFORE_CLAUSE
    return len(run) <= _MAX_RUN and all(map(_is_plain, run))


def _is_plain(token: Token) -> bool:
    """Return whether a word only adds to others. A form of "be", or "second" before "largest", does more."""
    return (
        token.is_word
        and not token.is_name
        and token.text.isascii()
        and token.key not in lexicon.PRONOUNS
        and token.key not in lexicon.BE
        and token.key not in lexicon.PREPOSITIONS
        and not _ORDINAL.fullmatch(token.key)
    )


def negation_conflict(claim: Sequence[Token], sentence: Sequence[Token]) -> Conflict | None:
    """Return the negation that only one side has, if nothing else differs."""
    denied = [token for token in claim if token.key in _NEGATING]
    found = [token for token in sentence if token.key in _NEGATING]
    if bool(denied) == bool(found) or len(denied) + len(found) != 1:
        return None
    skipped = _NEGATING | lexicon.AUXILIARIES
    bare_claim = [token for token in claim if token.key not in skipped]
    bare_sentence = [token for token in sentence if token.key not in skipped]
    matched = match(bare_claim, bare_sentence)
    if matched is None or not matched.is_support or len(bare_claim) < 2:
        return None
    if denied:
        return Conflict("polarity", denied[0].text, "")
    at = sentence.index(found[0])
    first = sentence.index(bare_sentence[matched.positions[0]])
    last = sentence.index(bare_sentence[matched.positions[-1]])
    is_before = at == first - 1 and "," not in sentence[first].gap
    return Conflict("polarity", "", found[0].text) if is_before or first <= at <= last else None


def order_conflict(claim: Sequence[Token], sentence: Sequence[Token]) -> Conflict | None:
    """Return the two parts of a sentence that the claim exchanges, if nothing else differs."""
    if len(claim) != len(sentence) or sorted(_keys(claim)) != sorted(_keys(sentence)):
        return None
    differing = [at for at in range(len(claim)) if claim[at].key != sentence[at].key]
    if not differing:
        return None
    first, last = differing[0], differing[-1] + 1
    one, other = claim[first:last], sentence[first:last]
    size = last - first
    for left in range(1, size):
        for right in range(1, size - left):
            middle = size - left - right
            if (
                _keys(other[:left]) == _keys(one[size - left :])
                and _keys(other[left : left + middle]) == _keys(one[right : right + middle])
                and _keys(other[size - right :]) == _keys(one[:right])
            ):
                return _exchange(other[:left], other[left : left + middle], other[size - right :], sentence[last:])
    return None


def _exchange(
    left: Sequence[Token], middle: Sequence[Token], right: Sequence[Token], rest: Sequence[Token]
) -> Conflict | None:
    words = [token for token in middle if token.key not in lexicon.CONJUNCTIONS]
    if not words or all(token.key in _SYMMETRIC for token in words):
        return None
    if left[0].key in lexicon.PREPOSITIONS and right[0].key in lexicon.PREPOSITIONS:
        return None
    if any(token.key in lexicon.CONJUNCTIONS for token in middle) and not any(
        token.value is not None for token in (*left, *right)
    ):
        has_order = any(token.key in lexicon.SEQUENCE for token in middle)
        if not has_order and len(words) < 2:
            return None
    is_name = left[0].is_name and right[0].is_name
    check: CheckName = "name" if is_name else "order"
    return Conflict(check, f"{_text(right)} … {_text(left)}", f"{_text(left)} … {_text(right)}")


def voice_conflict(claim: Sequence[Token], sentence: Sequence[Token], positions: Sequence[int]) -> Conflict | None:
    """Return the verb that is passive on one side only: "A bought B" is not "A was bought by B"."""
    kept = set(positions)
    for place, at in enumerate(positions[:-1]):
        is_passive = (
            0 < at < len(sentence) - 1
            and sentence[at + 1].key == "by"
            and at + 1 not in kept
            and sentence[at - 1].key in ("is", "was", "are", "were", "be", "been", "being")
        )
        if is_passive and at - 1 not in kept:
            return Conflict("name", claim[place].text, _text(sentence[at - 1 : at + 2]))
    return None


def without(tokens: Sequence[Token], date: Token) -> tuple[Token, ...]:
    """Return the tokens without a date and the preposition before it."""
    at = next(place for place, token in enumerate(tokens) if token is date)
    begin = at - 1 if at and tokens[at - 1].key in ("in", "on") else at
    return (*tokens[:begin], *tokens[at + 1 :])


def _keys(words: Sequence[Token]) -> list[str]:
    return [token.key for token in words]
