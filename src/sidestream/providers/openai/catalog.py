"""The list of models, in the forms of OpenAI and of compatible servers. Pure."""

from sidestream import jsontext
from sidestream.errors import ProtocolError
from sidestream.jsontext import JsonObject, is_array, objects, text_in
from sidestream.providers.protocol import ModelInfo
from sidestream.providers.shared.modalities import abilities

INPUT_LIMITS = ("context_length", "max_model_len", "context_window", "max_context_length", "meta.n_ctx_train")
"""Fields with the size of the context window; the first that is present counts."""

OUTPUT_LIMITS = ("max_completion_tokens", "top_provider.max_completion_tokens")

_KINDS = {"embed": ("embeddings",), "image": ("media",), "dall-e": ("media",)}
"""Part of a model's name → its kinds."""


def read_models(body: bytes) -> list[ModelInfo]:
    """The models, in an object's `data` or as a bare list. Raises ProtocolError."""
    try:
        answer = jsontext.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the list of models is not JSON") from error
    entries = answer if is_array(answer) else jsontext.as_object(answer).get("data")
    if not is_array(entries):
        raise ProtocolError("the response has no list of models")
    return [_info(entry) for entry in objects(entries) if text_in(entry, "id")]


def _info(entry: JsonObject) -> ModelInfo:
    name = str(entry["id"])
    return ModelInfo(
        name=name,
        kinds=next((kinds for mark, kinds in _KINDS.items() if mark in name.lower()), ("chat",)),
        display_name=text_in(entry, "name") or text_in(entry, "display_name"),
        description=text_in(entry, "description"),
        max_input_tokens=_first(entry, INPUT_LIMITS),
        max_output_tokens=_first(entry, OUTPUT_LIMITS),
        **abilities(entry),
        capabilities={key: value for key, value in entry.items() if key not in ("id", "object")},
    )


def _first(entry: JsonObject, paths: tuple[str, ...]) -> int | None:
    for path in paths:
        value: object = entry
        for step in path.split("."):
            value = jsontext.as_object(value).get(step)
        if type(value) is int and value > 0:
            return value
    return None
