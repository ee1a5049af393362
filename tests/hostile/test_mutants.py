"""The switches of `make mutate`, and its list of equivalent mutants."""

import ast
import builtins
from collections.abc import Callable

import pytest

from hostile import mutant_switch
from hostile.equivalents import EQUIVALENTS
from hostile.mutant_switch import Change, Switches
from hostile.mutate import PATHS, SOURCE, changes, mutants_of, place_of

PROGRAM = """
def first(values, limit=2):
    found = []
    for value in values:
        if value is None or len(found) == limit:
            break
        found.append(value)
    return found
"""


def test_each_mutant_is_behind_own_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, mutant_switch.SEEN, mutant_switch.seen.add, raising=False)
    monkeypatch.setattr(builtins, mutant_switch.ACTIVE, mutant_switch.active, raising=False)
    found = [
        Change(f"{node.lineno}: {new}", *place_of(node), new)
        for node, new, what in changes(ast.parse(PROGRAM))
        if what != "constant"
    ]
    tree = ast.parse(PROGRAM)
    Switches(found).visit(tree)
    names: dict[str, Callable[[list[int | None]], object]] = {}
    exec(compile(ast.fix_missing_locations(tree), "program", "exec"), names)

    def outcome(id: str) -> object:
        mutant_switch.active.add(id)
        try:
            return names["first"]([1, 2, 3])
        except TypeError as error:
            return type(error)
        finally:
            mutant_switch.active.clear()

    assert outcome("") == [1, 2]
    assert {change.id: outcome(change.id) for change in found} == {
        "5: (not (value is None or len(found) == limit))": [],
        "5: (value is None and len(found) == limit)": [1, 2, 3],
        "5: (value is not None)": [],
        "5: (len(found) != limit)": [],
        "6: pass": [1, 2, 3],
        "7: pass": [],
        "8: return None": None,
    }
    assert mutant_switch.seen >= {change.id for change in found}
    mutant_switch.seen.clear()


def test_every_equivalent_mutant_exists() -> None:
    found = {(path, *mutant.lines) for path in PATHS for mutant in mutants_of(SOURCE / path)}
    assert EQUIVALENTS.keys() <= found
