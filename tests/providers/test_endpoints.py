"""URLs from environment variables."""

import pytest

from sidestream import ConfigurationError
from sidestream.providers.shared.endpoints import url_from_variables

_MANTLE = "https://bedrock-mantle.{AWS_REGION|AWS_DEFAULT_REGION}.api.aws/v1"


@pytest.fixture(autouse=True)
def _no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def test_url_is_filled_from_first_set_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", " eu-west-1 ")
    assert url_from_variables(_MANTLE, who="Mantle") == "https://bedrock-mantle.eu-west-1.api.aws/v1"
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert url_from_variables(_MANTLE, who="Mantle") == "https://bedrock-mantle.us-east-1.api.aws/v1"


def test_url_without_places_is_unchanged() -> None:
    assert url_from_variables("https://api.x.ai/v1", who="xAI") == "https://api.x.ai/v1"


def test_url_has_default_of_unset_variable() -> None:
    assert url_from_variables("https://x/{AWS_REGION|=global}", who="X") == "https://x/global"


def test_missing_variable_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"Mantle .*AWS_REGION or AWS_DEFAULT_REGION"):
        url_from_variables(_MANTLE, who="Mantle")


@pytest.mark.parametrize("value", ["evil.example/", "a@b", "a b", "ä", "a#", "x?y"])
def test_value_that_changes_url_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AWS_REGION", value)
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        url_from_variables(_MANTLE, who="Mantle")
