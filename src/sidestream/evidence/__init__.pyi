"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.evidence.judgement import (
    judge as judge,
)
from sidestream.evidence.verdict import (
    CheckName as CheckName,
    ClaimCheck as ClaimCheck,
    Evidence as Evidence,
    EvidenceState as EvidenceState,
    JudgeOpinion as JudgeOpinion,
    JudgeVerdict as JudgeVerdict,
)
from sidestream.run.settings import (
    EvidenceCheck as EvidenceCheck,
)
