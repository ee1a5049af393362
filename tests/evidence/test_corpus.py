"""The goals for the checks, on the corpus and on claims made from it with other seeds."""

import pytest

from evidence.__main__ import PAGE, SURE, figures, precision, shown, with_figures
from evidence.claims import CLASSES, SEED, claims, documents
from requirements import requirement

NEVER_SURE = ("number", "unit", "negation", "quote", "source")
HELD_OUT = 2024


@requirement("R230")
@pytest.mark.parametrize("seed", [SEED, HELD_OUT])
def test_corpus_goals_are_met(seed: int):
    table = figures(seed)
    assert {kind: sum(table[kind][state] for state in SURE) for kind in NEVER_SURE} == dict.fromkeys(NEVER_SURE, 0)
    assert sum(table["true"][state] for state in SURE) >= 0.85 * table["true"].total()
    assert precision(table) >= 0.95
    assert sum(table[kind]["contradicted"] for kind in CLASSES) >= 100


def test_docs_have_figures_of_corpus():
    page = PAGE.read_text("utf-8")
    assert page == with_figures(page, shown(figures()))


def test_corpus_has_promised_size():
    made = claims()
    counts = {kind: sum(claim.kind == kind for claim in made) for kind in ("true", *CLASSES, "paraphrase")}
    assert counts == {"true": 200, **dict.fromkeys(CLASSES, 25), "paraphrase": 100}
    assert len(documents()) == 60
    assert made == claims()
    assert all(claim.text != claim.origin for claim in made if claim.kind not in ("true", "source"))
