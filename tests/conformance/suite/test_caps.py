"""What providers say of themselves is data: complete, frozen, and cautious where nothing is said."""

import pytest
from msgspec.structs import asdict

from sidestream.agent.agent import Agent
from sidestream.errors import ConfigurationError, UnknownProviderError
from sidestream.providers.capabilities import INSTEAD, UNKNOWN, Capabilities, instead_of
from sidestream.providers.registry import caps_of, providers

NAMES = set(Capabilities.__struct_fields__) - {"instead", "settings"}


@pytest.mark.parametrize("name", sorted(providers()))
def test_every_provider_declares_capabilities(name: str) -> None:
    provider = providers()[name]
    caps = caps_of(provider)
    if name == "replay":  # It plays what others can.
        assert caps is UNKNOWN
        return
    assert caps.streaming
    assert caps.client_tools
    assert caps.instead.keys() <= {name for name in NAMES if not getattr(caps, name)}
    assert caps.embeddings == ("embeddings" in provider.default_models)


def test_undeclared_capabilities_are_unknown() -> None:
    class Silent:
        def chat_model(self) -> None: ...

    class Vague(Silent):
        caps = "everything"

    for provider in (Silent(), Vague()):
        caps = caps_of(provider, "some-model")
        assert caps is UNKNOWN
        assert {value for name, value in asdict(caps).items() if name in NAMES} == {False, "none"}


def test_capabilities_differ_by_api_of_provider() -> None:
    google = providers()["google"]
    assert not caps_of(google, "gemini-3-flash-preview").background
    assert caps_of(google, "interactions/gemini-3-flash-preview").background


def test_caps_of_accepts_name_or_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    assert caps_of("google").audio_in
    assert not caps_of("gemini").background
    assert caps_of("google:interactions/gemini-3-flash-preview").background
    assert caps_of("google", "interactions/gemini-3-flash-preview").background
    assert caps_of(Agent("google:interactions/gemini-3-flash-preview").model).background


@pytest.mark.parametrize("unknown", ["gogle", "gogle:gemini-3-flash-preview"])
def test_unknown_name_raises_with_suggestion(unknown: str) -> None:
    with pytest.raises(UnknownProviderError) as caught:
        caps_of(unknown)
    assert "google" in str(caught.value)


@pytest.mark.parametrize("other", [None, 3, object()])
def test_caps_of_invalid_argument_raises(other: object) -> None:
    with pytest.raises(ConfigurationError):
        caps_of(other)


def test_capabilities_are_frozen() -> None:
    with pytest.raises(AttributeError):
        UNKNOWN.streaming = True  # type: ignore[misc]


def test_instead_prefers_provider_text_over_default() -> None:
    assert INSTEAD.keys() <= NAMES
    assert instead_of(UNKNOWN, "thinking") == INSTEAD["thinking"]
    assert instead_of(UNKNOWN, "images_in") is None
    assert instead_of(Capabilities(instead={"thinking": "it hums"}), "thinking") == "it hums"
