"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.agent.media import (
    MediaResult as MediaResult,
)
from sidestream.portable.fetch.cited import (
    check_evidence as check_evidence,
)
from sidestream.results.citations import (
    CitedClaim as CitedClaim,
    CitedSource as CitedSource,
    CitedText as CitedText,
)
from sidestream.results.content import (
    Link as Link,
)
from sidestream.results.tool_runs import ToolStage as ToolStage
from sidestream.results.tool_text import (
    ToolText as ToolText,
)
from sidestream.results.typed_results import (
    CodeInterpreterResult as CodeInterpreterResult,
    FileSearchResult as FileSearchResult,
    FoundHit as FoundHit,
    ImageGenerationResult as ImageGenerationResult,
    MCPResult as MCPResult,
    ShellResult as ShellResult,
    ToolSearchResult as ToolSearchResult,
    TypedResult as TypedResult,
    WebFetchResult as WebFetchResult,
    WebSearchResult as WebSearchResult,
)
