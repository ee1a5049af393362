"""Calendar dates in the usual formats, as far as they are unambiguous."""

import re
from typing import Final

from msgspec import Struct

DATE: Final = r"\d{4}-\d{2}-\d{2}(?!\d)|\d{1,2}\.\d{1,2}\.\d{4}(?!\d)|\d{1,2}/\d{1,2}/\d{4}(?!\d)"
"""Matches a date in digits."""
MONTHS: Final = {
    name: number + 1
    for number, names in enumerate(
        (
            "january jan januar janvier enero", "february feb februar février febrero", "march mar märz mars marzo",
            "april apr avril abril", "may mai mayo", "june jun juni juin junio", "july jul juli juillet julio",
            "august aug août agosto", "september sep sept septembre septiembre", "october oct oktober octobre octubre",
            "november nov novembre noviembre", "december dec dezember décembre diciembre",
        )
    )
    for name in names.split()
}  # fmt: skip
WEEKDAYS: Final = frozenset({"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"})
_FIRST_YEAR, _LAST_YEAR = 1000, 2100
_PARTS = re.compile(r"\d+")


class Day(Struct, frozen=True, gc=False):
    """A date, of which only the year or the month may be known."""

    year: int | None
    month: int | None
    day: int | None
    text: str


def is_year(value: float, text: str) -> bool:
    """Return whether a number may be a year: four digits without separators."""
    return len(text) == 4 and text.isdigit() and _FIRST_YEAR <= value <= _LAST_YEAR


def read_digits(text: str) -> Day | None:
    """Return the date that is written in digits. None means that day and month cannot be told apart."""
    first, second, third = (int(part) for part in _PARTS.findall(text))
    if "-" in text:
        return Day(first, second, third, text)
    if "." in text or first > 12:
        return Day(third, second, first, text)
    if second > 12:
        return Day(third, first, second, text)
    return Day(third, first, first, text) if first == second else None


def implies(found: Day, claimed: Day) -> bool:
    """Return whether a date has every part of a claimed one."""
    pairs = ((claimed.year, found.year), (claimed.month, found.month), (claimed.day, found.day))
    return all(claim is None or claim == other for claim, other in pairs)


def is_conflict(claimed: Day, found: Day) -> bool:
    """Return whether two dates differ in a part that both have."""
    pairs = ((claimed.year, found.year), (claimed.month, found.month), (claimed.day, found.day))
    return any(claim is not None and other is not None and claim != other for claim, other in pairs)
