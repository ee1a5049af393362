"""The provider: names, keys, base URLs, recordings, models, embeddings and images."""

import json
from typing import Any

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, MissingKeyError, ProtocolError, ProviderError
from sidestream.messages.message import ChatMessage
from sidestream.providers.google import PROVIDER, GoogleEmbeddingOptions
from sidestream.providers.google.catalog import decode_models, list_models_call
from sidestream.providers.google.embeddings import decode_embeddings, embedding_calls
from sidestream.providers.google.endpoint import endpoint_of, normal_base_url
from sidestream.providers.protocol import ChatModel, Encoded, FileRef, ListsModels, ModelRequest, Provider, Settings
from sidestream.providers.registry import find_provider
from sidestream.wire.http import HttpTransport

HELLO = ModelRequest(messages=(ChatMessage.user("Hi"),))
KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENAI_API_VERSION")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def encoded(name: str = "gemini-3-flash-preview", **settings: Any) -> Encoded:
    return PROVIDER.chat_model(name, Settings(**settings)).encode(HELLO)


@requirement("R60")
def test_provider_is_found_by_name_and_aliases():
    provider: Provider = PROVIDER
    assert provider.display_name == "Google Gemini"
    for name in ("google", "gemini", "google-gla"):
        assert find_provider(name) is PROVIDER
    assert set(provider.default_models) == {"chat", "embeddings", "media"}
    model: ChatModel = PROVIDER.chat_model("interactions/gemini-3-flash-preview", Settings(api_key="key-123456789"))
    assert (model.provider, model.name) == ("google", "interactions/gemini-3-flash-preview")


@requirement("R60")
@pytest.mark.parametrize("model", ["gemini-3-flash-preview", "interactions/gemini-3-flash-preview"])
def test_google_api_key_wins_over_gemini_api_key_with_warning(monkeypatch: pytest.MonkeyPatch, model: str):
    monkeypatch.setenv("GEMINI_API_KEY", "gemini-key-000000")
    alone = encoded(model)
    assert alone.call.headers["x-goog-api-key"] == "gemini-key-000000"
    assert (alone.warnings, alone.call.key_variable) == ((), "GEMINI_API_KEY")
    monkeypatch.setenv("GOOGLE_API_KEY", "google-key-000000")
    both = encoded(model)
    assert both.call.headers["x-goog-api-key"] == "google-key-000000"
    (warning,) = both.warnings
    assert "GOOGLE_API_KEY" in warning
    assert "GEMINI_API_KEY" in warning
    assert both.call.key_variable == "GOOGLE_API_KEY"
    given = encoded(model, api_key="own-key-0000000")
    assert (given.call.headers["x-goog-api-key"], given.warnings) == ("own-key-0000000", ())


@requirement("R60")
def test_missing_key_error_names_both_variables():
    with pytest.raises(MissingKeyError, match=r"GOOGLE_API_KEY.*GEMINI_API_KEY"):
        encoded()
    assert "x-goog-api-key" not in encoded(base_url="http://127.0.0.1:8080").call.headers


@requirement("R60")
def test_auth_callable_provides_headers_per_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "google-key-000000")
    tokens = iter(["one", "two"])
    base = "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google"
    settings = Settings(base_url=base, auth=lambda: {"Authorization": f"Bearer {next(tokens)}"})
    model = PROVIDER.chat_model("gemini-3-flash-preview", settings)
    first, second = model.encode(HELLO).call, model.encode(HELLO).call
    assert (first.headers["Authorization"], second.headers["Authorization"]) == ("Bearer one", "Bearer two")
    assert "x-goog-api-key" not in first.headers
    assert first.url == f"{base}/models/gemini-3-flash-preview:streamGenerateContent?alt=sse"
    assert first.key_variable is None


def test_api_key_stays_out_of_reprs():
    model = PROVIDER.chat_model("gemini-3-flash-preview", Settings(api_key="canary-key-123456"))
    interactions = PROVIDER.chat_model("interactions/x", Settings(api_key="canary-key-123456"))
    endpoint = endpoint_of(Settings(api_key="canary-key-123456"))
    assert "canary" not in repr(model) + repr(interactions) + repr(endpoint) + repr(
        encoded(api_key="canary-key-123456")
    )


@requirement("R60")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://proxy.example", "https://proxy.example/v1"),
        ("https://proxy.example/gemini/", "https://proxy.example/gemini/v1"),
        ("https://proxy.example/v1beta", "https://proxy.example/v1beta"),
        ("https://v.example/v1/projects/p/publishers/google", "https://v.example/v1/projects/p/publishers/google"),
    ],
)
def test_base_url_without_version_gets_default(monkeypatch: pytest.MonkeyPatch, given: str, expected: str):
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", given)
    assert encoded(api_key="key-123456789").call.url.startswith(f"{expected}/models/")
    assert normal_base_url(given) == expected


def test_api_version_can_be_set_by_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GOOGLE_GENAI_API_VERSION", "beta")
    assert encoded(api_key="key-123456789").call.url.startswith("https://generativelanguage.googleapis.com/v1beta/")


@pytest.mark.parametrize(
    "url", ["ftp://x", "x", "https://", "https://u:p@x.example", "https://x.example?a=1", "http://x:y"]
)
def test_invalid_base_url_raises(url: str):
    with pytest.raises(ConfigurationError):
        normal_base_url(url)


def test_model_names_become_url_paths():
    def url(name: str) -> str:
        return encoded(name, api_key="key-123456789").call.url

    assert "/v1/models/gemini-x:stream" in url("gemini-x")
    assert "/v1/tunedModels/mine:stream" in url("tunedModels/mine")
    assert "/v1/models/a%3Fb:stream" in url("a?b")
    with pytest.raises(ConfigurationError):
        url("models/../secret")


def test_recorded_decoder_is_chosen_by_path():
    def decoder(method: str, path: str) -> str | None:
        found = PROVIDER.recorded_decoder(method, path, {"model": "m"})
        return type(found).__name__ if found else None

    generate = "GenerateContentDecoder"
    assert decoder("POST", "/v1beta/models/gemini-x:streamGenerateContent?alt=sse") == generate
    assert decoder("POST", "/v1/models/gemini-x:generateContent") == generate
    assert (
        decoder("POST", "/v1beta/interactions")
        == decoder("GET", "/v1/interactions/v1_x?stream=true")
        == "InteractionsDecoder"
    )
    for path in (
        "/v1/models/x:batchEmbedContents",
        "/v1/responses",
        "/v1/fileSearchStores",
        "/v1/interactions/x/cancel",
    ):
        assert decoder("POST", path) is None
    assert decoder("DELETE", "/v1/interactions/x") is None


def test_model_has_no_recovery_and_downloads_files():
    model = PROVIDER.chat_model("gemini-x", Settings(api_key="key-123456789", base_url="https://g.example/v1"))
    assert model.recover(ProviderError("previous interaction not found", status=404)) is None
    assert model.download(FileRef(id="abc")).url == "https://g.example/v1/files/abc:download?alt=media"
    assert PROVIDER.transport("gemini-x", HttpTransport) is None


ENDPOINT = endpoint_of(Settings(api_key="key-123456789", base_url="https://g.example"))


def test_models_are_listed_by_page_with_kinds():
    assert list_models_call(ENDPOINT).url == "https://g.example/v1/models?pageSize=1000"
    assert list_models_call(ENDPOINT, "a/b").url.endswith("&pageToken=a%2Fb")
    page = {
        "models": [
            {
                "name": "models/gemini-3-flash",
                "displayName": "Gemini 3 Flash",
                "description": "Fast.",
                "inputTokenLimit": 1000,
                "outputTokenLimit": 100,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
                "thinking": True,
            },
            {"name": "models/gemini-embedding-001", "supportedGenerationMethods": ["embedContent"]},
            {"name": "models/gemini-2.5-flash-image", "supportedGenerationMethods": ["generateContent"]},
            {"displayName": "no name"},
        ],
        "nextPageToken": "more",
    }
    models, token = decode_models(json.dumps(page).encode())
    assert [(model.name, model.kinds) for model in models] == [
        ("gemini-3-flash", ("chat",)),
        ("gemini-embedding-001", ("embeddings",)),
        ("gemini-2.5-flash-image", ("chat", "media")),
    ]
    assert (models[0].display_name, models[0].max_input_tokens, models[0].max_output_tokens) == (
        "Gemini 3 Flash",
        1000,
        100,
    )
    assert models[0].capabilities["thinking"] is True
    assert (models[0].thinking, models[0].images_in) == (True, None)
    assert token == "more"
    with pytest.raises(ProtocolError):
        decode_models(b"[]")
    for name in ("gemini-x", "interactions/gemini-x"):
        model = PROVIDER.chat_model(name, Settings(api_key="key-123456789", base_url="https://g.example"))
        assert isinstance(model, ListsModels)
        assert model.list_models("t").url == list_models_call(ENDPOINT, "t").url
        assert model.read_models(json.dumps(page).encode()) == (models, token)


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
def test_strings_are_embedded_in_order_in_batches_of_100(count: int):
    texts = [f"text {number}" for number in range(count)]
    options = GoogleEmbeddingOptions(task_type="RETRIEVAL_DOCUMENT", title="T", dimensions=8)
    calls = embedding_calls(ENDPOINT, "gemini-embedding-001", texts, options)
    batches = [json.loads(made.call.body or b"")["requests"] for made in calls]
    assert [made.count for made in calls] == [len(batch) for batch in batches]
    assert [len(batch) for batch in batches] == [100] * (count // 100) + ([count % 100] if count % 100 else [])
    sent = [request for batch in batches for request in batch]
    assert [request["content"]["parts"][0]["text"] for request in sent] == texts
    for made, request in zip(calls, [batch[0] for batch in batches], strict=True):
        assert made.call.url == "https://g.example/v1/models/gemini-embedding-001:batchEmbedContents"
        assert request["model"] == "models/gemini-embedding-001"
        assert (request["taskType"], request["title"], request["outputDimensionality"]) == (
            "RETRIEVAL_DOCUMENT",
            "T",
            8,
        )
    answers = [
        json.dumps(
            {"embeddings": [{"values": [int(r["content"]["parts"][0]["text"][5:]), 0.5]} for r in batch]}
        ).encode()
        for batch in batches
    ]
    vectors = [
        vector
        for body, made in zip(answers, calls, strict=True)
        for vector in decode_embeddings(body, made.count, "e").vectors
    ]
    assert vectors == [(float(number), 0.5) for number in range(count)]


def test_missing_or_malformed_vectors_raise():
    with pytest.raises(ProtocolError):
        decode_embeddings(b'{"embeddings": []}', 1, "e")
    for body in (b"no json", b"[]", b'{"embeddings": [{"values": "x"}]}'):
        with pytest.raises(ProtocolError):
            decode_embeddings(body, 1, "e")
    used = decode_embeddings(b'{"embeddings": [{"values": [1]}], "usageMetadata": {"promptTokenCount": 3}}', 1, "e")
    assert used.usage.input.total == 3
