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


JudgeVerdict = Literal["agrees", "disagrees", "undecided"]
"""What a model thinks of a claim. It establishes nothing."""


class JudgeOpinion(Struct, frozen=True, omit_defaults=True):
    """The opinion of a model about a claim, beside what the checks established."""

    model: str
    verdict: JudgeVerdict
    reason: str = ""
    words: str = ""
    """Words of the source that it relies on."""

    @property
    def summary(self) -> str:
        """The opinion in one line, for people."""
        said = {"agrees": "thinks that the source says this", "disagrees": "thinks that the source denies this"}
        line = f"{self.model} {said.get(self.verdict, 'cannot tell')}"
        return f"{line}: {self.reason}" if self.reason else line


class Evidence(Struct, frozen=True, omit_defaults=True):
    """What was established about a citation, and why."""

    state: EvidenceState = "unchecked"
    reason: str = ""
    """Reason for the state, as a sentence without its period."""
    checks: tuple[ClaimCheck, ...] = ()
    """Checks that were made, in order."""
    place: tuple[int, int] | None = None
    """Start and end of the words or the sentence in the text of the source, in characters."""
    judge: JudgeOpinion | None = None
    """Opinion of a model that was asked too. It never changes the state."""


UNCHECKED: Final = Evidence()
"""Evidence of a citation that was not checked."""
