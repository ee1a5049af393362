"""The names that users import: everything else in the package is private by convention."""

import ast
import importlib
import importlib.metadata
import subprocess
import sys

import pytest

import sidestream
from requirements import requirement
from support.places import ROOT

SOURCE = ROOT / "src"

PUBLIC = {
    "sidestream": """
        Agent AnthropicOptions ApplyPatch ApprovalError ApprovalPart AuthenticationError Blocked caps_of Chat
        ChatMessage ChatResult Citations CodeInterpreter Comparison ComputerUse ConfigurationError ConnectError
        Context ContextOverflowError Conversation cosine_similarity CustomTool DataPart Decision ExternalTool File
        FileSearch GoogleOptions Hooks ImageGeneration Limiter LimitError Limits LinkPart
        load_mcp_config LocalShell Location MCPApproval MCPConfig MCPServer Memory MessagePart MissingKeyError
        ModelSettings NotHostedError open_index open_store OpenAIChatOptions OpenAIResponsesOptions
        output_type OutputError OutputType part_from_json PendingApproval Preview Price
        ProgrammaticToolCalling ProviderError RateLimitedError RemoteMCP Run RunContext RunError RunState
        ServerSideTool Shell SidestreamError Source sse SSE_HEADERS Store StreamPart StreamTimeoutError
        SyncRun TextPart ThinkingPart Tool tool ToolCallPart ToolContext ToolError ToolResult ToolResultPart
        ToolRun ToolSearch UnsupportedError Usage WebFetch WebSearch XSearch
    """,
    "sidestream.actions": """
        apply_diff BrowserAction BrowserCall BrowserCloseTab BrowserCoordinate BrowserDoubleClick
        BrowserDownloadCompleted BrowserDownloadFailed BrowserDownloadStarted BrowserFileUpload BrowserFind
        BrowserFormInput BrowserGetPageText BrowserHoldKey BrowserHover BrowserJavascriptExec BrowserKey
        BrowserLeftClick BrowserLeftClickDrag BrowserLeftMouseDown BrowserLeftMouseUp BrowserListTabs
        BrowserMiddleClick BrowserMouseMove BrowserNavigate BrowserNewTab BrowserOther BrowserReadConsole
        BrowserReadNetwork BrowserReadPage BrowserRef BrowserRightClick BrowserScreenshot BrowserScroll
        BrowserScrollTo BrowserState BrowserSwitchTab BrowserTab BrowserTabOpened BrowserTarget
        BrowserTripleClick BrowserType BrowserWait BrowserZoom Click ComputerAction ComputerCall CreateFile
        CursorPosition DeleteFile DoubleClick Drag GoBack GoForward HoldKeys Keypress LocalShellCall MouseDown
        MouseUp Move Navigate OtherAction PatchError PatchOperation Point SafetyCheck Screenshot Scroll
        ShellCall ShellOutput TripleClick Type UpdateFile Wait Zoom
    """,
    "sidestream.durable": """
        Claim Drive Engine EngineError EngineStats LeaseLostError open_engine Outcome RunClient Task
        TaskHeldError WorkerService
    """,
    "sidestream.errors": """
        AuthenticationError BlobError Blocked ConfigurationError ConflictError ConnectError
        ContextOverflowError DocumentError ErrorKind FetchError GrammarError LimitError MissingExtraError
        MissingKeyError NewerSchemaError NoOutputError NotHostedError OutputInvalidError ProtocolError
        ProviderError RateLimitedError RunError SearchError SidestreamError SignInError SteerError StoreError
        StreamTimeoutError StreamTruncatedError ToolRaisedError ToolServerError UnknownProviderError
        UnsupportedError
    """,
    "sidestream.evidence": """
        CheckName ClaimCheck Evidence EvidenceCheck EvidenceState judge JudgeOpinion JudgeVerdict
    """,
    "sidestream.mcp": """
        access_token AuthorizationCode ClientCredentials Elicitation IdentityAssertion KeyringTokens
        load_mcp_config MCPConfig MCPServer MemoryTokens OAuth PrivateKeyJWT SamplingAnswer SamplingRequest
        sign_out SignIn SignInFailedError TokenFiles TokenStore use_sign_ins
    """,
    "sidestream.messages": """
        messages_from_json messages_to_json Problem repair_history strip_metadata ToolPart validate_history
    """,
    "sidestream.parts": """
        Custom Error File Finish FinishReason InputUsage OutputUsage part_from_json Preview preview_of Raw
        ReasoningDelta ReasoningEnd ReasoningStart ResponseMetadata Source SourceKind Stage Steer SteerStatus
        StepFinish StepStart StreamPart StreamStart TextDelta TextEnd TextStart ToolApprovalRequest ToolCall
        ToolEvent ToolInputDelta ToolInputEnd ToolInputStart ToolResult Usage
    """,
    "sidestream.portable.sandbox": """
        CellOutcome CodeFile CommandOutcome Container ContainerSpec RootWorkspaceWarning Sandbox SandboxError
        SandboxLimits ToolAnswer UnisolatedWarning use_sandbox
    """,
    "sidestream.prices": """
        price_table PriceTable
    """,
    "sidestream.providers": """
        Auth aws_sigv4 Bill BillsUsage BringsTransport Capabilities caps_of Charge ChatModel CompactionPlan
        CompactsHistory Decoder EmbeddingCall EmbeddingsResult EmbedsText Encoded FileAddress FileBody FileRef
        find_provider FrameHead google_token HttpCall HttpResponse KnowsWindow LaneFailure ListsModels
        MakesMedia MapsSettings MediaPlan ModelInfo ModelRequest ModelSettings ModelString NamedInTelemetry
        NamesFiles OpensHttp Pause Provider providers Recovery register_provider Request ResumesStreams
        Settings SocketCodec SpeaksWebSocket StoredFile Transfer TransfersFiles Transport UnderWay Upload
        WorksInBackground
    """,
    "sidestream.providers.anthropic": """
        Advisor AnthropicFunctionOptions AnthropicOptions AnthropicServerSideTool AnthropicThinking
        AnthropicTool Browser ClearThinking ClearToolUses Compact Compaction Memory PROVIDER Skill TaskBudget
        TextEditor
    """,
    "sidestream.providers.google": """
        GoogleAllowedDomain GoogleBearerCredential GoogleComputerUse GoogleEmbeddingOptions GoogleEnvironment
        GoogleEnvironmentSource GoogleFileSearch GoogleFunctionOptions GoogleImageOutput
        GoogleInteractionsOptions GoogleMaps GoogleOAuthCredential GoogleOptions GoogleSafetySetting
        GoogleSearch GoogleServerSideTool GoogleThinking GoogleVariableCredential PROVIDER read_credential
        read_credentials
    """,
    "sidestream.providers.openai": """
        AccessPrograms AudioOutput ChatPromptCache ContextManagement ImageContext Moderation OpenAIChatOptions
        OpenAIEmbeddingOptions OpenAIFunctionOptions OpenAIResponsesOptions OpenAIServerSideTool PromptCache
        PromptTemplate Reasoning ToolNamespace
    """,
    "sidestream.results": """
        check_evidence CitedClaim CitedSource CitedText CodeInterpreterResult FileSearchResult FoundHit ImageGenerationResult Link
        MCPResult MediaResult ShellResult ToolSearchResult ToolStage ToolText TypedResult WebFetchResult
        WebSearchResult
    """,
    "sidestream.server": """
        Caps create_app Page ServerSettings
    """,
    "sidestream.store": """
        Conversation ConversationInfo LogDetail LogState open_store PostgresStore Record Row SqliteStore Store
        StoreProblem UnresolvedCall
    """,
    "sidestream.telemetry": """
        Telemetry
    """,
    "sidestream.testing": """
        Answer AwaitedSteer aws_frame aws_frames Cassette ChatScript check_stream crash_loop CrashedRun CrashLoopError
        dropped encode_event encode_events error_reply Exchange failpoint FakeProvider GeminiScript
        hostile_server html_page InteractionScript json_reply Keepalives LeakError McpFault MessagesScript
        ModelReply no_leaks pixel_png Received recorded RecordedRequest RecordedResponse Recording
        cache_steps CacheStep RecordingTransport replay_run ReplayedRun ReplayMismatch ReplayTransport Reply responses_function_call responses_text ResponsesScript
        ScriptedModel ScriptedReply socket_close socket_frame sse steer_report tool_call
    """,
    "sidestream.tools": """
        Combination DomainSecret Grant HybridSearch InlineSkill LocalSkill Network Question
        SkillReference Svg ToolFilter ToolWarning
    """,
    "sidestream.turn": """
        TURN_STATUSES TurnStatus
    """,
    "sidestream.wire": """
        HttpTransport WebSocketTransport
    """,
}


@pytest.mark.parametrize("package", PUBLIC)
def test_package_exports_exactly_listed_names(package: str):
    assert sorted(importlib.import_module(package).__all__) == sorted(PUBLIC[package].split())


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_can_be_imported_and_is_listed_by_dir(package: str):
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PUBLIC)
def test_type_checkers_see_same_names_in_same_modules(package: str):
    folder = SOURCE / package.replace(".", "/")
    path = next((path for path in (folder / "__init__.pyi", folder / "__init__.py") if path.exists()), None)
    if path is None:  # A module that defines its names.
        return
    tree = ast.parse(path.read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname or alias.name: node.module for node in imports for alias in node.names}
    module = importlib.import_module(package)
    for name in module.__all__:
        assert seen[name] is not None, name
        assert getattr(importlib.import_module(seen[name]), name) is getattr(module, name), name


@pytest.mark.parametrize("package", PUBLIC)
def test_unknown_name_raises_attribute_error(package: str):
    with pytest.raises(AttributeError, match="nonsense"):
        importlib.import_module(package).nonsense  # noqa: B018


@requirement("R203")
def test_dir_of_top_lists_exactly_public_names():
    assert dir(sidestream) == sorted(PUBLIC["sidestream"].split())
    assert len(dir(sidestream)) <= 90


def test_name_of_another_package_is_found_with_warning():
    with pytest.warns(DeprecationWarning, match="import TextDelta from sidestream.parts"):
        found = sidestream.TextDelta  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    assert found is importlib.import_module("sidestream.parts").TextDelta
    assert "TextDelta" not in dir(sidestream)


def test_version_matches_package_metadata():
    assert sidestream.__version__ == importlib.metadata.version("sidestream")


def test_agent_import_is_light():
    program = "import sys; from sidestream import Agent; print({'json', 'hashlib', 'queue'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "set()\n"


def test_own_provider_is_found_without_reading_entry_points():
    program = (
        "import sys; from sidestream.providers.registry import find_provider;"
        "names = 'anthropic', 'google', 'local', 'openai-responses';"
        "assert tuple(find_provider(name).name for name in names) == names;"
        "print('importlib.metadata' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "False\n"


@pytest.mark.parametrize("name", ["registry", "openai_responses", "google.interactions", ""])
def test_other_module_beside_providers_is_not_provider(name: str):
    with pytest.raises(sidestream.errors.UnknownProviderError):
        sidestream.providers.find_provider(name)
