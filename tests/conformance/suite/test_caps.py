"""What providers say of themselves is data: complete, frozen, and cautious where nothing is said."""

import pytest
from msgspec.structs import asdict

from sidestream.agent.agent import Agent
from sidestream.errors import ConfigurationError, UnknownProviderError
from sidestream.providers.capabilities import INSTEAD, UNKNOWN, Capabilities, instead_of
from sidestream.providers.registry import caps_of, providers

NAMES = set(Capabilities.__struct_fields__) - {"instead", "settings"}


@pytest.mark.parametrize("name", sorted(providers()))
def test_every_provider_of_models_says_what_it_can_do(name: str) -> None:
    provider = providers()[name]
    caps = caps_of(provider)
    if name == "replay":  # It plays what others can.
        assert caps is UNKNOWN
        return
    assert caps.streaming
    assert caps.client_tools
    assert caps.instead.keys() <= {name for name in NAMES if not getattr(caps, name)}
    assert caps.embeddings == ("embeddings" in provider.default_models)


def test_a_provider_that_says_nothing_claims_nothing() -> None:
    class Silent:
        def chat_model(self) -> None: ...

    class Vague(Silent):
        caps = "everything"

    for provider in (Silent(), Vague()):
        caps = caps_of(provider, "some-model")
        assert caps is UNKNOWN
        assert {value for name, value in asdict(caps).items() if name in NAMES} == {False, "none"}


def test_a_provider_with_two_apis_says_it_of_each() -> None:
    google = providers()["google"]
    assert not caps_of(google, "gemini-3-flash-preview").background
    assert caps_of(google, "interactions/gemini-3-flash-preview").background


def test_a_name_or_a_model_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    assert caps_of("google").audio_in
    assert not caps_of("gemini").background
    assert caps_of("google:interactions/gemini-3-flash-preview").background
    assert caps_of("google", "interactions/gemini-3-flash-preview").background
    assert caps_of(Agent("google:interactions/gemini-3-flash-preview").model).background


@pytest.mark.parametrize("unknown", ["gogle", "gogle:gemini-3-flash-preview"])
def test_capabilities_of_an_unknown_name_are_refused_with_a_suggestion(unknown: str) -> None:
    with pytest.raises(UnknownProviderError) as caught:
        caps_of(unknown)
    assert "google" in str(caught.value)


@pytest.mark.parametrize("other", [None, 3, object()])
def test_capabilities_of_something_else_are_refused(other: object) -> None:
    with pytest.raises(ConfigurationError):
        caps_of(other)


def test_capabilities_are_frozen() -> None:
    with pytest.raises(AttributeError):
        UNKNOWN.streaming = True  # type: ignore[misc]


def test_what_happens_instead_is_the_providers_own_word_before_the_usual_one() -> None:
    assert INSTEAD.keys() <= NAMES
    assert instead_of(UNKNOWN, "thinking") == INSTEAD["thinking"]
    assert instead_of(UNKNOWN, "images_in") is None
    assert instead_of(Capabilities(instead={"thinking": "it hums"}), "thinking") == "it hums"
