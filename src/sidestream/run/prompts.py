"""Prompts and their validation, whose errors tell what to write instead."""

from collections.abc import Sequence
from os import PathLike
from typing import get_args

from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, MessagePart
from sidestream.parts import File
from sidestream.providers.transfers import StoredFile
from sidestream.text.reprs import shown

PromptItem = str | PathLike[str] | MessagePart | StoredFile | File
Prompt = str | PathLike[str] | ChatMessage | Sequence[PromptItem]
PARTS = get_args(MessagePart)


def user_message(prompt: Prompt) -> ChatMessage:
    """Convert a prompt (text, a file's path, parts or a message) to the user's message.

    Raises ConfigurationError for anything else, or if a file cannot be read.
    """
    if isinstance(prompt, str):
        return ChatMessage.user(prompt)
    if isinstance(prompt, ChatMessage):
        return prompt
    if isinstance(prompt, PathLike):
        return ChatMessage.user(DataPart.from_path(prompt))
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = f"put the part into a list: [{type(prompt).__name__}(…)]" if isinstance(prompt, PARTS) else ""
        raise _no_prompt(prompt, hint)
    if not prompt:
        raise _no_prompt(prompt, "the list is empty")
    for item in prompt:
        if isinstance(item, ChatMessage):
            raise _no_prompt(prompt, "earlier messages belong to history=[…]")
        if not isinstance(item, (str, PathLike, StoredFile, File, *PARTS)):
            raise _no_prompt(prompt, f"it contains {shown(item)}")
    return ChatMessage.user(*map(_part_of, prompt))


def _part_of(item: PromptItem) -> str | MessagePart:
    if isinstance(item, PathLike):
        return DataPart.from_path(item)
    if isinstance(item, StoredFile):
        return item.part
    if not isinstance(item, File):
        return item
    # What a tool made becomes a file that the user attaches, so the model sees it.
    if item.data is None:
        return LinkPart(item.url or "", item.mime_type, item.name)
    return DataPart(item.data, item.mime_type, item.name)


def _no_prompt(prompt: object, hint: str) -> ConfigurationError:
    wanted = "prompt must be a string, a Path, a ChatMessage, or a list of strings, paths and parts such as DataPart"
    return ConfigurationError(f"{wanted}, not {shown(prompt)}" + (f": {hint}" if hint else ""))
