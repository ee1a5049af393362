"""Exact quotations: words between quotation marks, and their place in a source."""

import re
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final
from unicodedata import is_normalized, normalize

from sidestream.evidence.tokens import UNSPACED

QUOTATION: Final = re.compile(r"\"([^\"]{3,1000})\"|“([^“”]{3,1000})”|„([^„“”]{3,1000})[“”]|«\s*([^«»]{3,1000}?)\s*»")
_TOKEN = re.compile(rf"{UNSPACED.pattern}|[^\W_]+")
_INVISIBLE: Final = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\ufeff"))
_HIDDEN = re.compile("[\u00ad\u200b\u200c\u200d\ufeff]")


def quotations(text: str) -> list[tuple[str, int, int]]:
    """Return the quotations of two words or more, each with the start and end of its marks."""
    found = [(next(filter(None, match.groups()), ""), *match.span()) for match in QUOTATION.finditer(text)]
    return [entry for entry in found if says_something(entry[0])]


def frame_of(claim: str, cited: list[tuple[str, int, int]]) -> str:
    """Return a claim without its quotations."""
    frame, last = "", 0
    for _, start, end in cited:
        frame, last = f"{frame}{claim[last:start]} ", end
    return frame + claim[last:]


def says_something(quote: str) -> bool:
    """Return whether a quote has two words, or as many unspaced characters, and one of them is significant."""
    found = _TOKEN.findall(quote.casefold())
    unspaced = [word for word in found if UNSPACED.fullmatch(word)]
    carries_meaning = bool(unspaced) or any(len(word) > 3 or word.isdigit() for word in found)
    return carries_meaning and 2 * len(found) - len(unspaced) >= 4


_BLOCK_CHARS = 512
_PIECE_WORDS = 5
_NEAR_WORDS = 30
"""Words of a cited passage that are looked for."""
_NEAR_CHARS = 2_000_000
"""Characters of a source in which a cited passage is looked for."""
_SIGNS = frozenset("$€£¥₹%‰°+=<>≤≥≈~±×/&@#")
_MINUS = re.compile(r"(?:\s|^)[-–]$|−$")
_OPENING = re.compile(r"[$€£¥₹+−-]\s?$")
_CLOSING = re.compile(r"\s?[%‰°€$£]")


def _gap(text: str, start: int, end: int) -> str:
    """Return the gap between two words: signs and decimal points exactly, blanks and other marks as a blank."""
    gap = text[start:end]
    if not gap or gap in ".,":
        return gap
    if gap in "'’":
        return "'"
    signs = "".join(mark for mark in gap if mark in _SIGNS)
    return signs + ("−" if text[end : end + 1].isdigit() and _MINUS.search(gap) else "") or " "


def place_of(quote: str, text: str) -> tuple[int, int] | None:
    """Return the start and end of a quote in a source, which may differ in blanks, case and Unicode form only."""
    quote = _normalized(quote)
    words = list(_TOKEN.finditer(quote))
    if not words:
        return None
    if text.isascii() or (is_normalized("NFKC", text) and not _HIDDEN.search(text)):
        return _found(quote, words, text)
    found = _found(quote, words, _normalized(text))
    return None if found is None else (_position(text, found[0]), _position(text, found[1] - 1) + 1)


def near(quote: str, text: str) -> tuple[int, int] | None:
    """Return the start and end of the lines that have a passage, which may be cut or differ in some words.

    At least half of its pieces of five words must be there, close together.
    """
    words = quote.replace("…", " ").replace("...", " ").split()[:_NEAR_WORDS]
    pieces = [" ".join(words[at : at + _PIECE_WORDS]) for at in range(0, len(words), _PIECE_WORDS)]
    pieces = [*dict.fromkeys(piece for piece in pieces if says_something(piece))]
    searched = text[:_NEAR_CHARS]
    found: list[tuple[int, int]] = []
    for number, piece in enumerate(pieces):
        if (place := place_of(piece, searched)) is not None:
            found.append(place)
        elif 2 * (number + 1 - len(found)) > len(pieces):
            return None
    if not found:
        return None
    size = 2 * len(quote) + _BLOCK_CHARS
    close = max(([other for other in found if 0 <= other[0] - one[0] <= size] for one in found), key=len)
    if 2 * len(close) < len(pieces):
        return None
    start, end = min(place[0] for place in close), max(place[1] for place in close)
    last = text.find("\n", end)
    return text.rfind("\n", 0, start) + 1, len(text) if last < 0 else last


def _found(quote: str, words: list[re.Match[str]], text: str) -> tuple[int, int] | None:
    folded, wanted = text.lower(), [word[0].lower() for word in words]
    if len(folded) != len(text):
        folded, wanted = text, [word[0] for word in words]
    gaps = [_gap(quote, one.end(), other.start()) for one, other in pairwise(words)]
    opening = _OPENING.search(quote, 0, words[0].start())
    closing = _CLOSING.match(quote, words[-1].end())
    start = folded.find(wanted[0])
    while start >= 0:
        end = _walk(folded, start, wanted, gaps)
        if (
            end is not None
            and _begins(text, start, opening[0].strip() if opening is not None else "")
            and _ends(text, end, closing[0].strip() if closing is not None else "")
        ):
            sign = _CLOSING.match(text, end) if closing is not None else None
            return start, end if sign is None else sign.end()
        start = folded.find(wanted[0], start + 1)
    return None


def _walk(text: str, start: int, words: list[str], gaps: list[str]) -> int | None:
    """Return where the words end that begin at a position, or None."""
    end = start
    for at, word in enumerate(words):
        found = _TOKEN.search(text, end)
        if found is None or found[0] != word or (at == 0 and found.start() != start):
            return None
        if at and _gap(text, end, found.start()) != gaps[at - 1]:
            return None
        end = found.end()
    return end


def _begins(text: str, start: int, sign: str) -> bool:
    """Return whether a word or number begins at a position, behind this sign."""
    before = text[max(0, start - 2) : start]
    if sign:
        return before.strip().endswith(sign)
    if text[start].isdigit() and (before[-1:] in ("$", "€", "£", "¥", "₹", "−") or re.search(r"\d[.,]$", before)):
        return before[-1:] not in (".", ",", "−")
    return not before or not before[-1].isalnum() or UNSPACED.match(before[-1]) is not None


def _ends(text: str, end: int, sign: str) -> bool:
    """Return whether a word or number ends at a position, with this sign behind it."""
    after = text[end : end + 2]
    if sign:
        return after.strip().startswith(sign)
    if text[end - 1].isdigit() and re.match(r"[.,–-]\d", after):
        return False
    if after[:1] == "/" and after[1:].isalnum():  # "90 km" does not end within "90 km/h".
        return False
    return not after or not after[0].isalnum() or UNSPACED.match(after[0]) is not None


@lru_cache(maxsize=8)
def _normalized(text: str) -> str:
    """Return the text in its compatible form, without invisible characters."""
    return _plain(text)


def _position(text: str, at: int) -> int:
    """Return the original position of a character of the normalised form."""
    sizes = _sizes(text)
    block = max(0, bisect_right(sizes, at) - 1)
    start = block * _BLOCK_CHARS
    piece = text[start : start + _BLOCK_CHARS]
    return start + bisect_right(range(len(piece)), at - sizes[block], key=lambda end: len(_plain(piece[: end + 1])))


@lru_cache(maxsize=8)
def _sizes(text: str) -> list[int]:
    """Return the length of the normalised form of everything before each block."""
    blocks = [len(_plain(text[at : at + _BLOCK_CHARS])) for at in range(0, len(text), _BLOCK_CHARS)]
    return [0, *accumulate(blocks[:-1])]


def _plain(text: str) -> str:
    plain = normalize("NFKC", text)
    return plain.translate(_INVISIBLE) if _HIDDEN.search(plain) else plain
