"""Calls to the embedded models: chat by the server, embeddings in a thread, the list of models from data."""

import asyncio
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError, ContextOverflowError, ProviderError
from sidestream.limits import Limits
from sidestream.providers.local.files import CHAT, EMBEDDINGS, PACKAGES, ModelPackage, folder_of
from sidestream.providers.local.gguf import read_gguf
from sidestream.providers.local.server import ANSWER_TOKENS, running_server
from sidestream.providers.local.sources import EMBEDDED_CONTEXT_TOKENS, AddedModel, ModelSource, added_models, source_of
from sidestream.providers.protocol import ModelInfo
from sidestream.transport.calls import HttpCall, HttpResponse, OpensHttp

_TOO_LONG = re.compile(r"\((\d+) tokens\) exceeds the available context size \((\d+) tokens\)")
_INPUT_TOKENS = {"chat": EMBEDDED_CONTEXT_TOKENS, "embeddings": 256}


class LocalTransport:
    """Answers the calls of a remote API with the embedded models."""

    def __init__(self, http: OpensHttp, model: str) -> None:
        self._http = http
        self._model = model
        self._source: ModelSource | None = None

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Embeddings are computed in a thread; other calls go to the server, which is started if none is running."""
        if urlsplit(call.url).path.endswith("/embeddings"):
            return _Response(await asyncio.to_thread(_embeddings, call.body or b"{}"))
        if self._source is None:
            self._source = await asyncio.to_thread(source_of, self._model)
        address = await running_server(self._source)
        headers = call.headers | {"Authorization": f"Bearer {address.key}"}
        try:
            return await self._http(uses_proxies=False).open(
                replace(call, url=address.url + urlsplit(call.url).path, headers=headers), limits
            )
        except ProviderError as error:
            found = _TOO_LONG.search(error.message)
            if found is None:
                raise
        raise ContextOverflowError(
            f"The conversation has {found[1]} tokens, but the local model reads {found[2]} at most. "
            "Send less: a shorter prompt, history or tool result, or fewer tools.",
            code="context_length_exceeded",
            status=400,
        )

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """The list of models, the only download there is."""
        embedded = [_info(package) for package in PACKAGES.values()]
        return jsontext.dumps([*embedded, *map(_added_info, added_models())])


class _Response:
    """A response whose body is known."""

    status = 200
    headers: Mapping[str, str] = {}
    is_stream = False

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def events(self) -> list[bytes]:
        raise RuntimeError("This response is not a stream: read body().")

    def ignored(self) -> None:
        """There is no idle timeout."""

    async def body(self) -> bytes:
        return self._content

    async def aclose(self) -> None:
        """There is no connection."""

    complete = aclose


def _embeddings(body: bytes) -> bytes:
    from sidestream.providers.local.minilm import loaded

    texts = jsontext.loads(body)["input"]
    made = loaded(folder_of(EMBEDDINGS)).embed(texts)
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(made.vectors)]
    return jsontext.dumps({"data": data, "usage": {"prompt_tokens": made.tokens, "total_tokens": made.tokens}})


def _info(package: ModelPackage) -> ModelInfo:
    return ModelInfo(
        name=package.model,
        kinds=(package.kind,),
        description=package.description,
        max_input_tokens=_INPUT_TOKENS[package.kind],
        max_output_tokens=ANSWER_TOKENS if package is CHAT else None,
        capabilities={"package": package.pinned},
    )


def _added_info(model: AddedModel) -> ModelInfo:
    try:
        info = read_gguf(model.path)
    except ConfigurationError as error:
        return ModelInfo(name=model.name, kinds=("chat",), description=str(error))
    return ModelInfo(
        name=model.name,
        kinds=("chat",),
        description=info.name or info.architecture,
        max_input_tokens=info.context_tokens,
        capabilities={"source": model.path},
    )
