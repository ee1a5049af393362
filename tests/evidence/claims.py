"""The claims of the corpus, made from its documents with a seed: true ones, and ones changed in exactly one way.

This module knows nothing of the checks. It writes what a careful forger would, from patterns of its own.
"""

import random
import re
from calendar import month_name
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

CORPUS = Path(__file__).parent / "corpus"
SEED = 39
TRUE, CHANGED = 200, 25
CLASSES = ("number", "unit", "negation", "name", "order", "date", "quote", "source")

_MONTHS = list(month_name)[1:]
_NUMBER = re.compile(r"(?<![\w.,:/–−-])(\d{1,3}(?:,\d{3})+|\d+\.\d+|\d+)(?![\w:–]|[.,]\d|/)")
_YEAR = re.compile(r"\b1[5-9]\d\d\b|\b20[0-4]\d\b")
_DATE = re.compile(rf"\b(\d{{1,2}}) ({'|'.join(_MONTHS)}) (\d{{4}})\b")
_UNITS = [
    ("million", "billion"), ("billion", "million"), ("percentage points", "%"), ("%", "percentage points"),
    ("km", "miles"), ("metres", "feet"), ("m", "cm"), ("kilometres", "metres"), ("kg", "tonnes"), ("tonnes", "kg"), ("mg", "g"), ("g", "mg"),
    ("hours", "minutes"), ("minutes", "seconds"), ("days", "weeks"), ("weeks", "days"), ("months", "years"), ("years", "months"),
    ("dollars", "euros"), ("euros", "dollars"), ("pounds", "francs"), ("francs", "pounds"), ("litres", "millilitres"), ("ml", "litres"),
    ("hectares", "acres"), ("GWh", "MWh"), ("MW", "GW"), ("kW", "MW"), ("kWh", "MWh"), ("GB", "TB"), ("TB", "GB"), ("mm", "cm"), ("cm", "mm"),
    ("°C", "°F"), ("GHz", "MHz"), ("barrels", "litres"), ("cents", "dollars"), ("km/h", "mph"), ("W", "kW"), ("seconds", "minutes"),
]  # fmt: skip
_OPPOSITE = {
    "rose": "fell", "fell": "rose", "larger": "smaller", "smaller": "larger", "raised": "lowered", "lowered": "raised",
    "opened": "closed", "closed": "opened", "bought": "sold", "sold": "bought", "increased": "decreased", "heavier": "lighter",
    "faster": "slower", "oldest": "youngest", "coldest": "warmest", "northern": "southern", "grew": "shrank", "more": "less",
    "dropped": "rose", "won": "lost", "exceeded": "undercut", "above": "below", "behind": "ahead of",
}  # fmt: skip
_PAST = {
    "produced": "produce", "measured": "measure", "designed": "design", "directed": "direct", "scored": "score", "reported": "report",
    "supplied": "supply", "resigned": "resign", "translated": "translate", "paid": "pay", "approved": "approve", "signed": "sign",
    "counted": "count", "taught": "teach", "wrote": "write", "carried": "carry", "composed": "compose", "delivered": "deliver",
    "planted": "plant", "catalogued": "catalogue", "supervised": "supervise", "discovered": "discover", "became": "become",
}  # fmt: skip
_FRAMES = [
    'The report says: "{}".',
    'According to the document, "{}".',
    'The source states that "{}".',
    "It says “{}”.",
]
_OTHER_WORDS = [
    "harbour",
    "silver",
    "winter",
    "committee",
    "engine",
    "garden",
    "signal",
    "copper",
    "mountain",
    "window",
]


class Claim(NamedTuple):
    """A claim about a document. `kind` is `true`, `paraphrase` or the way in which it was changed."""

    document: str
    text: str
    kind: str
    origin: str


class Document(NamedTuple):
    """A document and the names in it."""

    id: str
    text: str
    names: list[str]

    def sentences(self) -> list[str]:
        text = re.sub(r"(?m)^#.*$|^- ", "", self.text)
        return [
            part.strip().replace("\n", " ")
            for part in re.split(r"(?<=[.])(?<! 1\.)\s+(?=[A-Z\"])", text)
            if part.strip()
        ]


def documents() -> list[Document]:
    found: list[Document] = []
    for part in (CORPUS / "documents.md").read_text().split("## ")[1:]:
        if part.startswith("\n"):
            continue
        head, names, text = part.split("\n", 2)
        found.append(Document(head.strip(), text.strip(), names.removeprefix("names: ").split("; ")))
    return found


def paraphrases() -> list[Claim]:
    lines = (CORPUS / "paraphrases.txt").read_text().splitlines()
    return [Claim(document, text, "paraphrase", "") for document, text in (line.split(" | ") for line in lines)]


def claims(seed: int = SEED) -> list[Claim]:
    """Return 200 true claims, 25 changed in each way, and the paraphrases."""
    rng = random.Random(seed)
    texts = documents()
    pairs = [(document, sentence) for document in texts for sentence in document.sentences()]
    made: list[Claim] = []
    rng.shuffle(pairs)
    for at, (document, sentence) in enumerate(pairs[:TRUE]):
        made.append(Claim(document.id, _told(rng, sentence, at), "true", sentence))
    for kind in CLASSES:
        rng.shuffle(pairs)
        made += _take(_changed(rng, kind, pairs, texts), CHANGED)
    return made + paraphrases()


def _take(found: Iterator[Claim], count: int) -> list[Claim]:
    taken = [claim for claim, _ in zip(found, range(count), strict=False)]
    assert len(taken) == count, (taken[:1], len(taken))
    return taken


def _told(rng: random.Random, sentence: str, at: int) -> str:
    """Return a sentence in one of the literal ways to repeat it."""
    way = at % 5
    if way == 1:
        plain = re.sub(r"(?<=\d),(?=\d{3})", "", sentence)
        return re.sub(r"(?<=\d) %", rng.choice(["%", " percent", " per cent"]), plain)
    if way == 2:
        return _DATE.sub(lambda found: f"{found[2]} {found[1]}, {found[3]}", sentence).rstrip(".")
    if way == 3:
        words = sentence.rstrip(".").split()
        if len(words) >= 7 and '"' not in sentence:
            start = rng.randrange(0, len(words) - 5)
            return rng.choice(_FRAMES).format(" ".join(words[start : start + rng.randint(5, 8)]).rstrip(","))
    if way == 4:
        shorter = re.sub(r"\b(?:the|a|an) ", "", sentence)
        head = re.split(r", and |; | because ", shorter)[0].rstrip(".")
        return head[0].upper() + head[1:] + "."
    return sentence


def _changed(
    rng: random.Random, kind: str, pairs: list[tuple[Document, str]], texts: list[Document]
) -> Iterator[Claim]:
    for document, sentence in pairs:
        if kind == "source":
            other = rng.choice([entry for entry in texts if entry.id != document.id])
            yield Claim(other.id, sentence, kind, sentence)
            continue
        new = _CHANGES[kind](rng, document, sentence, texts)
        if new is not None and new != sentence and sentence not in new:
            yield Claim(document.id, new, kind, sentence)


def _replaced(sentence: str, found: re.Match[str], new: str) -> str:
    return sentence[: found.start()] + new + sentence[found.end() :]


def _number(rng: random.Random, document: Document, sentence: str, texts: list[Document]) -> str | None:
    dated = [found.span() for found in _DATE.finditer(sentence)]
    found = [
        match
        for match in _NUMBER.finditer(sentence)
        if not _YEAR.fullmatch(match[0]) and not any(a <= match.start() < b for a, b in dated)
    ]
    if not found:
        return None
    chosen = rng.choice(found)
    text = chosen[0]
    if "," in text and rng.random() < 0.3:
        return _replaced(sentence, chosen, text.replace(",", "") + "0")
    places = [at for at, digit in enumerate(text) if digit.isdigit()]
    at = rng.choice(places)
    digit = rng.choice([entry for entry in "123456789" if entry != text[at]])
    return _replaced(sentence, chosen, text[:at] + digit + text[at + 1 :])


def _unit(rng: random.Random, document: Document, sentence: str, texts: list[Document]) -> str | None:
    options: list[str] = []
    for old, new in _UNITS:
        found = re.search(rf"(?<=\d) {re.escape(old)}(?![\w/])", sentence)
        if found is not None:
            options.append(_replaced(sentence, found, f" {new}"))
    return rng.choice(options) if options else None


def _negation(rng: random.Random, document: Document, sentence: str, texts: list[Document]) -> str | None:
    if re.search(r" (?:does|did|do) not ", sentence):
        return None if " not " not in sentence else re.sub(r" (?:does|did|do) not ", " ", sentence, count=1)
    for pattern, new in ((r" not ", " "), (r" never ", " "), (r" no longer ", " "), (r"^No one has ", "People have ")):
        if re.search(pattern, sentence):
            return re.sub(pattern, new, sentence, count=1)
    opposite = [word for word in _OPPOSITE if re.search(rf"\b{word}\b", sentence)]
    if opposite and rng.random() < 0.5:
        word = rng.choice(opposite)
        return re.sub(rf"\b{word}\b", _OPPOSITE[word], sentence, count=1)
    past = [word for word in _PAST if re.search(rf" {word} ", sentence)]
    if past:
        return re.sub(rf" {past[0]} ", f" did not {_PAST[past[0]]} ", sentence, count=1)
    auxiliary = re.search(r" (was|were|is|are|has|have|can|must) ", sentence)
    return None if auxiliary is None else _replaced(sentence, auxiliary, f" {auxiliary[1]} not ")


def _name(rng: random.Random, document: Document, sentence: str, texts: list[Document]) -> str | None:
    present = [name for name in document.names if name in sentence]
    if not present:
        return None
    old = rng.choice(present)
    others = [name for entry in texts if entry.id != document.id for name in entry.names]
    same = [name for name in others if len(name.split()) == len(old.split()) and name not in document.text]
    return sentence.replace(old, rng.choice(same))


def _order(rng: random.Random, document: Document, sentence: str, texts: list[Document]) -> str | None:
    found = re.fullmatch(r"(.+) before (.+)\.", sentence)
    present = sorted((name for name in document.names if name in sentence), key=sentence.index)
    if len(present) >= 2 and not re.search(r" and ", sentence[sentence.index(present[0]) : sentence.index(present[1])]):
        one, other = present[:2]
        return sentence.replace(one, "\0").replace(other, one).replace("\0", other)
    if found is not None and not any(name in found[1] for name in document.names):
        first = found[2][0].upper() + found[2][1:]
        return f"{first} before {found[1][0].lower() + found[1][1:]}."
    then = re.fullmatch(r"(.+), then (.+)\.", sentence)
    if then is not None:
        return f"{then[2][0].upper() + then[2][1:]}, then {then[1][0].lower() + then[1][1:]}."
    fromto = re.search(r"from ([\d.,]+(?: %| \w+)?) to ([\d.,]+(?: %| \w+)?)", sentence)
    return None if fromto is None else _replaced(sentence, fromto, f"from {fromto[2].rstrip('.')} to {fromto[1]}")


def _date(rng: random.Random, document: Document, sentence: str, texts: list[Document]) -> str | None:
    whole = _DATE.search(sentence)
    if whole is not None:
        day, month, year = whole[1], whole[2], int(whole[3])
        ways: list[Callable[[], str]] = [
            lambda: f"{int(day) % 27 + 1} {month} {year}",
            lambda: f"{day} {rng.choice([entry for entry in _MONTHS if entry != month])} {year}",
            lambda: f"{day} {month} {year + rng.choice([-10, -1, 1, 2, 10])}",
        ]
        return _replaced(sentence, whole, rng.choice(ways)())
    found = _YEAR.search(sentence)
    return None if found is None else _replaced(sentence, found, str(int(found[0]) + rng.choice([-10, -1, 1, 3, 10])))


def _quote(rng: random.Random, document: Document, sentence: str, texts: list[Document]) -> str | None:
    words = sentence.rstrip(".").split()
    if len(words) < 7:
        return None
    start = rng.randrange(0, len(words) - 5)
    piece = words[start : start + rng.randint(5, 8)]
    places = [at for at, word in enumerate(piece) if len(word) > 3 and word.isalpha()]
    if not places:
        return None
    at = rng.choice(places)
    piece[at] = rng.choice([word for word in _OTHER_WORDS if word != piece[at]])
    return rng.choice(_FRAMES).format(" ".join(piece).rstrip(","))


_CHANGES = {
    "number": _number,
    "unit": _unit,
    "negation": _negation,
    "name": _name,
    "order": _order,
    "date": _date,
    "quote": _quote,
}
