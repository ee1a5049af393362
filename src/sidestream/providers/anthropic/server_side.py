"""Server-side tools that only Anthropic has, and any other of its tools by type."""

from typing import Any

from msgspec import field

from sidestream.tools.server_side import ComputerUse, Count, Memory as Memory, ServerSideTool

CLIENT_NAMES = ("memory", "bash", "str_replace_based_edit_tool", "str_replace_editor", "computer")
"""Names of the provider's tools that the client runs."""


class TextEditor(ServerSideTool, frozen=True, kw_only=True):
    """The model views and edits files. Your tool called `text_editor` carries it out."""

    key = "text_editor"

    max_characters: Count | None = None
    version: str | None = None

    @property
    def client_call(self) -> str | None:
        return self.key


class Browser(ServerSideTool, frozen=True, kw_only=True):
    """The model uses a browser. Your tool called `browser` carries out its actions."""

    key = "browser"

    enable: tuple[str, ...] = ()
    """Members that are off by default: `file_upload`, `read_console`, `read_network`, `javascript_exec`."""
    disable: tuple[str, ...] = ()
    """Members that the model does not see."""
    defer_loading: bool = False
    version: str | None = None

    @property
    def client_call(self) -> str | None:
        return self.key


class Advisor(ServerSideTool, frozen=True, kw_only=True):
    """A stronger model that the model may consult."""

    key = "advisor"
    needs = 'a model, e.g. Advisor(model="claude-opus-5-5")'

    model: str
    max_uses: Count | None = None
    max_tokens: Count | None = None
    version: str | None = None


class AnthropicTool(ServerSideTool, frozen=True, kw_only=True):
    """A tool by its type, sent unchanged: for versions and fields that are newer than this library."""

    key = "anthropic"
    needs = 'a type, e.g. AnthropicTool(type="web_search_20260318", name="web_search")'

    type: str
    name: str | None = None
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """The other fields of the tool."""
    betas: tuple[str, ...] = ()
    """Beta headers that it needs."""

    @property
    def client_call(self) -> str | None:
        for toolset in (ComputerUse, Browser):
            if self.type.startswith(f"{toolset.key.partition('_')[0]}_toolset"):
                return toolset.key
        return self.name if self.name in CLIENT_NAMES else None
