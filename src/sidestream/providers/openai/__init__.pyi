"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.providers.openai.account import (
    Moderation as Moderation,
    OpenAIEmbeddingOptions as OpenAIEmbeddingOptions,
)
from sidestream.providers.openai.chat.options import (
    AudioOutput as AudioOutput,
    ChatPromptCache as ChatPromptCache,
    OpenAIChatOptions as OpenAIChatOptions,
)
from sidestream.providers.openai.responses.options import (
    AccessPrograms as AccessPrograms,
    ContextManagement as ContextManagement,
    ImageContext as ImageContext,
    OpenAIFunctionOptions as OpenAIFunctionOptions,
    OpenAIResponsesOptions as OpenAIResponsesOptions,
    OpenAIServerSideTool as OpenAIServerSideTool,
    PromptCache as PromptCache,
    PromptTemplate as PromptTemplate,
    Reasoning as Reasoning,
    ToolNamespace as ToolNamespace,
)
