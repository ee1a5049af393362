"""Numbers with their scales, units and currencies, in English and in unambiguous continental formats."""

import re
from functools import lru_cache
from typing import Final, Literal

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


NUMBER: Final = (
    r"\d{1,3}(?:\.\d{3})+,\d+(?!\d)"
    r"|\d{1,3}(?:(?:,\d{3})+|(?:\.\d{3}){2,}|(?:['’\u00a0\u202f\u2009 ]\d{3})+)(?:[.,]\d+)?(?!\d)"
    r"|\d+(?:[.,]\d+)?|(?<![\w.,])\.\d+"
)
"""Matches an unsigned number."""
CODE: Final = r"\d+(?::\d+)+(?:\.\d+)?(?!\w)|(?!\d{1,3}(?:\.\d{3})+(?![.\d]))\d+(?:\.\d+){2,}(?![\w,])"
"""Matches digits that are not a quantity: a time or ratio such as "16:30", a version or address such as "1.2.3"."""
_AMBIGUOUS: Final = re.compile(r"[0-9][.,][0-9]{3}(?![0-9])")
_CONTINENTAL: Final = re.compile(
    r"[0-9]\.[0-9]{3}(?:,[0-9]+|\.[0-9]{3})|(?<![0-9.,])[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})(?![0-9.,]*[0-9])"
)
_ENGLISH: Final = re.compile(
    r"[0-9],[0-9]{3}(?:\.[0-9]+|,[0-9]{3})|(?<![0-9.,])[0-9]+\.(?:[0-9]{1,2}|[0-9]{4,})(?![0-9.,]*[0-9])"
)

SCALES: Final = {
    "hundred": 1e2, "thousand": 1e3, "tausend": 1e3, "mille": 1e3, "million": 1e6, "millions": 1e6, "mio": 1e6,
    "millionen": 1e6, "mn": 1e6, "mln": 1e6, "billion": 1e9, "billions": 1e9, "bn": 1e9, "milliarde": 1e9,
    "milliarden": 1e9, "milliard": 1e9, "milliards": 1e9, "mrd": 1e9, "trillion": 1e12, "trillions": 1e12, "tn": 1e12,
    "trn": 1e12, "dozen": 12.0,
}  # fmt: skip
JOINED_SCALES: Final = {"K": 1e3, "M": 1e6, "B": 1e9}
"""Capitals that are scales directly behind a number."""
MONEY_SCALES: Final = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
"""Letters that are scales directly behind an amount of money."""

_UNITS = """
length m 1: m metre metres meter meters; length m 1e3: km kilometre kilometres kilometer kilometers
length m 1e-2: cm centimetre centimetres centimeter centimeters
length m 1e-3: mm millimetre millimetres millimeter millimeters
length m 1e-6: µm μm micrometre micrometres micrometer micrometers micron microns
length m 1e-9: nm nanometre nanometres nanometer nanometers; length m 1609.344: mile miles
length m 0.3048: ft foot feet; length m 0.0254: inch inches; length m 0.9144: yd yard yards; length m 1852: nmi
mass g 1: g gram grams gramme grammes; mass g 1e3: kg kilogram kilograms kilogramme kilogrammes kilo kilos
mass g 1e-3: mg milligram milligrams; mass g 1e-6: µg μg mcg microgram micrograms; mass g 1e6: tonne tonnes t
mass g 453.59237: lb lbs; mass g 28.349523125: oz ounce ounces; short-ton t 1: ton tons; pound pound 1: pound pounds
stone stone 1: stone stones; volume l 1: l litre litres liter liters
volume l 1e-3: ml millilitre millilitres milliliter milliliters; volume l 0.01: cl centilitre centilitres
volume l 0.1: dl decilitre decilitres; volume l 100: hl hectolitre hectolitres; gallon gallon 1: gallon gallons
barrel barrel 1: barrel barrels bbl; pint pint 1: pint pints; time s 1: s sec secs seconds second
time s 60: min mins minute minutes; time s 3600: h hr hrs hour hours; time s 86400: day days
time s 604800: week weeks; time s 1e-3: ms millisecond milliseconds; time s 1e-6: µs μs microsecond microseconds
time s 1e-9: ns nanosecond nanoseconds; month month 1: month months; month month 12: year years
month month 120: decade decades; month month 1200: century centuries; energy J 1: j joule joules
energy J 1e3: kj kilojoule kilojoules; energy J 3.6e6: kwh; energy J 3.6e9: mwh; energy J 3.6e12: gwh
energy J 3.6e15: twh; energy J 3600: wh; calorie cal 1: kcal calorie calories; power W 1: w watt watts
power W 1e3: kw kilowatt kilowatts; power W 1e6: mw megawatt megawatts; power W 1e9: gw gigawatt gigawatts
horsepower hp 1: hp horsepower; volt V 1: v volt volts; volt V 1e3: kv kilovolt kilovolts
ampere A 1: amp amps ampere amperes; ampere A 1e-3: ma milliamp milliamps; data B 1: byte bytes
data B 1e3: kb kilobyte kilobytes; data B 1e6: mb megabyte megabytes; data B 1e9: gb gigabyte gigabytes
data B 1e12: tb terabyte terabytes; data B 1e15: pb petabyte petabytes; data B 1024: kib; data B 1048576: mib
data B 1073741824: gib; bit bit 1: bit bits; bit bit 1e3: kbit; bit bit 1e6: mbit; bit bit 1e9: gbit
frequency Hz 1: hz hertz; frequency Hz 1e3: khz kilohertz; frequency Hz 1e6: mhz megahertz
frequency Hz 1e9: ghz gigahertz; pressure Pa 1: pa pascal pascals; pressure Pa 1e2: hpa; pressure Pa 1e3: kpa
pressure Pa 1e6: mpa; pressure Pa 1e5: bar bars; pressure Pa 1e2: mbar; psi psi 1: psi
decibel dB 1: db decibel decibels; area m2 1e4: ha hectare hectares; area m2 4046.8564224: acre acres
degree ° 1: degree degrees °; celsius °C 1: °c celsius; fahrenheit °F 1: °f fahrenheit; kelvin K 1: kelvin kelvins
percent % 1: % percent prozent; points pp 1: pp; permille ‰ 1: ‰; USD $ 1: usd dollar dollars $ us$
EUR € 1: eur euro euros €; GBP £ 1: gbp £ sterling; JPY ¥ 1: jpy yen ¥; CHF CHF 1: chf franc francs franken
INR ₹ 1: inr rupee rupees ₹; CNY CNY 1: cny rmb yuan; SEK kr 1: sek krona kronor; NOK kr 1: nok
DKK kr 1: dkk krone kroner; AUD A$ 1: aud a$ au$; CAD C$ 1: cad c$ ca$; NZD NZ$ 1: nzd nz$;
HKD HK$ 1: hkd hk$; SGD S$ 1: sgd s$ sg$; BRL R$ 1: brl r$; speed m/s 0.44704: mph;
cent c 1: cent cents; penny p 1: pence penny
"""
_TWO_WORDS: Final = {
    ("per", "cent"): "%", ("pour", "cent"): "%", ("percentage", "point"): "pp", ("percentage", "points"): "pp",
    ("degrees", "celsius"): "°c", ("degrees", "fahrenheit"): "°f", ("degree", "celsius"): "°c",
    ("degree", "fahrenheit"): "°f", ("°", "c"): "°c", ("°", "f"): "°f", ("metric", "tons"): "tonnes",
    ("metric", "tonnes"): "tonnes", ("us", "dollars"): "usd", ("pounds", "sterling"): "gbp", ("swiss", "francs"): "chf",
    ("australian", "dollars"): "aud", ("canadian", "dollars"): "cad", ("kilowatt", "hours"): "kwh",
    ("kilowatt", "hour"): "kwh", ("megawatt", "hours"): "mwh", ("megawatt", "hour"): "mwh",
    ("gigawatt", "hours"): "gwh", ("gigawatt", "hour"): "gwh", ("terawatt", "hours"): "twh",
    ("terawatt", "hour"): "twh", ("watt", "hours"): "wh", ("watt", "hour"): "wh",
    ("nautical", "miles"): "nmi", ("basis", "points"): "bps", ("basis", "point"): "bps",
}  # fmt: skip
_CASED: Final = {
    "mW": ("power", "W", 1e-3), "mV": ("volt", "V", 1e-3), "MV": ("volt", "V", 1e6), "Mb": ("bit", "bit", 1e6),
    "Gb": ("bit", "bit", 1e9), "mPa": ("pressure", "Pa", 1e-3), "mHz": ("frequency", "Hz", 1e-3),
    "mJ": ("energy", "J", 1e-3), "MJ": ("energy", "J", 1e6), "Mg": ("mass", "g", 1e6),
    "MA": ("ampere", "A", 1e6),
}  # fmt: skip
"""Signs whose meaning depends on their case."""
_VAGUE: Final = frozenset({"degree", "pound"})
"""Dimensions of words that leave open which unit they mean."""
_PREFIXED_AREAS: Final = {"square": "2", "cubic": "3"}


class Unit(Struct, frozen=True, gc=False):
    """A unit of measure."""

    dimension: str
    sign: str
    factor: float


def _read_units() -> dict[str, Unit]:
    units = {"bps": Unit("points", "pp", 0.01)}
    for entry in _UNITS.replace("\n", ";").split(";"):
        if entry.strip():
            head, names = entry.split(": ")
            dimension, sign, factor = head.split()
            units |= {name: Unit(dimension, sign, float(factor)) for name in names.split()}
    for name, unit in [(name, unit) for name, unit in units.items() if unit.dimension == "length"]:
        units |= {
            name + mark: Unit(f"length{power}", f"{unit.sign}{power}", unit.factor**power)
            for mark, power in (("²", 2), ("³", 3), ("2", 2), ("3", 3))
        }
    for name, unit in units.items():
        if unit.dimension == "length2":
            units[name] = Unit("area", "m2", unit.factor)
    return units


UNITS: Final = _read_units()
"""Name or sign of a unit, in lower case → unit."""


class Quantity(Struct, frozen=True, gc=False):
    """A number with its unit."""

    value: float
    """Number with its scale, in `unit`."""
    unit: Unit | None
    digits: int
    """Significant digits written."""
    text: str
    """Number, scale and unit verbatim."""

    @property
    def measure(self) -> float:
        """The value in the base unit of its dimension."""
        return self.value * (self.unit.factor if self.unit else 1.0)

    @property
    def dimension(self) -> str:
        """The dimension of the unit, or an empty string."""
        return self.unit.dimension if self.unit else ""


def is_ambiguous(text: str) -> bool:
    """Return whether a number's only separator may be a decimal one or not."""
    return _AMBIGUOUS.search(text) is not None


@lru_cache(maxsize=16)
def is_continental(text: str) -> bool:
    """Return whether the numbers of a string have decimal commas: one has, and none has a decimal point."""
    return _CONTINENTAL.search(text) is not None and _ENGLISH.search(text) is None


def value_of(text: str, *, continental: bool) -> tuple[float, int]:
    """Return the value of a number's digits, and how many of them are significant."""
    plain = re.sub(r"['’\s]", "", text)
    commas, points = plain.count(","), plain.count(".")
    if commas and points:
        decimal = "," if plain.rfind(",") > plain.rfind(".") else "."
    elif commas > 1 or points > 1:
        decimal = ""
    elif commas or points:
        mark = "," if commas else "."
        is_group = len(plain.split(mark)[1]) == 3 and not plain.startswith("0")
        groups = "." if continental else ","
        decimal = "" if is_group and mark == groups else mark
    else:
        decimal = ""
    whole, _, fraction = plain.partition(decimal) if decimal else (plain, "", "")
    whole = whole.replace(",", "").replace(".", "")
    digits = (whole + fraction).lstrip("0")
    significant = len(digits) if fraction else len(digits.rstrip("0"))
    return float(f"{whole or 0}.{fraction or 0}"), max(1, significant)


def unit_behind(words: list[str]) -> tuple[Unit | None, int]:
    """Return the unit that the words behind a number begin with, and of how many words it consists."""
    if not words:
        return None, 0
    lower = [word.casefold() for word in words[:2]]
    if len(words) > 1:
        if (name := _TWO_WORDS.get((lower[0], lower[1]))) is not None:
            return (UNITS[name], 2)
        if (power := _PREFIXED_AREAS.get(lower[0])) is not None and (unit := UNITS.get(lower[1] + power)) is not None:
            return unit, 2
    unit = Unit(*_CASED[words[0]]) if words[0] in _CASED else UNITS.get(lower[0])
    return (unit, 1) if unit is not None else (None, 0)


def rate(unit: Unit, below: Unit) -> Unit:
    """Return the unit of a quantity per unit of another."""
    if (unit.dimension, below.dimension) == ("length", "time"):
        return Unit("speed", "m/s", unit.factor / below.factor)
    return Unit(f"{unit.dimension}/{below.dimension}", f"{unit.sign}/{below.sign}", unit.factor / below.factor)


def is_same(claimed: Quantity, found: Quantity) -> bool:
    """Return whether two quantities are equal in value and unit."""
    if claimed.text == found.text:
        return True
    return claimed.dimension == found.dimension and _is_close(claimed.measure, found.measure)


def is_rounded(claimed: Quantity, found: Quantity) -> bool:
    """Return whether one quantity may be a rounded form of the other."""
    if claimed.dimension != found.dimension:
        return False
    coarse, fine = sorted((claimed, found), key=lambda entry: entry.digits)
    if coarse.digits == fine.digits or not fine.measure:
        return False
    rounded = float(f"{fine.measure:.{coarse.digits - 1}e}")
    return _is_close(rounded, coarse.measure)


def conflict(claimed: Quantity, found: Quantity) -> Literal["number", "unit"] | None:
    """Return the check that two quantities in the same place fail, `number` or `unit`, or None."""
    if is_same(claimed, found) or is_rounded(claimed, found):
        return None
    if claimed.dimension in _VAGUE or found.dimension in _VAGUE:
        return None if _is_close(claimed.value, found.value) else "number"
    if claimed.dimension != found.dimension:
        return "unit" if claimed.unit and found.unit and _is_close(claimed.value, found.value) else None
    if claimed.unit != found.unit and _is_close(claimed.value, found.value):
        return "unit"
    return "number"


def _is_close(one: float, other: float) -> bool:
    size = max(abs(one), abs(other))
    return abs(one - other) <= max(min(1e-9 * size, 0.4), 1e-15 * size)  # Whole numbers differ by one or more.
