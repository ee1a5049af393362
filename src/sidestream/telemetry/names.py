"""Attribute names: those of OpenTelemetry's conventions for generative AI, which are in development, and ours.

They are spelled out here because the conventions' package marks them all as moved and lacks the newer ones.
"""

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
OUTPUT_TYPE: Final = "gen_ai.output.type"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
DIMENSIONS: Final = "gen_ai.embeddings.dimension.count"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
STATUS_CODE: Final = "http.response.status_code"

# Only on opt-in.
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

SETTINGS: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
}
"""Attributes, by portable setting."""
STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"

FINISH_REASON_NAMES: Final = {"tool-calls": "tool_call", "content-filter": "content_filter"}
"""Finish reasons that the conventions spell differently, by our name."""

# Ours.
COST: Final = "sidestream.usage.cost"
RUN_ID: Final = "sidestream.run.id"
STEP: Final = "sidestream.step"
STEPS: Final = "sidestream.run.steps"
RUN_REASON: Final = "sidestream.run.finish_reason"
PENDING_APPROVALS: Final = "sidestream.run.pending_approvals"
WARNINGS: Final = "sidestream.run.warnings"
ATTEMPTS: Final = "sidestream.request.attempts"
RETRY_CAUSES: Final = "sidestream.request.retry_causes"
LIMITER_WAIT: Final = "sidestream.request.limiter_wait"
UNKNOWN_EVENTS: Final = "sidestream.response.unknown_events"
EVENT_TYPE: Final = "sidestream.event.type"
NOTICE_REASON: Final = "sidestream.notice.reason"
NOTICE_FAILED: Final = "sidestream.notice.failed_model"
NOTICE_MODEL: Final = "sidestream.notice.model"
IS_HOSTED: Final = "sidestream.tool.provider_executed"
PROVIDER_TOOL: Final = "sidestream.tool.provider_tool"
TOOL_STATUS: Final = "sidestream.tool.status"
TASK_STATE: Final = "sidestream.task.state"
