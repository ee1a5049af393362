"""Client tools, toolsets, approvals, and portable configurations of server-side tools.

May import `messages`, `stream`, `output` and the modules at the root of `sidestream`.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "tools.approvals": "Question",
        "tools.grants": "Grant",
        "tools.outcome": "ToolWarning",
        "tools.configs": (
            "Combination DomainSecret HybridSearch InlineSkill LocalSkill Network SkillReference Svg ToolFilter"
        ),
    },
)
