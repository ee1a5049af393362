"""What the page learns of models and keys, and that no key is among it."""

import asyncio
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection

from requirements import requirement
from server.serving import JOB, KEY, agent_of, serving
from sidestream.errors import ConfigurationError
from sidestream.providers.registry import installed_providers
from sidestream.server import Page, create_app
from sidestream.testing import FakeProvider, ResponsesScript, json_reply, sse

ANNA, BEN, OWNER = "token-of-anna-0123456789", "token-of-ben-01234567890", "token-of-the-owner-01234"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in installed_providers():
        for variable in provider.key_variables:
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@requirement("R143")
async def test_models_list_hosted_tools_and_missing_keys(tmp_path: Path):
    async with serving("openai-responses", tmp_path) as (_, client):
        found = (await client.get("/api/models")).json()
    models = {model["name"]: model for model in found["models"]}
    # People know the vendor, not its APIs.
    assert found["providers"]["openai-responses"]["label"] == found["providers"]["openai"]["label"] == "OpenAI"
    hosting, missing, embedded = models["openai-responses:gpt-5.6"], models["anthropic:claude-sonnet-5-5"], None
    assert (hosting["default"], hosting["available"], hosting["tools"]["web_search"]) == (True, True, "hosted")
    assert hosting["thinking"] == ["off", "low", "medium", "high"]
    assert hosting["price"]["input"] > 0
    assert "mcp" not in hosting["tools"]
    assert (missing["available"], missing["variable"]) == (False, "ANTHROPIC_API_KEY")
    assert missing["tools"]["image_generation"] == "by openai-responses"
    assert missing["tools"]["shell"] == "here"
    embedded = models["local:smollm2-135m"]
    assert (embedded["available"], embedded["variable"], embedded["thinking"]) == (True, None, [])
    assert embedded["tools"]["web_search"] != "hosted"


@requirement("R143")
async def test_key_change_is_visible_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with serving("openai-responses", tmp_path) as (_, client):

        async def found() -> tuple[bool, str]:
            models = {model["name"]: model for model in (await client.get("/api/models")).json()["models"]}
            claude = models["anthropic:claude-sonnet-5-5"]
            return claude["available"], claude["tools"]["image_generation"]

        assert await found() == (False, "by openai-responses")
        monkeypatch.delenv("OPENAI_API_KEY")
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        available, image = await found()
    assert (available, image.startswith("by ")) == (True, False)


@requirement("R143")
async def test_server_with_agents_offers_only_them(tmp_path: Path):
    async with FakeProvider([]) as fake:
        agents = {"support": agent_of(fake), "sales": agent_of(fake)}
        async with serving(agents, tmp_path, examples=["Hello?"]) as (_, client):
            models = (await client.get("/api/models")).json()["models"]
            about = (await client.get("/api/about")).json()
    assert [(model["name"], model["isAgent"], model["default"]) for model in models] == [
        ("support", True, True),
        ("sales", True, False),
    ]
    assert (about["agents"], about["default"], about["examples"]) == (["support", "sales"], "support", ["Hello?"])


@requirement("R143")
@pytest.mark.parametrize(("allows_admin", "ends"), [(True, KEY[-4:]), (False, None)])
async def test_keys_are_named_but_not_shown(tmp_path: Path, allows_admin: bool, ends: str | None):
    async with serving(None, tmp_path, allows_admin=allows_admin) as (_, client):
        response = await client.get("/api/keys")
    keys = {key["provider"]: key for key in response.json()["keys"]}
    assert (keys["openai"]["variable"], keys["openai"]["found"], keys["openai"]["ends"]) == (
        "OPENAI_API_KEY",
        True,
        ends,
    )
    assert (keys["anthropic"]["found"], keys["anthropic"]["ends"]) == (False, None)
    assert "local" not in keys
    assert KEY not in response.text


@requirement("R143")
async def test_short_key_suffix_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "short-key-1")
    async with serving(None, tmp_path, allows_admin=True) as (_, client):
        keys = {key["provider"]: key for key in (await client.get("/api/keys")).json()["keys"]}
    assert (keys["openai"]["found"], keys["openai"]["ends"]) == (True, None)


@requirement("R143")
async def test_key_test_lists_models_or_quotes_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    refusal = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    replies = [json_reply({"object": "list", "data": [{"id": "gpt-5.6"}]}), json_reply(refusal, status=401)]
    async with FakeProvider(replies) as fake, serving(None, tmp_path, allows_admin=True) as (_, client):
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        accepted = (await client.post("/api/keys/openai-responses/test")).json()
        refused = await client.post("/api/keys/openai-responses/test")
        unknown = await client.post("/api/keys/nobody/test")
        unset = await client.post("/api/keys/anthropic/test")
    assert (accepted["ok"], accepted["models"]) == (True, 1)
    assert refused.json()["ok"] is False
    assert "Incorrect API key" in refused.json()["error"]
    assert KEY not in refused.text
    assert (unknown.status_code, unset.status_code, unset.json()["error"]["code"]) == (404, 409, "no_key")


@requirement("R215")
async def test_users_of_shared_server_see_no_keys_or_other_counts(tmp_path: Path):
    gate = asyncio.Event()
    events = ResponsesScript().text(["One, ", "two."]).events()
    async with FakeProvider([sse([*events[:6], gate, *events[6:]])]) as fake:
        agents = {"main": agent_of(fake)}
        settings = {"tokens": [ANNA, BEN], "owner_token": OWNER, "allows_models": True}
        async with serving(agents, tmp_path, **settings) as (server, client):
            await server.runs.start(server.agent("main"), "someone/c1", "Count.", JOB)
            about = (await client.get("/api/about")).json()
            refused = await client.get("/api/keys")
            models = (await client.get("/api/models")).json()
            own = (await client.get("/api/engine")).json()
            client.headers["Authorization"] = f"Bearer {OWNER}"
            keys = await client.get("/api/keys")
            whole = (await client.get("/api/engine")).json()
            owned = (await client.get("/api/about")).json()
            fake.release(gate)
    assert (about["isGuest"], "keys" in about["panels"], "keys" in owned["panels"]) == (True, False, True)
    assert (about["isOwner"], owned["isOwner"]) == (False, True)
    assert (refused.status_code, refused.json()["error"]["code"], keys.status_code) == (403, "panel_hidden", 200)
    # Neither a variable nor a model that lacks its key.
    assert {model["variable"] for model in models["models"]} == {None}
    assert all(model["available"] for model in models["models"])
    assert {provider["variable"] for provider in models["providers"].values()} == {None}
    assert ({*own.values()}, own.keys(), whole["running"]) == ({0}, whole.keys(), 1)


@requirement("R215")
async def test_operator_names_page_and_leaves_out_panels(tmp_path: Path):
    async def auth(connection: HTTPConnection) -> str | None:
        return connection.headers.get("x-user")

    page = Page(greeting="Welcome.", examples=["Hello?"], panels=["settings", "runs"], sign_out_url="/bye")
    async with (
        FakeProvider([]) as fake,
        serving(
            {"main": agent_of(fake)}, tmp_path, page=page, auth=auth, mcp_file=str(tmp_path / "mcp.json")
        ) as served,
    ):
        _, client = served
        client.headers["x-user"] = "Anna"
        about = (await client.get("/api/about")).json()
        codes = [
            (await client.get(path)).status_code for path in ("/api/keys", "/api/mcp", "/api/indexes", "/api/runs")
        ]
    assert (about["greeting"], about["examples"], about["user"]) == ("Welcome.", ["Hello?"], "Anna")
    assert (about["panels"], about["signOutUrl"]) == (["settings", "runs"], "/bye")
    assert codes == [403, 403, 403, 200]


@requirement("R215")
@pytest.mark.parametrize(
    "given",
    [
        {"panels": ["key"]},
        {"panels": "keys"},
        {"title": " "},
        {"icon": "missing.svg"},
        {"icon": __file__},
        {"sign_in_url": "javascript:alert(1)"},
        {"sign_out_url": "//elsewhere.example"},
        {"examples": "Hello?"},
    ],
    ids=str,
)
def test_wrong_page_option_is_named(given: dict[str, object]):
    (name,) = given
    with pytest.raises(ConfigurationError, match=f"Page.{name}"):
        Page(**given)  # pyright: ignore[reportArgumentType]


@requirement("R215")
def test_examples_given_twice_are_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="twice"):
        create_app(store=tmp_path / "talks.db", examples=["A"], page=Page(examples=["B"]))
