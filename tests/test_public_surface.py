"""The names that users import: everything else in the package is private by convention."""

import ast
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

PUBLIC = {
    "sidestream": """
        Agent AnthropicOptions AnthropicServerSideTool ApplyPatch ApprovalError ApprovalPart AuthenticationError
        BlobError Capabilities caps_of Chat ChatMessage ChatResult CodeInterpreter ComputerUse
        ConfigurationError ConflictError ConnectError Conversation cosine_similarity Custom CustomTool DataPart
        Decision decode_part EmbeddingsResult encode_part Error File FileSearch Finish FinishReason
        GoogleComputerUse GoogleEmbeddingOptions GoogleFileSearch GoogleInteractionsOptions GoogleMaps
        GoogleOptions GoogleSearch GoogleServerSideTool GrammarError ImageGeneration InputUsage LimitError
        HttpTransport Limits LinkPart LocalShell Location MCPApproval mcp_servers ToolFilter MCPServer MediaResult MessagePart messages_from_json
        messages_to_json MissingExtraError MissingKeyError NewerSchemaError open_store OpenAIChatOptions
        OpenAIEmbeddingOptions OpenAIResponsesOptions OpenAIServerSideTool output_type OutputError
        OutputInvalidError OutputType OutputUsage PendingApproval Problem ProgrammaticToolCalling ProtocolError
        ProviderError Question RateLimitedError Raw ReasoningDelta ReasoningEnd ReasoningStart register_provider
        RemoteMCP repair_history ResponseMetadata Run RunError RunState ServerSideTool Shell SidestreamError Source
        StepFinish StepStart Store StoreError StreamPart StreamStart StreamTimeoutError StreamTruncatedError
        strip_metadata TextDelta TextEnd TextPart TextStart ThinkingPart Tool tool ToolApprovalRequest ToolCall
        ToolCallPart ToolContext ToolError ToolEvent ToolInputDelta ToolInputEnd ToolInputStart ToolPart
        ToolResult ToolResultPart ToolSearch ToolServerError UnknownProviderError UnsupportedError Usage
        validate_history WebFetch WebSearch
    """,
    "sidestream.actions": """
        apply_diff Click ComputerAction ComputerCall CreateFile CursorPosition DeleteFile DoubleClick Drag GoBack
        GoForward HoldKeys Keypress LocalShellCall MouseDown MouseUp Move Navigate OtherAction PatchError PatchOperation
        Point SafetyCheck Screenshot Scroll ShellCall ShellOutput TripleClick Type UpdateFile Wait Zoom
    """,
    "sidestream.mcp": """
        Elicitation mcp_servers MCPServer SamplingAnswer SamplingRequest
    """,
    "sidestream.providers": """
        Capabilities caps_of ChatModel Decoder EmbeddingCall EmbeddingsResult EmbedsText Encoded FileRef
        find_provider HttpCall HttpResponse ListsModels MakesMedia OpensHttp MediaPlan ModelInfo ModelRequest ModelString
        NamesFiles Provider providers Recovery register_provider ResumesStreams Settings Transport UnderWay
        WorksInBackground
    """,
    "sidestream.store": """
        Conversation ConversationInfo LogState open_store PostgresStore Record Row SqliteStore Store StoreProblem UnresolvedCall
    """,
    "sidestream.testing": """
        Answer ChatScript check_stream dropped encode_event encode_events error_reply Exchange FakeProvider GeminiScript
        html_page InteractionScript json_reply Keepalives LeakError MessagesScript no_leaks pixel_png Received
        recorded RecordedRequest RecordedResponse Recording RecordingTransport ReplayTransport Reply
        responses_function_call responses_text ResponsesScript sse
    """,
}


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_of_a_package_are_exactly_these(package: str):
    assert sorted(importlib.import_module(package).__all__) == sorted(PUBLIC[package].split())


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_can_be_imported_and_is_listed_by_dir(package: str):
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PUBLIC)
def test_type_checkers_see_the_same_names_in_the_same_places(package: str):
    path = SOURCE / package.replace(".", "/") / "__init__.py"
    tree = ast.parse(path.read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname or alias.name: node.module for node in imports for alias in node.names}
    module = importlib.import_module(package)
    for name in module.__all__:
        assert seen[name] is not None, name
        assert getattr(importlib.import_module(seen[name]), name) is getattr(module, name), name


@pytest.mark.parametrize("package", PUBLIC)
def test_an_unknown_name_is_an_attribute_error(package: str):
    with pytest.raises(AttributeError, match="nonsense"):
        importlib.import_module(package).nonsense  # noqa: B018
