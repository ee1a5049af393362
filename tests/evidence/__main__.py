"""Print how the checks judge the claims of the corpus, by class: `make evidence`."""

import argparse
from collections import Counter
from pathlib import Path

from evidence.claims import CLASSES, SEED, claims, documents
from sidestream.evidence import judge

STATES = ("quoted", "supported", "contradicted", "not-found")
SURE = ("quoted", "supported")
PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"


def figures(seed: int = SEED, *, show: bool = False) -> dict[str, Counter[str]]:
    """Return how often each class of claims got each state."""
    texts = {document.id: document.text for document in documents()}
    table = {kind: Counter[str]() for kind in ("true", *CLASSES, "paraphrase")}
    for claim in claims(seed):
        found = judge(claim.text, texts[claim.document])
        table[claim.kind][found.state] += 1
        is_true = claim.kind in ("true", "paraphrase")
        wrong = found.state == "contradicted" if is_true else found.state in SURE
        if show and (wrong or (claim.kind == "true" and found.state not in SURE)):
            print(f"{claim.kind} {found.state}: {claim.text} [{found.reason}] <{claim.origin}>")
    return table


def precision(table: dict[str, Counter[str]]) -> float:
    """Return the share of contradicted claims that are false."""
    said = sum(row["contradicted"] for row in table.values())
    return 1 - (table["true"]["contradicted"] + table["paraphrase"]["contradicted"]) / max(1, said)


def table_of(table: dict[str, Counter[str]]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| claims | number | " + " | ".join(f"`{state}`" for state in STATES) + " |", "|---|---|---|---|---|---|"]
    for kind, row in table.items():
        name = {"true": "true, literal", "paraphrase": "true, paraphrased"}.get(kind, f"changed: {kind}")
        lines.append(f"| {name} | {row.total()} | " + " | ".join(str(row[state]) for state in STATES) + " |")
    return "\n".join(lines)


def shown(table: dict[str, Counter[str]]) -> str:
    """Return the figures and the precision."""
    return f"{table_of(table)}\n\nOf the claims that are called `contradicted`, {precision(table):.1%} are false."


def with_figures(page: str, text: str) -> str:
    """Return the page with these figures between its marks."""
    before, rest = page.split("<!-- evidence -->")
    return f"{before}<!-- evidence -->\n{text}\n<!-- /evidence -->{rest.split('<!-- /evidence -->')[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--show", action="store_true", help="print claims that the checks get wrong")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/evidence.md")
    given = parser.parse_args()
    table = figures(given.seed, show=given.show)
    print(shown(table))
    if given.write:
        PAGE.write_text(with_figures(PAGE.read_text("utf-8"), shown(table)), "utf-8")


if __name__ == "__main__":
    main()
