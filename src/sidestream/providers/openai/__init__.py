"""OpenAI's two APIs, in `chat` and `responses`, and the options, billing, files and model families that they share."""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "providers.openai.account": "Moderation OpenAIEmbeddingOptions",
        "providers.openai.chat.options": "AudioOutput ChatPromptCache OpenAIChatOptions",
        "providers.openai.responses.options": (
            "AccessPrograms ContextManagement ImageContext OpenAIFunctionOptions OpenAIResponsesOptions "
            "OpenAIServerSideTool PromptCache PromptTemplate Reasoning ToolNamespace"
        ),
    },
)
