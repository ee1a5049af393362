"""Sentences and tokens: words by their stems, quantities and dates by their values."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from unicodedata import normalize, numeric

from msgspec import Struct

from sidestream.evidence import lexicon, numbers
from sidestream.evidence.numbers import Day, Quantity

MAX_SENTENCE_CHARS = 2000
"""Maximum characters of a sentence that are compared."""
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
"""Matches a character of a script written without spaces (Thai, Lao, Burmese, Khmer, Chinese, Japanese)."""
_PIECE = re.compile(
    rf"(?P<date>(?<![\w.])(?:{numbers.DATE}))|(?P<code>(?<![\w.])(?:{numbers.CODE}))"
    rf"|(?P<number>(?<!\w)(?:{numbers.NUMBER}))"
    r"|(?P<sign>(?<!\w)(?:US|AU?|CA?|HK|NZ|SG?|R)\$|[$€£¥₹%‰°&+×]|[<>≤≥≈±~](?=\s?\d))"
    r"|(?P<dotted>(?<![\w.])(?:U\.S\.A|U\.[SKN]|E\.U|D\.C|[AaPp]\.[Mm]|B\.C(?:\.E)?|A\.D|C\.E)\b\.?)"
    rf"|(?P<word>[{_UNSPACED}]|[^\W\d_{_UNSPACED}][^\W_{_UNSPACED}²³]*[²³]?(?:[’'][^\W\d_]+)*)"
    r"|(?P<digits>\d+)"
)
_BREAK = re.compile(
    r"[.!?][\"'”’»)\]*_]*\s+(?=(?:[-*•]\s+)?[\"'“‘„«(\[*_]*[^\Wa-z_])|[。！？]|\n\s*\n|\n(?=\s*(?:[-*•#>|]|\d{1,3}[.)]\s))|\n"
)
_LAST_WORD = re.compile(r"[\w.]+$")
_INITIAL = re.compile(r"(?:^|[^\W\d_]\.?\s|\()[A-Z]$")
"""Matches a single letter behind a word, not behind a number or a sign, whose unit it would be."""
_SHORT_LINE = 50
_SIGNS = "−-–"
_CURRENCIES = lexicon.words(
    "$ us$ a$ au$ c$ ca$ hk$ nz$ s$ sg$ r$ € £ ¥ ₹ usd eur gbp chf jpy inr cny sek nok dkk aud cad nzd hkd sgd brl"
)
"""Signs and codes of currencies before an amount."""
_FRACTIONS = "¼½¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_ORDINAL_ENDINGS = lexicon.words("st nd rd th")
_CONTRACTED = {"can't": "can", "won't": "will", "shan't": "shall", "cannot": "can"}


class Token(Struct, gc=False):
    """A word, quantity or date of a sentence."""

    key: str
    """Stem of a word, or the normalised form of a value."""
    text: str
    start: int
    end: int
    gap: str
    """Text between the previous token and this one, ignored words included."""
    value: Quantity | Day | None = None
    is_name: bool = False
    is_possessive: bool = False

    @property
    def is_word(self) -> bool:
        """Whether this is neither a quantity nor a date."""
        return self.value is None


class Sentence(Struct, frozen=True):
    """A sentence and its place in the text."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """The position behind the sentence."""
        return self.start + len(self.text)


def paragraphs(text: str) -> Iterator[Sentence]:
    """Iterate over the blocks between blank lines."""
    start = 0
    for block in text.split("\n\n"):
        if block and not block.isspace():
            yield Sentence(block, start)
        start += len(block) + 2


def sentences(text: str, offset: int = 0) -> Iterator[Sentence]:
    """Iterate over sentences. A line break ends one at a heading, an item or a blank line.

    `offset` is added to their positions.
    """
    start = 0
    for found in _BREAK.finditer(text):
        if not _is_end(text, start, found):
            continue
        yield from _sentence(text, start, found.end(), offset)
        start = found.end()
    yield from _sentence(text, start, len(text), offset)


def sentence_at(text: str, place: tuple[int, int]) -> Sentence | None:
    """Return the sentence that holds the end of a place, or None."""
    start = max(0, text.rfind("\n\n", 0, place[0]))
    end = text.find("\n\n", place[1])
    found = sentences(text[start : len(text) if end < 0 else end], start)
    return next((entry for entry in found if entry.end >= place[1]), None)


def _sentence(text: str, start: int, end: int, offset: int) -> Iterator[Sentence]:
    piece = text[start:end]
    body = piece.strip()
    if body:
        yield Sentence(body[:MAX_SENTENCE_CHARS], offset + start + piece.index(body[0]))


def _is_end(text: str, start: int, found: re.Match[str]) -> bool:
    mark = found[0]
    if mark[0] == "\n":
        if mark.count("\n") > 1 or text[found.end() : found.end() + 1] in "-*•#>|":
            return True
        before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
        after = text[found.end() : found.end() + 80].lstrip()
        is_heading = len(before) < _SHORT_LINE and not before.endswith((",", ";", "-"))
        return not after or before[-1:] in ".!?:" or (is_heading and after[0].isupper())
    if mark[0] != ".":
        return True
    last = _LAST_WORD.search(text, max(start, found.start() - 12), found.start())
    if last is None:
        return True
    word = last[0].casefold()
    if word.isdigit() and len(word) <= 2:
        following = re.match(r"[^\W\d_]+", text[found.end() : found.end() + 12])
        return following is None or following[0].casefold() not in numbers.MONTHS
    is_initial = len(word) == 1 and word.isalpha() and _INITIAL.search(text, start, found.start()) is not None
    if word in lexicon.BEFORE_DIGITS:
        return not text[found.end() : found.end() + 1].isdigit()
    if word in lexicon.MAY_END:
        following = re.match(r"[A-Z][a-z]*", text[found.end() : found.end() + 12])
        return following is not None and following[0].casefold() in lexicon.STARTERS
    return word not in lexicon.ABBREVIATIONS and not is_initial


_SHORT = re.compile(r"[^aeiouy]+[aeiouy][^aeiouywx]")
"""Matches a short word that is another one with an "e" behind it, such as "not" and "note"."""


@lru_cache(maxsize=1024)
def stem(word: str) -> str:
    """Return the word without the endings of English inflection. Comparatives keep theirs."""
    base = lexicon.IRREGULAR.get(word, word)
    if len(base) > 3 and base != "news":
        if base.endswith("ies") and len(base) > 4:
            base = base[:-3] + "y"
        elif base.endswith(("sses", "shes", "ches", "xes", "zes")):
            base = _bare(base[:-2])
        elif base.endswith("s") and not base.endswith(("ss", "us", "is")):
            base = base[:-1]
        if base.endswith("ied") and len(base) > 4:
            base = base[:-3] + "y"
        elif base.endswith("ing") and _has_vowel(base[:-3]):
            base = _bare(base[:-3])
        elif base.endswith("ed") and not base.endswith("eed") and _has_vowel(base[:-2]):
            base = _bare(base[:-2])
    if len(base) > 5:
        base = base.replace("isation", "ization")
        if base.endswith("our"):
            base = base[:-3] + "or"
    if base.endswith(("tre", "bre")) and len(base) > 4:
        base = base[:-2] + "er"
    if base.endswith("e") and len(base) > 3 and not _SHORT.fullmatch(base[:-1]):
        base = base[:-1]
    if base.endswith("is") and len(base) > 5:
        base = base[:-1] + "z"
    return base


def _has_vowel(text: str) -> bool:
    return len(text) > 1 and any(letter in "aeiouy" for letter in text)


def _bare(base: str) -> str:
    """Return a word that has lost its ending, without a doubled consonant, or with the "e" that it had before."""
    if len(base) > 3 and base[-1] == base[-2] and base[-1] not in "lsz":
        return base[:-1]
    return f"{base}e" if _SHORT.fullmatch(base) else base


def stems_of(words: frozenset[str]) -> frozenset[str]:
    """Return the stems of a word list, and the words themselves."""
    return frozenset(stem(word) for word in words) | words


class _Reader:
    """Joins the pieces of a sentence to tokens."""

    def __init__(self, text: str, *, continental: bool) -> None:
        self._text = text
        self._continental = continental
        self._pieces = list(_PIECE.finditer(text))
        self._at = 0
        self.tokens: list[Token] = []
        self._last = 0

    def read(self) -> list[Token]:
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            kind = piece.lastgroup
            if kind == "date":
                self._at += 1
                day = numbers.read_digits(piece[0])
                self._add(piece[0] if day is None else _key_of(day), piece.start(), piece.end(), day)
            elif kind == "number":
                self._number(self._at)
            elif piece[0].casefold() in _CURRENCIES and self._kind(self._at + 1) == "number":
                self._number(self._at + 1, self._at)
            elif kind == "word":
                self._word(piece)
            else:
                self._at += 1
                key = _undotted(piece[0]) if kind == "dotted" else piece[0]
                self._add(key, piece.start(), piece.end())
        return self.tokens

    def _kind(self, at: int) -> str | None:
        return self._pieces[at].lastgroup if at < len(self._pieces) else None

    def _piece(self, at: int) -> str:
        return self._pieces[at][0] if 0 <= at < len(self._pieces) else ""

    def _is_near(self, at: int) -> bool:
        """Return whether a piece follows the one before with at most a blank, hyphen or period between."""
        if at >= len(self._pieces):
            return False
        gap = self._text[self._pieces[at - 1].end() : self._pieces[at].start()]
        return gap in ("", " ", "\u00a0", "\u202f", "-", ". ", ".", "\n")

    def _add(
        self, key: str, start: int, end: int, value: Quantity | Day | None = None, *, possessive: bool = False
    ) -> None:
        word = self._text[start:end]
        token = Token(key, word, start, end, self._text[self._last : start], value, False, possessive)
        token.is_name = value is None and word[:1].isupper()
        self.tokens.append(token)
        self._last = end

    def _word(self, piece: re.Match[str]) -> None:
        word = normalize("NFKC", piece[0]).casefold().replace("’", "'")
        start, end = piece.span()
        if word in numbers.MONTHS and self._month_date(piece):
            return
        if self._fraction(piece[0], word, start):
            return
        if (word in lexicon.NUMBER_WORDS or (word in numbers.SCALES and self._follows_article())) and word != "zero":
            self._number_words(word)
            return
        self._at += 1
        if word == "minus" and self._kind(self._at) == "number":
            return
        if len(word) == 1 and self._text[start - 1 : start] == "(" and self._text[end : end + 1] == ")":
            self._add(f"({word})", start, end)  # As in "section 4(a)", where it is not an article.
            return
        if piece[0] == "US" or (piece[0] == "A" and self._is_letter(start)):
            self._add(_undotted(piece[0]), start, end)  # "Hepatitis A", not an article; "the US", not a pronoun.
            return
        if word in lexicon.IGNORED:
            return
        if word.endswith("n't") or word in _CONTRACTED:
            base = _CONTRACTED.get(word) or word[:-3]
            if base not in lexicon.IGNORED:
                self._add(_key(base), start, end)
            self._add("not", start, end)
            return
        possessive = word.endswith(("'s", "s'")) or (word.endswith("s") and self._text[end : end + 2] in ("' ", "’ "))
        base = word.removesuffix("'s") if possessive else word
        if base in lexicon.ORDINALS:
            self._add(f"{lexicon.ORDINALS[base]}.", start, end)
            return
        if piece[0][:1].isupper():
            base = lexicon.TITLES.get(base, base)
        self._add(_key(base), start, end, possessive=possessive)

    def _is_letter(self, start: int) -> bool:
        """Return whether the "A" that was read last follows a word, and so does not begin a sentence."""
        if self._at < 2:
            return False
        before = self._piece(self._at - 2)
        if len(before) > 1 and before.isupper():  # In text in capitals, it is an article.
            return False
        gap = self._text[self._pieces[self._at - 2].end() : start]
        return gap in ("-", " ") or (gap == ". " and self._kind(self._at - 2) == "word")

    def _follows_article(self) -> bool:
        return self._at > 0 and self._piece(self._at - 1).casefold() in ("a", "one")

    def _number(self, at: int, money: int | None = None) -> None:
        """Read a number, with the currency before it and the scale and unit behind."""
        piece = self._pieces[at]
        start = self._pieces[at if money is None else money].start()
        digits = piece[0]
        if money is None and at > 0 and self._kind(at - 1) == "number" and self._is_range(at):
            self._add("to", start - 1, start)
        value, significant = numbers.value_of(digits, continental=self._continental)
        sign = self._text[start - 1 : start]
        spaced = start < 2 or self._text[start - 2] in " (\n\u00a0"
        is_minus = sign in _SIGNS and sign != "" and spaced
        is_minus = is_minus or (at > 0 and self._piece(at - 1).casefold() == "minus" and self._is_near(at))
        unit = numbers.UNITS[self._piece(money).casefold()] if money is not None else None
        self._at = at + 1
        if (part := self._text[piece.end() : piece.end() + 1]) and part in _FRACTIONS:
            value += numeric(part)
            self._at += self._kind(self._at) is not None and self._pieces[self._at].start() == piece.end()
        elif (below := self._denominator(self._at, digits)) is not None:
            value /= below
            self._at += 1
        following = self._piece(self._at).casefold()
        if not self._is_near(self._at):
            following = ""
        is_joined = bool(following) and self._pieces[self._at].start() == piece.end()
        if is_joined and (following in _ORDINAL_ENDINGS or (following == "s" and numbers.is_year(value, digits))):
            self._at += 1
            if following != "s" and self._day_date(int(value), start):
                return
            self._add(f"{digits}{'s' if following == 's' else '.'}", start, self._pieces[self._at - 1].end())
            return
        if self._day_date(int(value), start, digits):
            return
        factor = 1.0
        if unit is None and is_joined and (scale := numbers.JOINED_SCALES.get(self._piece(self._at))) is not None:
            factor = scale
            self._at += 1
        while (following := self._piece(self._at).casefold()) and self._is_near(self._at):
            scale = numbers.SCALES.get(following)
            if scale is None and unit is not None and following in numbers.MONEY_SCALES:
                scale = numbers.MONEY_SCALES[following]
            if scale is None:
                break
            factor *= scale
            self._at += 1
        self._quantity(value * factor * (-1 if is_minus else 1), unit, significant, start, digits)

    def _is_range(self, at: int) -> bool:
        """Return whether a number follows another one behind a dash, which then says "to"."""
        return self._text[self._pieces[at - 1].end() : self._pieces[at].start()] in ("-", "–")

    def _quantity(self, value: float, unit: numbers.Unit | None, significant: int, start: int, digits: str) -> None:
        """Add a quantity, after reading its unit."""
        if unit is None and self._is_near(self._at):
            unit, used = self._unit(self._at)
            self._at += used
        if unit is not None:
            unit = self._rate(unit)
        end = self._pieces[self._at - 1].end()
        if unit is None and self._is_version(digits, start, end):
            self._add(digits, start, end)
            return
        if unit is None and numbers.is_year(value, digits) and end - start == len(digits):
            day = Day(int(value), None, None, digits)
            self._add(_key_of(day), start, end, day)
            return
        found = Quantity(value, unit, significant, ("-" if value < 0 else "") + self._text[start:end])
        self._add(f"#{found.measure:.17g}{found.dimension}", start, end, found)

    def _unit(self, at: int) -> tuple[numbers.Unit | None, int]:
        """Return the unit that begins at a piece, and of how many pieces it consists."""
        words = [self._piece(at)]
        if self._is_near(at + 1):
            words.append(self._piece(at + 1))
        is_joined = 0 < at < len(self._pieces) and self._pieces[at].start() == self._pieces[at - 1].end()
        return (numbers.UNITS["pence"], 1) if words == ["p"] and is_joined else numbers.unit_behind(words)

    def _rate(self, unit: numbers.Unit) -> numbers.Unit:
        """Return the unit of a rate if another unit follows, as in "km/h", "$5 per square metre" and "5 g a day"."""
        at = self._at
        if at >= len(self._pieces):
            return unit
        gap = self._text[self._pieces[at - 1].end() : self._pieces[at].start()]
        if gap.strip() == "/" and self._kind(at) == "word":
            below, used = self._unit(at)
        elif self._piece(at).casefold() in ("per", "a", "an") and self._is_near(at) and self._is_near(at + 1):
            at += 1
            below, used = self._unit(at)
            if self._piece(at - 1).casefold() != "per" and (
                below is None or below.dimension not in ("time", "month") or self._piece(at).casefold() == "second"
            ):
                return unit
        else:
            return unit
        if self._kind(at) != "word":
            return unit
        self._at = at + max(1, used)
        if below is None:
            return numbers.Unit(f"{unit.dimension}/{_key(self._piece(at).casefold())}", unit.sign, unit.factor)
        return numbers.rate(unit, below)

    def _is_version(self, digits: str, start: int, end: int) -> bool:
        """Return whether the last zero of a number counts, as in "Python 3.10", which is not Python 3.1."""
        if "." not in digits or not digits.endswith("0") or end - start != len(digits) or not self.tokens:
            return False
        before = self.tokens[-1]
        return before.end + 1 == start and (before.is_name or before.key in _VERSIONED)

    def _number_words(self, word: str) -> None:
        """Read a number in words, such as "twenty-five thousand"."""
        start = self._pieces[self._at].start()
        total, current = 0.0, 0.0
        if word in numbers.SCALES:
            current = 1.0
        while (word := self._piece(self._at).casefold()) and (not total + current or self._is_near(self._at)):
            if word in lexicon.NUMBER_WORDS:
                current += lexicon.NUMBER_WORDS[word]
            elif word == "hundred":
                current *= 100
            elif word in numbers.SCALES:
                total, current = total + current * numbers.SCALES[word], 0.0
            elif not (word == "and" and total + current >= 100 and self._piece(self._at + 1) in lexicon.NUMBER_WORDS):
                break
            self._at += 1
        value = total + current
        if [self._piece(self._at + ahead).casefold() for ahead in range(3)] == ["and", "a", "half"]:
            value += 0.5
            self._at += 3
            while (scale := numbers.SCALES.get(self._piece(self._at).casefold())) and self._is_near(self._at):
                value *= scale
                self._at += 1
        ordinal = lexicon.ORDINALS.get(self._piece(self._at).casefold(), 0)
        if 0 < ordinal < 10 and value >= 20 and value % 10 == 0 and self._is_near(self._at):
            self._at += 1
            self._add(f"{value + ordinal:.0f}.", start, self._pieces[self._at - 1].end())
            return
        below = lexicon.FRACTIONS.get(self._piece(self._at).casefold())
        if below is not None and self._is_near(self._at) and self._piece(self._at).endswith("s") is not (value == 1):
            value /= below
            self._at += 1
        self._quantity(value, None, len(f"{value:.9g}".replace(".", "").strip("0")) or 1, start, "")

    def _fraction(self, written: str, word: str, start: int) -> bool:
        """Read "½", "half a million", "half an hour" and "by a third" from its last word on."""
        following = [self._piece(self._at + ahead).casefold() for ahead in (1, 2)]
        if len(written) == 1 and written in _FRACTIONS:
            self._at += 1
            self._quantity(numeric(written), None, 1, start, "")
            return True
        if word == "half" and following[0] in ("a", "an") and self._is_near(self._at + 2):
            scale = numbers.SCALES.get(following[1])
            if scale is None and self._unit(self._at + 2)[0] is None:
                return False
            self._at += 2 if scale is None else 3
            self._quantity(0.5 * (scale or 1), None, 1, start, "")
            return True
        below = lexicon.FRACTIONS.get(word)
        before = [self._piece(at).casefold() if at >= 0 else "" for at in (self._at - 1, self._at - 2)]
        is_part = before[0] == "a" and (following[0] == "of" or before[1] in lexicon.BEFORE_FRACTION)
        if below is None or not is_part:
            return False
        self._at += 1
        self._quantity(1 / below, None, 1, start, "")
        return True

    def _denominator(self, at: int, digits: str) -> int | None:
        """Return the second number of a fraction such as "2/3", or None."""
        if self._kind(at) != "number" or not digits.isdigit() or not self._piece(at).isdigit():
            return None
        above, below = int(digits), int(self._piece(at))
        gap = self._text[self._pieces[at - 1].end() : self._pieces[at].start()]
        end = self._pieces[at].end()
        return below if gap == "/" and 0 < above < below <= 100 and self._text[end : end + 1] != "/" else None

    def _month(self, at: int) -> int | None:
        word = self._piece(at)
        return numbers.MONTHS.get(word.casefold()) if word[:1].isupper() or word.casefold() in _FRENCH else None

    def _year(self, at: int) -> int | None:
        text = self._piece(at)
        return int(text) if self._kind(at) in ("number", "digits") and numbers.is_year(_int(text), text) else None

    def _day_date(self, day: int, start: int, digits: str = "") -> bool:
        """Read "3 May 2021" from its second word on."""
        if not 1 <= day <= 31 or (digits and not digits.isdigit()):
            return False
        at = self._at + (1 if self._piece(self._at).casefold() == "of" else 0)
        month = self._month(at)
        if month is None:
            return False
        year = self._year(at + 1)
        self._at = at + (2 if year else 1)
        self._date(Day(year, month, day, ""), start)
        return True

    def _month_date(self, piece: re.Match[str]) -> bool:
        """Read "May 3, 2021" or "May 2021"."""
        month = self._month(self._at)
        if month is None:
            return False
        at = self._at + 1
        if (year := self._year(at)) is not None:
            self._at = at + 1
            self._date(Day(year, month, None, ""), piece.start())
            return True
        if self._kind(at) != "number" or not self._piece(at).isdigit() or not 1 <= int(self._piece(at)) <= 31:
            return False
        day = int(self._piece(at))
        at += 1
        if self._piece(at).casefold() in _ORDINAL_ENDINGS:
            at += 1
        year = self._year(at)
        self._at = at + (1 if year else 0)
        self._date(Day(year, month, day, ""), piece.start())
        return True

    def _date(self, day: Day, start: int) -> None:
        end = self._pieces[self._at - 1].end()
        day = Day(day.year, day.month, day.day, self._text[start:end])
        self._add(_key_of(day), start, end, day)


_VERSIONED = stems_of(lexicon.words("version release section chapter figure table paragraph clause"))
_FRENCH = lexicon.words("janvier février mars avril mai juin juillet août septembre octobre novembre décembre")


def _undotted(text: str) -> str:
    """Return the key of an abbreviation. That of "U.S." is in capitals, so that it is not the pronoun."""
    key = text.replace(".", "")
    return key if key in ("US", "A") else key.casefold()


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0


_EXACT = (
    lexicon.AUXILIARIES
    | lexicon.PREPOSITIONS
    | lexicon.RELATIVES
    | lexicon.PRONOUNS
    | lexicon.CONJUNCTIONS
    | lexicon.CLAUSE_WORDS
    | lexicon.CLAUSE_BREAKS
)


def _key(word: str) -> str:
    return word if word in _EXACT else stem(word)


OPPOSITES: Final = {_key(word): frozenset(map(_key, found)) for word, found in lexicon.opposites().items()}
"""Key of a word → keys of its opposites."""


def _key_of(day: Day) -> str:
    return f"@{day.year}-{day.month}-{day.day}"


@lru_cache(maxsize=512)
def tokens(text: str, *, continental: bool = False) -> tuple[Token, ...]:
    """Return the tokens of a sentence. Words that a claim may have or lack are left out."""
    return tuple(_Reader(text, continental=continental).read())


def is_same(claimed: Token, found: Token) -> bool:
    """Return whether a token of a claim says what a token of the source says."""
    if claimed.key == found.key:
        return True
    one, other = claimed.value, found.value
    if isinstance(one, Quantity) and isinstance(other, Quantity):
        return numbers.is_same(one, other)
    if isinstance(one, Day) and isinstance(other, Day):
        return numbers.implies(other, one)
    if isinstance(one, Day) and isinstance(other, Quantity):
        one, other = other, one
    if isinstance(one, Quantity) and isinstance(other, Day):
        return other.month is None and one.unit is None and one.value == other.year
    return False
