"""One driver per wire: what a server says on it, and where a request has what the tests look for.

A test says what is said as `Text`, `Thought` and `Call`, and reads requests with a driver's readers; so its body is
the same for every provider.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from sidestream.testing import (
    ChatScript,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    Received,
    Reply,
    ResponsesScript,
    aws_frames,
    error_reply,
    json_reply,
)

Json = dict[str, Any]


class Text(NamedTuple):
    """The model says this."""

    text: str


class Thought(NamedTuple):
    """The model thinks this, and shows it."""

    text: str


class Call(NamedTuple):
    """The model calls a client's function."""

    name: str
    input: Json


Said = Text | Thought | Call


class Pair(NamedTuple):
    """A call in a request, and what it was answered with."""

    name: str
    input: Any
    result: Any


class Script(Protocol):
    """An answer in both of its forms."""

    def reply(self, **fields: Any) -> Reply: ...

    def whole_reply(self, **fields: Any) -> Reply: ...


class Wire(Protocol):
    """What is different about a wire."""

    base_path: str
    """Of the server's base URL."""
    call_path: str
    """The end of the path of a model call."""
    seal: str | None
    """What stands in the answers below and only their own provider may see again."""

    def script(self, *said: Said, usage: tuple[int, int] | None = None) -> Script:
        """The answer that says this; usage is the tokens in and out."""
        ...

    def refusal(self, status: int, code: str, message: str, headers: Json | None = None) -> Reply:
        """An error as this provider words it."""
        ...

    def wrong_key(self) -> Reply:
        """What is said to a key that is not one."""
        ...

    def no_model(self, name: str) -> Reply:
        """What is said where there is no such model."""
        ...

    def overflow(self) -> Reply:
        """What is said to more than the model can read."""
        ...

    def limited(self, seconds: float) -> Reply:
        """A rate limit, with the wait where this provider tells it."""
        ...

    def tools(self, body: Json) -> list[str]:
        """The names of the functions that a request offers."""
        ...

    def schema(self, body: Json) -> Json | None:
        """The schema that a request asks the answer to follow, where the API has a place for it."""
        ...

    def pairs(self, body: Json) -> list[Pair]:
        """The calls of a request with their results. Fails where one has no other."""
        ...

    def files(self, body: Json) -> list[str]:
        """The kind that the API calls each file of a request by."""
        ...

    def models(self, *names: str) -> Reply:
        """A list of models."""
        ...


def strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from strings(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from strings(entry)


def objects(value: Any) -> Iterator[Json]:
    """Every object in a JSON value, outer ones first."""
    if isinstance(value, dict):
        yield value
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(entry)


def _paired(calls: Sequence[tuple[Any, str, Any]], results: Sequence[tuple[Any, Any]]) -> list[Pair]:
    """Calls and results by id: each call has one result, after nothing else of its id."""
    assert [call[0] for call in calls] == [result[0] for result in results]
    return [Pair(name, arguments, result) for (_, name, arguments), (_, result) in zip(calls, results, strict=True)]


class Responses:
    """OpenAI's Responses API."""

    dialect: Literal["openai", "xai"] = "openai"
    base_path = "/v1"
    call_path = "/responses"
    seal: str | None = "seal-of-responses"

    def script(self, *said: Said, usage: tuple[int, int] | None = None) -> Script:
        spent = {"input_tokens": usage[0], "output_tokens": usage[1], "total_tokens": sum(usage)} if usage else None
        script = ResponsesScript(usage=spent, dialect=self.dialect)
        for entry in said:
            match entry:
                case Text(text):
                    script.text(text)
                case Thought(text):
                    script.reasoning(text, encrypted_content=self.seal)
                case Call(name, arguments):
                    script.function_call(name, arguments)
        return script

    def refusal(self, status: int, code: str, message: str, headers: Json | None = None) -> Reply:
        return error_reply(status, code, message, headers)

    def wrong_key(self) -> Reply:
        return self.refusal(401, "invalid_api_key", "Incorrect API key provided")

    def no_model(self, name: str) -> Reply:
        return self.refusal(404, "model_not_found", f"The model `{name}` does not exist or you lack access to it")

    def overflow(self) -> Reply:
        return self.refusal(400, "context_length_exceeded", "The input is larger than this model reads")

    def limited(self, seconds: float) -> Reply:
        return self.refusal(429, "rate_limit_error", "slow down", {"retry-after": str(seconds)})

    def tools(self, body: Json) -> list[str]:
        return [tool["name"] for tool in body.get("tools", ()) if tool["type"] == "function"]

    def schema(self, body: Json) -> Json | None:
        return body.get("text", {}).get("format", {}).get("schema")

    def pairs(self, body: Json) -> list[Pair]:
        items = body["input"]
        calls = [
            (item["call_id"], item["name"], json.loads(item["arguments"]))
            for item in items
            if item.get("type") == "function_call"
        ]
        results = [(item["call_id"], item["output"]) for item in items if item.get("type") == "function_call_output"]
        return _paired(calls, results)

    def files(self, body: Json) -> list[str]:
        return [found["type"] for found in objects(body["input"]) if found.get("type") in ("input_image", "input_file")]

    def models(self, *names: str) -> Reply:
        return json_reply({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


class XaiResponses(Responses):
    """xAI's Responses API."""

    dialect: Literal["openai", "xai"] = "xai"

    def refusal(self, status: int, code: str, message: str, headers: Json | None = None) -> Reply:
        return json_reply({"code": code, "error": message}, status=status, headers=headers or {})

    def wrong_key(self) -> Reply:
        return self.refusal(400, "invalid-argument", "Incorrect API key provided: sk***. Create one at console.x.ai.")


class Completions:
    """Chat Completions."""

    base_path = "/v1"
    call_path = "/chat/completions"
    seal: str | None = None

    def script(self, *said: Said, usage: tuple[int, int] | None = None) -> Script:
        given = usage or (25, 9)
        script = ChatScript(
            usage={"prompt_tokens": given[0], "completion_tokens": given[1], "total_tokens": sum(given)}
        )
        for entry in said:
            match entry:
                case Text(text):
                    script.text(text)
                case Thought(text):
                    script.reasoning(text)
                case Call(name, arguments):
                    script.tool_call(name, arguments)
        return script

    def refusal(self, status: int, code: str, message: str, headers: Json | None = None) -> Reply:
        return error_reply(status, code, message, headers)

    def wrong_key(self) -> Reply:
        return self.refusal(401, "invalid_api_key", "Incorrect API key provided")

    def no_model(self, name: str) -> Reply:
        return self.refusal(404, "model_not_found", f"The model `{name}` does not exist or you lack access to it")

    def overflow(self) -> Reply:
        return self.refusal(400, "context_length_exceeded", "The input is larger than this model reads")

    def limited(self, seconds: float) -> Reply:
        return self.refusal(429, "rate_limit_error", "slow down", {"retry-after": str(seconds)})

    def tools(self, body: Json) -> list[str]:
        return [tool["function"]["name"] for tool in body.get("tools", ())]

    def schema(self, body: Json) -> Json | None:
        return body.get("response_format", {}).get("json_schema", {}).get("schema")

    def pairs(self, body: Json) -> list[Pair]:
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for message in body["messages"]
            for call in message.get("tool_calls", ())
        ]
        results = [(m["tool_call_id"], m["content"]) for m in body["messages"] if m["role"] == "tool"]
        return _paired(calls, results)

    def files(self, body: Json) -> list[str]:
        kinds = ("image_url", "input_audio", "file")
        return [found["type"] for found in objects(body["messages"]) if found.get("type") in kinds]

    def models(self, *names: str) -> Reply:
        return json_reply({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


class Messages:
    """Anthropic's Messages API."""

    base_path = "/v1"
    call_path = "/messages"
    seal: str | None = "c2VhbC1vZi1tZXNzYWdlcw=="

    def script(self, *said: Said, usage: tuple[int, int] | None = None) -> Script:
        script = MessagesScript(usage={"input_tokens": usage[0], "output_tokens": usage[1]} if usage else None)
        for entry in said:
            match entry:
                case Text(text):
                    script.text(text)
                case Thought(text):
                    script.thinking(text, signature=self.seal or "")
                case Call(name, arguments):
                    script.tool_use(name, arguments)
        return script

    def refusal(self, status: int, code: str, message: str, headers: Json | None = None) -> Reply:
        body = {"type": "error", "error": {"type": code, "message": message}, "request_id": "req_1"}
        return json_reply(body, status=status, headers=headers or {})

    def wrong_key(self) -> Reply:
        return self.refusal(401, "authentication_error", "invalid x-api-key")

    def no_model(self, name: str) -> Reply:
        # Its whole message is the name, after the word.
        return self.refusal(404, "not_found_error", f"model: {name}")

    def overflow(self) -> Reply:
        return self.refusal(400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum")

    def limited(self, seconds: float) -> Reply:
        return self.refusal(429, "rate_limit_error", "slow down", {"retry-after": str(seconds)})

    def tools(self, body: Json) -> list[str]:
        return [tool["name"] for tool in body.get("tools", ())]

    def schema(self, body: Json) -> Json | None:
        return body.get("output_config", {}).get("format", {}).get("schema")

    def pairs(self, body: Json) -> list[Pair]:
        blocks = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
        calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        results = [(b["tool_use_id"], b["content"]) for b in blocks if b["type"] == "tool_result"]
        return _paired(calls, results)

    def files(self, body: Json) -> list[str]:
        return [found["type"] for found in objects(body["messages"]) if found.get("type") in ("image", "document")]

    def models(self, *names: str) -> Reply:
        entries = [{"type": "model", "id": name, "display_name": name} for name in names]
        return json_reply({"data": entries, "has_more": False, "first_id": names[0], "last_id": names[-1]})


class Vertex(Messages):
    """The Messages API on Vertex AI, with the model in the path."""

    base_path = "/v1/projects/p/locations/global/publishers/anthropic"
    call_path = "awPredict"


class Bedrock(Messages):
    """The Messages API on Amazon Bedrock, with the model in the path and streams in AWS frames."""

    base_path = ""
    call_path = "/invoke-with-response-stream"

    def script(self, *said: Said, usage: tuple[int, int] | None = None) -> Script:
        return Framed(super().script(*said, usage=usage))


class Framed:
    """An answer whose events are sent in AWS frames."""

    def __init__(self, script: Any) -> None:
        self._script = script
        self.whole_reply = script.whole_reply

    def reply(self, **fields: Any) -> Reply:
        return aws_frames(self._script.events(), whole=self._script.response(), **fields)


class GenerateContent:
    """Google's generateContent."""

    base_path = "/v1beta"
    call_path = "enerateContent"
    seal: str | None = "c2VhbC1vZi1nZW1pbmk="

    def script(self, *said: Said, usage: tuple[int, int] | None = None) -> Script:
        counts = {"promptTokenCount": usage[0], "candidatesTokenCount": usage[1]} if usage else None
        script = GeminiScript(usage=counts)
        for entry in said:
            match entry:
                case Text(text):
                    script.text(text)
                case Thought(text):
                    script.thought(text, signature=self.seal)
                case Call(name, arguments):
                    script.function_call(name, arguments)
        return script

    def refusal(self, status: int, code: str, message: str, headers: Json | None = None) -> Reply:
        error = {"code": status, "message": message, "status": code.upper()}
        return json_reply({"error": error}, status=status, headers=headers or {})

    def wrong_key(self) -> Reply:
        details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
        error = {"code": 400, "message": "This key is not valid.", "status": "INVALID_ARGUMENT", "details": details}
        return json_reply({"error": error}, status=400)

    def no_model(self, name: str) -> Reply:
        said = f"models/{name} is not found for API version v1beta, or is not supported for generateContent"
        return self.refusal(404, "NOT_FOUND", said)

    def overflow(self) -> Reply:
        said = "The input token count (1250000) exceeds the maximum number of tokens (1048576)"
        return self.refusal(400, "INVALID_ARGUMENT", said)

    def limited(self, seconds: float) -> Reply:
        details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds}s"}]
        error = {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED", "details": details}
        return json_reply({"error": error}, status=429)

    def tools(self, body: Json) -> list[str]:
        return [f["name"] for tool in body.get("tools", ()) for f in tool.get("functionDeclarations", ())]

    def schema(self, body: Json) -> Json | None:
        return body.get("generationConfig", {}).get("responseJsonSchema")

    def pairs(self, body: Json) -> list[Pair]:
        parts = [part for content in body["contents"] for part in content["parts"]]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        # Without ids, they belong together by their order.
        return _paired(
            [((call["name"], call.get("id")), call["name"], call.get("args")) for call in calls],
            [((result["name"], result.get("id")), result["response"]) for result in results],
        )

    def files(self, body: Json) -> list[str]:
        return [found["inlineData"]["mimeType"] for found in objects(body["contents"]) if "inlineData" in found]

    def models(self, *names: str) -> Reply:
        methods = ["generateContent", "countTokens"]
        entries = [{"name": f"models/{name}", "supportedGenerationMethods": methods} for name in names]
        return json_reply({"models": entries})


class Interactions(GenerateContent):
    """Google's Interactions API."""

    call_path = "/interactions"
    seal: str | None = "c2VhbC1vZi1pbnRlcmFjdGlvbnM="

    def script(self, *said: Said, usage: tuple[int, int] | None = None) -> Script:
        counts = {"total_input_tokens": usage[0], "total_output_tokens": usage[1]} if usage else None
        script = InteractionScript(usage=counts)
        for entry in said:
            match entry:
                case Text(text):
                    script.text(text)
                case Thought(text):
                    script.thought(text, signature=self.seal)
                case Call(name, arguments):
                    script.function_call(name, arguments)
        return script

    def tools(self, body: Json) -> list[str]:
        return [tool["name"] for tool in body.get("tools", ()) if tool["type"] == "function"]

    def schema(self, body: Json) -> Json | None:
        return body.get("response_format", {}).get("schema")

    def pairs(self, body: Json) -> list[Pair]:
        steps = body["input"]
        calls = [(s["id"], s["name"], s["arguments"]) for s in steps if s["type"] == "function_call"]
        results = [(s["call_id"], s["result"]) for s in steps if s["type"] == "function_result"]
        return _paired(calls, results)

    def files(self, body: Json) -> list[str]:
        return [found["mime_type"] for found in objects(body["input"]) if "data" in found]


def embeddings(request: Received) -> Reply:
    """Vectors as OpenAI and Google answer: of each text its length and one."""
    asked = request.json
    if "requests" in asked:
        texts = [entry["content"]["parts"][0]["text"] for entry in asked["requests"]]
        return json_reply({"embeddings": [{"values": [len(text), 1.0]} for text in texts]})
    data = [{"index": index, "embedding": [len(text), 1.0]} for index, text in enumerate(asked["input"])]
    return json_reply({"data": data, "usage": {"prompt_tokens": 2 * len(data), "total_tokens": 2 * len(data)}})
