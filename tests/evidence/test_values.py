"""Numbers, units, dates and quotations, in the notations that texts use."""

import pytest

from requirements import requirement
from sidestream.evidence.numbers import Day, Quantity, is_continental
from sidestream.evidence.quotes import place_of, quotations, says_something
from sidestream.evidence.tokens import is_same, sentences, stem, tokens


def value(text: str) -> Quantity | Day:
    (found,) = [token.value for token in tokens(text, continental=is_continental(text)) if token.value is not None]
    return found


@requirement("R230")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,230", "1230"),
        ("1,230", "1.23 thousand"),
        ("1.230,5", "1,230.5"),
        ("1 230 500 €", "1.230.500 €"),
        ("12,5 %", "12.5 percent"),
        ("$1.5m", "1,500,000 dollars"),
        ("2 bn euros", "€2,000 million"),
        ("3 per cent", "3%"),
        ("5 percentage points", "5 pp"),
        ("50 basis points", "0.5 percentage points"),
        ("5 km", "5,000 metres"),
        ("2 hours", "120 min"),
        ("10 square kilometres", "1,000 hectares"),
        ("90 km/h", "90 kilometres per hour"),
        ("60 mph", "60 miles per hour"),
        ("36 km/h", "10 m/s"),
        ("twenty-five", "25"),
        ("a million", "1,000,000"),
        ("−5 °C", "minus 5 degrees Celsius"),
        ("3 May 2021", "May 3rd, 2021"),
        ("2021-05-03", "03.05.2021"),
        ("3. Mai 2021", "3 mai 2021"),
        ("13/05/2021", "13 May 2021"),
    ],
)
def test_notations_of_one_value_are_equal(one: str, other: str):
    (first,), (second,) = [
        [token for token in tokens(text, continental=is_continental(text)) if token.value is not None]
        for text in (one, other)
    ]
    assert is_same(first, second)
    assert is_same(second, first)


@requirement("R230")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.23 million", "1.23 billion"),
        ("5 %", "5 percentage points"),
        ("5 mW", "5 MW"),
        ("5 kg", "5 g"),
        ("90 km/h", "90 km"),
        ("5 m/s²", "5 m"),
        ("5 m/s²", "5 m/s"),
        ("90 km/h", "90 miles per hour"),
        ("90 km/h", "90 km/s"),
        ("$5", "€5"),
        ("−5 °C", "5 °C"),
        ("5 °C", "5 °F"),
        ("5 hours", "5 days"),
        ("10 m", "10 m²"),
        ("3 May 2021", "5 March 2021"),
        ("1990s", "1990"),
        ("2nd place", "2 places"),
    ],
)
def test_other_values_differ(one: str, other: str):
    assert not is_same(tokens(one)[0], tokens(other)[0])


def test_month_follows_from_day_but_not_day_from_month():
    day, month = tokens("3 May 2021")[0], tokens("May 2021")[0]
    assert is_same(month, day)
    assert not is_same(day, month)


def test_ambiguous_slashed_date_is_compared_as_written():
    assert value("13/05/2021") == Day(2021, 5, 13, "13/05/2021")
    assert [token.value for token in tokens("03/05/2021")] == [None]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rising", "rose"),
        ("companies", "company"),
        ("stopped", "stop"),
        ("colours", "color"),
        ("organised", "organize"),
        ("noting", "noted"),
        ("used", "uses"),
        ("prizes", "prize"),
        ("planned", "plans"),
        ("closing", "closed"),
        ("metres", "meter"),
    ],
)
def test_inflections_share_stem(one: str, other: str):
    assert stem(one) == stem(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("larger", "largest"),
        ("careful", "careless"),
        ("news", "new"),
        ("note", "not"),
        ("noted", "not"),
        ("none", "non"),
        ("rates", "rats"),
        ("care", "cars"),
        ("planes", "plans"),
        ("here", "her"),
    ],
)
def test_other_words_have_other_stems(one: str, other: str):
    assert stem(one) != stem(other)


def test_sentences_keep_abbreviations_dates_and_wrapped_lines():
    text = (
        "Heading\nDr. Li met J. Poe at 5 °C. Am 3. Mai kam er, und er blieb dort den ganzen\nTag lang. \n- one\n- two"
    )
    assert [sentence.text for sentence in sentences(text)] == [
        "Heading",
        "Dr. Li met J. Poe at 5 °C.",
        "Am 3. Mai kam er, und er blieb dort den ganzen\nTag lang.",
        "- one",
        "- two",
    ]
    assert all(text[sentence.start : sentence.end] == sentence.text for sentence in sentences(text))


TEXT = "It fell to −5 °C. The ﬁrst “well-known” result: 3.5 % of $12,000 — don’t ask. co\u00adoperate now"


@requirement("R230")
@pytest.mark.parametrize(
    ("quote", "found"),
    [
        ("fell  to -5", "fell to −5"),
        ("fell to 5", None),
        ("FIRST well-known result", "ﬁrst “well-known” result"),
        ("3.5 % of $12,000", "3.5 % of $12,000"),
        ("3.5 of $12,000", None),
        ("5 % of", None),
        ("% of $12", None),
        ("don't ask", "don’t ask"),
        ("cooperate now", "co\u00adoperate now"),
        ("known resul", None),
    ],
)
def test_quote_differs_in_blanks_case_and_unicode_form_only(quote: str, found: str | None):
    place = place_of(quote, TEXT)
    assert (place and TEXT[slice(*place)]) == found


def test_quotations_have_two_words():
    assert [text for text, _, _ in quotations('He said "yes", “the whole truth” and «rien du tout».')] == [
        "the whole truth",
        "rien du tout",
    ]
    assert not says_something("for the")
