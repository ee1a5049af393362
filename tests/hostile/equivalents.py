"""Mutants that mean nothing, for `make mutate`: no test can notice them."""

EQUIVALENTS: dict[tuple[str, str, str], str] = {}
"""(path below the package, code before, code after) → the reason."""
