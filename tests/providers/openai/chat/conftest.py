"""No key, address or account of the machine."""

import pytest

from sidestream.providers.openai.chat import PRESETS, PROVIDER

VARIABLES = (
    *(server.key_variable for server in (PROVIDER, *PRESETS) if server.key_variable),
    "OPENAI_BASE_URL",
    "OPENAI_ORG_ID",
    "OPENAI_PROJECT_ID",
    "GROQ_BASE_URL",
    "AWS_DEFAULT_REGION",
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
