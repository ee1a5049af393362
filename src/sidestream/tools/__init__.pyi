"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.tools.approvals import (
    Question as Question,
)
from sidestream.tools.configs import (
    Combination as Combination,
    DomainSecret as DomainSecret,
    HybridSearch as HybridSearch,
    InlineSkill as InlineSkill,
    LocalSkill as LocalSkill,
    Network as Network,
    SkillReference as SkillReference,
    Svg as Svg,
    ToolFilter as ToolFilter,
)
from sidestream.tools.grants import (
    Grant as Grant,
)
from sidestream.tools.outcome import (
    ToolWarning as ToolWarning,
)
