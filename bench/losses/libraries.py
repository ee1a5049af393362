"""The libraries that are compared, and how a value of the vendor's is recognized in each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A library, the API of it that is used, and what of it is its own.

    A value counts as typed if a class of the package `own` holds it, and no marker of `raw` is in the value's path or
    in the class's name.
    """

    title: str
    module: str
    api: str
    own: str
    peer: str | None = None
    """The name of its environment; None is the project's own."""
    raw: tuple[str, ...] = ()
    has_approval_api: bool = True
    """False: the program writes an approval as the vendor's JSON."""


LIBRARIES = (
    Library(
        "Sidestream",
        "ours",
        "`agent.stream` with `preview_of`, `agent.send`",
        "sidestream",
        raw=(".event", ".result.", ".annotations", ".metadata", ".provider_metadata"),
    ),
    Library("openai", "openai_sdk", "`responses.stream`, `get_final_response`", "openai", "openai"),
    Library(
        "openai-agents",
        "openai_agents",
        "`Runner.run_streamed`: `stream_events`, `new_items`, `raw_responses`",
        "agents",
        "openai-agents",
        (".raw_item",),
    ),
    Library(
        "pydantic-ai",
        "pydantic_agent",
        "`Agent.run_stream_events`, `result.all_messages`",
        "pydantic_ai",
        "pydantic-ai",
        (".provider_details",),
    ),
    Library(
        "langchain-openai",
        "langchain_chat",
        '`ChatOpenAI.astream` with `output_version="v1"`, and the sum of its chunks',
        "langchain_core",
        "langchain-openai",
        ("<non_standard>", ".additional_kwargs", ".response_metadata"),
        has_approval_api=False,
    ),
    Library(
        "litellm",
        "litellm_responses",
        "`aresponses`, `event.response` of its last event",
        "litellm",
        "litellm",
        ("GenericEvent", "BaseLiteLLMOpenAIResponseObject"),
        has_approval_api=False,
    ),
)
