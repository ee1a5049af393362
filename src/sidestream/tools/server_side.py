"""Portable configurations of server-side tools. `WebSearch()` means the same for every provider.

A field left at its default is not sent, so that the provider's own default applies. A provider that does not support
a field raises `UnsupportedError`; none is ignored silently.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from sidestream.errors import ConfigurationError
from sidestream.messages.message import DataPart
from sidestream.text.redaction import redact, register_credentials, register_url
from sidestream.tools.configs import (
    INDEX as INDEX,
    Combination,
    Comparison,
    Config,
    Day,
    HybridSearch,
    InlineSkill,
    LocalSkill,
    Location,
    MCPApproval,
    Network,
    SkillReference,
    Svg,
    ToolFilter,
    defaults_of,
    is_path as is_path,
    refuse_together,
)
from sidestream.tools.grants import pin_of
from sidestream.tools.interruption import ServerInterruption
from sidestream.tools.spec import Retrieve

Callers = Sequence[Literal["direct", "programmatic"]]
"""Callers that a tool accepts: the model itself, or a program that it wrote. Empty means the provider's default."""

MemoryLimit = Literal["1g", "4g", "16g", "64g"]
Count = Annotated[int, Meta(ge=1)]
Execution = Literal["auto", "provider", "here"]
"""Place where a tool runs. `auto` means at the provider if it hosts the tool, else locally. `here` means locally."""


class ServerSideTool(Config, frozen=True, kw_only=True):
    """Base of all server-side tools.

    With `execution="auto"`, a tool runs at the provider if that hosts it, else locally, and a warning in the stream
    reports that. `"provider"` and `"here"` force one or the other.
    """

    unsent = frozenset({"execution", "via", "on_interruption"})

    key: ClassVar[str]
    """Portable name, as used on the command line."""

    needs: ClassVar[str] = ""
    """Required fields, with an example. Empty if the name alone is enough."""

    here_only: ClassVar[frozenset[str]] = frozenset()
    """Fields that only a local tool has. Setting any of them makes the tool run locally. They are in `unsent` too."""

    execution: Execution = "auto"
    """Where the tool runs: at the provider, here, or where it can."""
    via: str | None = None
    """Model that hosts the tool and runs its calls for another model, e.g. `openai-responses` or `google:MODEL`."""
    on_interruption: ServerInterruption | None = None
    """Policy for a local call that was interrupted, for example by a crash. None means `retry` for tools that only read
    (web search, web fetch, file search, tool search), and `ask` for the others."""

    @property
    def pin(self) -> str:
        """Digest of the settings that a remembered approval is bound to. Secrets are left out."""
        shown = {name: repr(value) for name, value in self._shown()}
        if isinstance(folder := getattr(self, "workspace", None), str):
            shown["workspace"] = os.path.realpath(os.path.expanduser(folder))
        return pin_of(self.key, type(self).__name__, shown)

    @property
    def is_local(self) -> bool:
        """Whether the settings can only be satisfied by running locally."""
        defaults = defaults_of(type(self))
        return self.via is not None or any(getattr(self, name) != defaults[name] for name in self.here_only)

    @property
    def answers_here(self) -> bool:
        """Whether our own runtime can answer the calls that a provider leaves to the client (`client_call`)."""
        return False

    @property
    def client_call(self) -> str | None:
        """Name of the calls that you must answer. None means that the provider executes them."""
        return None


class WebSearch(ServerSideTool, frozen=True, kw_only=True):
    """Searches the web at the provider, or locally through an `engine`.

    `WebSearch(context_size="high", allowed_domains=["python.org"])`; locally
    `WebSearch(engine="searxng:http://127.0.0.1:8888")`.
    """

    key = "web_search"
    here_only = frozenset({"engine", "freshness", "language", "count"})
    unsent = frozenset({"execution", "engine", "freshness", "language", "count"})

    context_size: Literal["low", "medium", "high"] = "medium"
    """How much of the pages the model sees."""
    location: Location | None = None
    """Where the user is."""
    allowed_domains: Sequence[str] = ()
    """Domains to which the tool is restricted. Empty means all."""
    blocked_domains: Sequence[str] = ()
    """Domains that the tool must not use."""
    external_web_access: bool = True
    """Whether pages are fetched live. False means from a cache."""
    max_uses: Count | None = None
    """Maximum calls in one request."""
    content_types: Sequence[Literal["text", "image"]] = ()
    """What to search for."""
    version: str | None = None
    """Dated or preview version of the provider's tool, e.g. `preview`, instead of the current one."""
    engine: str | None = None
    """Local search engine: `searxng:URL`, `brave`, `exa`, `tavily`, `mcp:SERVER/TOOL`, `PROVIDER:MODEL` or
    `corpus:FOLDER`. None means the value of `SIDESTREAM_SEARCH`."""
    freshness: Literal["day", "week", "month", "year"] | None = None
    """Maximum age of the pages."""
    language: str | None = None
    """Language of the pages, e.g. `en`."""
    count: Count | None = None
    """Maximum pages per search. None means a number that depends on `context_size`."""


class XSearch(ServerSideTool, frozen=True, kw_only=True):
    """Searches posts on X, e.g. `XSearch(allowed_handles=["xai"], from_date="2026-01-01")`."""

    key = "x_search"

    allowed_handles: Sequence[str] = ()
    """Accounts to search. Empty means all."""
    blocked_handles: Sequence[str] = ()
    """Accounts to leave out."""
    from_date: Day | None = None
    """First day of the posts."""
    to_date: Day | None = None
    """Last day of the posts."""
    image_understanding: bool = False
    """Whether the model sees images of posts."""
    video_understanding: bool = False
    """Whether the model sees videos of posts."""


class WebFetch(ServerSideTool, frozen=True, kw_only=True):
    """Fetches pages whose URLs are in the conversation: `WebFetch(max_uses=3, allowed_domains=["python.org"])`.

    A local tool fetches URLs that the user gave or a tool found, and follows links on a fetched page's own host, up to
    `max_hops` pages away. `approval` applies to all other URLs.
    """

    key = "web_fetch"
    here_only = frozenset({"allow_hosts", "max_hops", "approval"})
    unsent = frozenset({"execution", "allow_hosts", "max_hops", "approval"})

    allowed_domains: Sequence[str] = ()
    """Domains to which the tool is restricted. Empty means all."""
    blocked_domains: Sequence[str] = ()
    """Domains that the tool must not use."""
    max_uses: Count | None = None
    """Maximum calls in one request."""
    max_content_tokens: Count | None = None
    """Maximum tokens of a page."""
    citations: bool = False
    """Whether the answer cites the page."""
    version: str | None = None
    allow_hosts: Sequence[str] = ()
    """Hosts, as `host` or `host:port`, that may have a private address."""
    max_hops: Annotated[int, Meta(ge=0)] | None = None
    """Maximum links from page to page that are followed without an approval. None means three."""
    approval: Literal["ask", "run", "deny"] = "ask"
    """Policy for a URL that is not known from the conversation."""


LOCAL_LIMITS = ("timeout_s", "memory_mb", "disk_mb", "max_file_mb", "max_output_kb")
"""Limits of local code."""


class CodeInterpreter(ServerSideTool, frozen=True, kw_only=True):
    """Runs code in a sandbox: the one named, the conversation's (`reuse_container`), or a new one.

    Locally, an id names a sandbox of the same kind that the same user or conversation has created in this process.
    `CodeInterpreter(memory_limit="4g")`; on this machine `CodeInterpreter(execution="here", sandbox="bubblewrap")`.
    """

    key = "code_interpreter"
    here_only = frozenset({"sandbox", "packages", *LOCAL_LIMITS})
    unsent = frozenset({"execution", "sandbox", "packages", "files", *LOCAL_LIMITS})

    files: Sequence[str | DataPart] = ()
    """Files for the container only, as paths or parts. The model is told their names."""
    sandbox: str = "auto"
    """Isolation of local code: `bubblewrap`, `runsc`, `monty`, your own (`use_sandbox`), or `none`."""
    packages: Sequence[str] | None = None
    """Installed packages that local code may import besides the usual ones for data. An empty list means none."""
    container_id: str | None = None
    """Container to use. None means a new one, or that of the conversation."""
    reuse_container: bool | None = None
    """Whether the turns of a conversation share a container. None means that they do locally, and not at a provider."""
    file_ids: Sequence[str] = ()
    """Uploaded files to put into the container."""
    memory_limit: MemoryLimit | None = None
    """Memory of the container."""
    network: Network | None = None
    """Network access of the container. None means the provider's default, and none here."""
    allowed_callers: Callers = ()
    version: str | None = None
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    """Maximum seconds of one call of local code. None means 300."""
    memory_mb: Annotated[int, Meta(ge=64)] | None = None
    """Memory of a local container in MiB. None means that of `memory_limit`, else 4096."""
    disk_mb: Count | None = None
    """Size of the working folder of a local container in MiB, which is kept in memory. None means 1024."""
    max_file_mb: Count | None = None
    """Maximum size in MiB of a file that local code delivers. None means 128. A larger one is named in a note."""
    max_output_kb: Count | None = None
    """Maximum output of a local call for the model in KiB. None means 64. The middle of more is cut, with a note."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_together(self, "container_id", ("reuse_container", "file_ids", "memory_limit", "network"))


class ImageGeneration(ServerSideTool, frozen=True, kw_only=True):
    """Generates and edits images; `partial_images` previews arrive before the final one.

    `ImageGeneration(size="1024x1024", partial_images=2)`; for a model without images
    `ImageGeneration(via="openai-responses")`.
    """

    key = "image_generation"

    partial_images: Annotated[int, Meta(ge=0, le=3)] = 0
    """Previews to send while the image is made."""
    quality: Literal["auto", "low", "medium", "high", "xhigh", "max"] = "auto"
    """Quality."""
    size: Annotated[str, Meta(pattern=r"^(auto|\d+x\d+)$", description="auto or WIDTHxHEIGHT, e.g. 1536x1024")] = "auto"
    """Width and height in pixels, or `auto`."""
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] = "png"
    """Format of the file."""
    background: Literal["auto", "transparent", "opaque"] = "auto"
    """Background."""
    action: Literal["auto", "generate", "edit"] = "auto"
    """Whether to make a new image or to edit one of the conversation."""
    moderation: Literal["auto", "low"] = "auto"
    """Strictness of the content filter."""
    compression: Annotated[int, Meta(ge=0, le=100)] = 100
    """Quality of JPEG and WebP files."""
    model: str | None = None
    """Model that makes the image."""
    input_fidelity: Literal["low", "high"] | None = None
    """How closely an edit keeps the input."""
    mask_file_id: str | None = None
    """Uploaded mask of the part to edit."""
    mask_url: str | None = None
    """Address of that mask."""
    complexity: Literal["low", "medium", "high"] | None = None
    """Complexity of a drawing."""
    frame_count: Count | None = None
    """Frames of an animation."""
    frame_duration_ms: Count | None = None
    """Duration of each frame."""
    svg: Svg | None = None
    """Settings of SVG drawings."""


class FileSearch(ServerSideTool, frozen=True, kw_only=True):
    """Searches files in the provider's vector stores, or locally in indexes and folders.

    `FileSearch(stores=["vs_123"], max_results=5)`, or locally `FileSearch(stores=["./docs"])`.
    """

    key = "file_search"
    needs = 'stores, e.g. FileSearch(stores=["vs_…"])'
    here_only = frozenset({"embeddings", "retrieve"})
    unsent = frozenset({"execution", "embeddings", "retrieve"})

    stores: Annotated[Sequence[str], Meta(min_length=1, description="a list of at least one store's id")]
    """Stores to search: ids at the provider, or indexes here."""
    max_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    """Maximum passages."""
    ranker: str | None = None
    """Provider's ranker."""
    score_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Minimum relevance of a passage, from 0 to 1."""
    hybrid_search: HybridSearch | None = None
    """Weights of words and vectors."""
    filters: Comparison | Combination | None = None
    """Filter on the attributes of files."""
    embeddings: str | None = None
    """Embedding model of a local search. None means the embedded one."""
    retrieve: Retrieve = "auto"
    """When a local search takes place: `called` by the model, or `first`, before the model is asked. `auto` means
    `first` for a small local model with no other tool."""

    @property
    def is_local(self) -> bool:
        return super().is_local or any(is_path(store) for store in self.stores)


class RemoteMCP(ServerSideTool, frozen=True, kw_only=True):
    """A remote MCP server, given by URL, by one of the provider's connectors, or through a tunnel.

    `RemoteMCP(label="docs", url="https://mcp.example.com", allowed_tools=["search"], require_approval="never")`

    `require_approval` uses the API's own values: `always` asks before each call, `never` runs it. If it is not set, the
    explicit policy of the call or the agent applies; without one, each call needs approval.

    With `execution="auto"`, the provider calls the server. If it cannot, or not with these settings, this machine does,
    and a warning in the stream reports that. `"provider"` and `"here"` force one or the other. `transport` is how this
    machine connects; a provider detects it by itself.
    """

    key = "mcp"
    needs = 'label and url, e.g. RemoteMCP(label="docs", url="https://…")'
    secrets = frozenset({"headers", "authorization"})

    label: str
    """Name of the server in calls and approvals."""
    url: str | None = None
    """Address of the server."""
    connector: str | None = None
    """OpenAI connector, instead of an address."""
    tunnel: str | None = None
    """OpenAI tunnel, instead of an address."""
    description: str | None = None
    """What the server is for, which the model reads."""
    require_approval: Literal["always", "never"] | MCPApproval | None = None
    """Which calls need approval. None means all."""
    allowed_tools: Sequence[str] | ToolFilter | None = None
    """Tools to offer. None means all."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """HTTP headers for the server."""
    authorization: str | None = None
    """OAuth access token for the server."""
    defer_loading: bool = False
    """Whether the model sees the tools only after a tool search."""
    allowed_callers: Callers = ()
    transport: Literal["http", "sse"] = "http"
    """Transport of the server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(bool(way) for way in (self.url, self.connector, self.tunnel)) != 1:
            raise ConfigurationError(f"RemoteMCP(label={self.label!r}) needs one of url, connector and tunnel")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"RemoteMCP(label={self.label!r}): url must start with http:// or https://")

    def register_secrets(self) -> None:
        register_credentials(self.authorization, self.headers)
        register_url(self.url or "")

    def _shown(self) -> Iterator[tuple[str, Any]]:
        # A URL may carry a key.
        return ((name, redact(value) if name == "url" else value) for name, value in super()._shown())


class Shell(ServerSideTool, frozen=True, kw_only=True):
    """A shell in a container or, with `local`, on your side, where you answer its calls.

    With a `workspace`, a folder of yours as in `Shell(workspace="./project")`, its commands run locally in a sandbox
    that can write nothing else. Each call needs approval, unless `require_approval` is `never`.

    If root runs the program, commands run as the owner of the workspace. A workspace owned by root is refused unless
    `allow_root` is set.
    """

    key = "shell"
    here_only = frozenset({"workspace", "allow_root", "require_approval", "sandbox", "packages"})
    unsent = frozenset({"execution", "workspace", "allow_root", "require_approval", "sandbox", "packages"})

    workspace: str | None = None
    """Folder here in which the tool works. None means a temporary one."""
    require_approval: Literal["always", "never"] | None = None
    """Whether local calls need approval. None means only with a workspace."""
    allow_root: bool = False
    """Whether commands may run as root in a workspace owned by root. Each container then warns."""
    sandbox: str = "auto"
    """Isolation of local commands; see `CodeInterpreter.sandbox`."""
    packages: Sequence[str] | None = None
    """Installed Python packages that local commands may import. None means the usual ones for data."""
    local: bool = False
    """Whether your own function runs the commands."""
    container_id: str | None = None
    """Container to use. None means a new one, or that of the conversation."""
    file_ids: Sequence[str] = ()
    """Uploaded files to put into the container."""
    memory_limit: MemoryLimit | None = None
    """Memory of the container."""
    network: Network | None = None
    """Network access of the container. None means the provider's default, and none here."""
    skills: Sequence[SkillReference | InlineSkill | LocalSkill] = ()
    """Skills for the shell."""
    allowed_callers: Callers = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_together(self, "local", ("container_id", "file_ids", "memory_limit", "network", "workspace"))
        refuse_together(self, "container_id", ("file_ids", "memory_limit", "network", "skills", "workspace"))
        if self.allow_root and self.workspace is None:
            raise ConfigurationError("Shell: allow_root needs a workspace; without one, no command runs as root")
        if any(isinstance(skill, LocalSkill) != self.local for skill in self.skills):
            raise ConfigurationError("Shell: a LocalSkill needs local=True, and a local shell accepts no other skills")

    @property
    def client_call(self) -> str | None:
        return self.key if self.local else None


class LocalShell(ServerSideTool, frozen=True, kw_only=True):
    """The older shell tool: the model requests commands, you run them."""

    key = "local_shell"

    @property
    def client_call(self) -> str | None:
        return self.key


class ApplyPatch(ServerSideTool, frozen=True, kw_only=True):
    """File changes that the model proposes as patches. Your function applies them, or we do in a `workspace`.

    With a `workspace`, a folder of yours as in `ApplyPatch(workspace="./project")`, each call needs approval unless
    `require_approval` is `never`, and nothing outside the folder can be changed.
    """

    key = "apply_patch"
    unsent = frozenset({"execution", "workspace", "require_approval"})

    workspace: str | None = None
    """Folder here in which the tool works. None means a temporary one."""
    require_approval: Literal["always", "never"] = "always"
    """Whether patches need approval."""
    allowed_callers: Callers = ()

    @property
    def answers_here(self) -> bool:
        return self.workspace is not None and self.execution != "provider"

    @property
    def client_call(self) -> str | None:
        return self.key


class ComputerUse(ServerSideTool, frozen=True, kw_only=True):
    """A computer that the model sees in screenshots and controls with clicks and keys.

    Setting any field selects the preview tool. Use `ComputerUse()` with a function of yours that performs the actions;
    see `sidestream.actions`.
    """

    key = "computer_use"

    display_width: Count | None = None
    """Width of the screen in pixels."""
    display_height: Count | None = None
    """Height of the screen in pixels."""
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"] | None = None
    """What the model controls."""

    @property
    def client_call(self) -> str | None:
        return self.key


class ToolSearch(ServerSideTool, frozen=True, kw_only=True):
    """Lets the model find tools that are loaded on demand, i.e. those with `@tool(defer_loading=True)`.

    With `ToolSearch(local=True)`, the provider leaves the search to your function.
    """

    key = "tool_search"

    local: bool = False
    """Whether your own function searches."""
    description: str | None = None
    """What can be found, which the model reads."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the search, if your own function searches."""
    version: str | None = None

    @property
    def client_call(self) -> str | None:
        return self.key if self.local else None


class Memory(ServerSideTool, frozen=True, kw_only=True):
    """Files that the model keeps between conversations, in the chat's store or by your function called `memory`.

    They belong to the conversation's tenant, under a name if one is set, as in `Memory(name="support")`. Without a
    store they live as long as the agent. Anthropic's models have the tool built in and leave its calls to the client.
    With `execution="provider"`, your function, or the caller of the run, answers them.
    """

    key = "memory"
    unsent = frozenset({"execution", "name"})

    version: str | None = None
    name: str | None = None
    """Name that separates the memories of several agents. None means that all agents of a tenant share one memory."""

    @property
    def answers_here(self) -> bool:
        return self.execution != "provider"

    @property
    def client_call(self) -> str | None:
        return self.key


class ProgrammaticToolCalling(ServerSideTool, frozen=True, kw_only=True):
    """Lets the model write programs that call tools whose `allowed_callers` include `programmatic`.

    Locally, it writes Python in which each tool of the agent is an async function, and the program runs in a sandbox:
    `ProgrammaticToolCalling(execution="here")`.
    """

    key = "programmatic_tool_calling"
    here_only = frozenset({"sandbox", "packages"})
    unsent = frozenset({"execution", "sandbox", "packages"})

    sandbox: str = "auto"
    """Isolation of local programs; see `CodeInterpreter.sandbox`."""
    packages: Sequence[str] | None = None
    """Installed packages that local programs may import. None means the usual ones for data."""


class CustomTool(ServerSideTool, frozen=True, kw_only=True):
    """A tool of yours whose input is plain text, optionally constrained by a grammar.

    `CustomTool(name="sql", description="Runs a query.")` beside a function `sql` of yours that takes the text.
    """

    key = "custom"
    needs = 'a name, e.g. CustomTool(name="sql", syntax="lark", definition="…")'

    name: str
    """Name of the tool."""
    description: str | None = None
    """What it does, which the model reads."""
    syntax: Literal["lark", "regex"] | None = None
    """Language of `definition`."""
    definition: str | None = None
    """Grammar of the input."""
    asynchronous: bool = False
    """Whether the model continues while the tool runs."""
    defer_loading: bool = False
    """Whether the model sees the tools only after a tool search."""
    allowed_callers: Callers = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.syntax is None) != (self.definition is None):
            raise ConfigurationError(f"CustomTool(name={self.name!r}): a grammar needs both syntax and definition")

    @property
    def client_call(self) -> str | None:
        return self.name


TOOLS: dict[str, type[ServerSideTool]] = {tool.key: tool for tool in ServerSideTool.__subclasses__()}

ALIASES = {
    "code_execution": "code_interpreter",
    "google_search": "web_search",
    "url_context": "web_fetch",
    "computer": "computer_use",
    "remote_mcp": "mcp",
}


def tool_named(key: str) -> ServerSideTool:
    """Return the tool with this command-line name, with default settings.

    Raises ConfigurationError if no tool has this name, or if the tool has required fields.
    """
    name = key.strip().lower().replace("-", "_")
    tool = TOOLS.get(ALIASES.get(name, name))
    if tool is None:
        import difflib

        near = difflib.get_close_matches(name, [*TOOLS, *ALIASES], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigurationError(f"unknown server-side tool {key!r}; {hint}known: {', '.join(sorted(TOOLS))}")
    if tool.needs:
        raise ConfigurationError(f"the tool {name} cannot be created from its name alone: it needs {tool.needs}")
    return tool()
