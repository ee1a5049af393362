"""What was established about a citation, and by which checks."""

from typing import Final, Literal

from msgspec import Struct

EvidenceState = Literal["quoted", "supported", "contradicted", "not-found", "unreachable", "unchecked"]
"""What was established: the source has the cited words (`quoted`), or one of its sentences says the same
(`supported`) or something that conflicts (`contradicted`); it was read and says neither (`not-found`), it could not be
read (`unreachable`), or was not compared (`unchecked`)."""
CheckName = Literal["quote", "words", "number", "unit", "date", "name", "polarity", "order", "scope"]
"""What a check compares. `scope` looks for words of the source that limit its sentence, such as "may" or "if"."""


class ClaimCheck(Struct, frozen=True, omit_defaults=True):
    """A check of a claim, and whether the claim passed it."""

    name: CheckName
    passed: bool
    detail: str = ""
    """What differs, for people."""


class Evidence(Struct, frozen=True, omit_defaults=True):
    """What was established about a citation, and why."""

    state: EvidenceState = "unchecked"
    reason: str = ""
    """Reason for the state, as a sentence without its period."""
    checks: tuple[ClaimCheck, ...] = ()
    """Checks that were made, in order."""
    place: tuple[int, int] | None = None
    """Start and end of the words or the sentence in the text of the source, in characters."""


UNCHECKED: Final = Evidence()
"""Evidence of a citation that was not checked."""
