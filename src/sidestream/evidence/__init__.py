"""Checks of a claim against the text it cites: quotes, numbers, units, dates, names, polarity and order.

Pure functions of two strings. May import `lazy`. `judgement.py` runs all checks, the other modules hold one kind each.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "evidence.judgement": "judge",
        "evidence.verdict": "CheckName ClaimCheck Evidence EvidenceState JudgeOpinion JudgeVerdict",
        "run.settings": "EvidenceCheck",
    },
)
