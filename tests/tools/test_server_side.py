import msgspec
import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError
from sidestream.tools.configs import DomainSecret
from sidestream.tools.server_side import (
    ALIASES,
    TOOLS,
    CodeInterpreter,
    Combination,
    Comparison,
    CustomTool,
    FileSearch,
    ImageGeneration,
    Location,
    MCPApproval,
    Network,
    RemoteMCP,
    ServerSideTool,
    Shell,
    SkillReference,
    WebFetch,
    WebSearch,
    tool_named,
)


@requirement("R46")
def test_config_is_frozen_and_has_defaults():
    search = WebSearch()
    assert search.context_size == "medium"
    assert ImageGeneration().partial_images == 0
    with pytest.raises(AttributeError):
        search.context_size = "low"  # pyright: ignore[reportAttributeAccessIssue]


@requirement("R46")
def test_configs_from_list_and_tuple_are_equal():
    assert WebSearch(allowed_domains=["a.example"]) == WebSearch(allowed_domains=("a.example",))
    assert hash(WebSearch(allowed_domains=["a.example"])) == hash(WebSearch(allowed_domains=("a.example",)))


@requirement("R46")
@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda: ImageGeneration(partial_images=7), ["0", "3"]),
        (lambda: ImageGeneration(size="big"), ["auto", "WIDTHxHEIGHT"]),
        (lambda: ImageGeneration(quality="best"), ["low", "medium", "high", "auto"]),  # pyright: ignore[reportArgumentType]
        (lambda: WebSearch(context_size="huge"), ["low", "medium", "high"]),  # pyright: ignore[reportArgumentType]
        (lambda: WebSearch(allowed_domains="a.example"), ["list"]),
        (lambda: FileSearch(stores=[]), ["at least one"]),
        (lambda: FileSearch(stores=["vs_1"], score_threshold=1.5), ["0", "1"]),
        (lambda: FileSearch(stores=["vs_1"], max_results=51), ["50"]),
        (lambda: CodeInterpreter(memory_limit="2g"), ["1g", "4g", "16g", "64g"]),  # pyright: ignore[reportArgumentType]
        (lambda: RemoteMCP(label="a", url="https://x.example", require_approval="ask"), ["always", "never"]),  # pyright: ignore[reportArgumentType]
    ],
)
def test_invalid_value_error_lists_allowed_values(make, allowed):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert all(word in str(caught.value) for word in allowed)


@requirement("R46")
@pytest.mark.parametrize(
    "make",
    [
        lambda: CodeInterpreter(container_id="cntr_1", file_ids=["file_1"]),
        lambda: CodeInterpreter(container_id="cntr_1", reuse_container=True),
        lambda: Shell(local=True, network=Network()),
        lambda: Shell(container_id="cntr_1", skills=[SkillReference(id="skill_1")]),
        lambda: Shell(local=True, skills=[SkillReference(id="skill_1")]),
        lambda: RemoteMCP(label="docs"),
        lambda: RemoteMCP(label="docs", url="https://x.example", tunnel="t_1"),
        lambda: CustomTool(name="sql", syntax="lark"),
        lambda: Network(domain_secrets=[DomainSecret(domain="a.example", name="KEY", value="v")]),
    ],
)
def test_fields_without_effect_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()


@pytest.mark.parametrize(
    "tool",
    [
        RemoteMCP(label="a", url="https://x.example", authorization="hush-1", headers={"X-Key": "hush-1"}),
        CodeInterpreter(
            network=Network(
                allowed_domains=["a.example"],
                domain_secrets=[DomainSecret(domain="a.example", name="KEY", value="hush-1")],
            )
        ),
    ],
)
def test_secrets_stay_out_of_every_repr(tool: ServerSideTool):
    assert "hush-1" not in repr(tool)
    assert "hush-1" not in str(tool.__rich_repr__())


def test_invalid_secret_is_not_shown_in_error():
    with pytest.raises(ConfigurationError) as caught:
        RemoteMCP(label="a", url="https://x.example", headers={"X-Key": ["hush-1"]})  # pyright: ignore[reportArgumentType]
    assert "hush-1" not in str(caught.value)


def test_repr_shows_set_fields():
    assert repr(WebSearch(location=Location(city="Bern"))) == "WebSearch(location=Location(city='Bern'))"


def test_nested_filters_keep_their_values():
    filters = Combination(filters=[Comparison(attribute="year", operator="gte", value=2020)])
    assert FileSearch(stores=["vs_1"], filters=filters).filters == filters
    assert MCPApproval(always=["delete"]).always == ("delete",)


def test_tool_is_found_by_name_or_alias():
    assert tool_named("web_search") == WebSearch()
    assert tool_named("code-execution") == CodeInterpreter()
    assert tool_named("google_search") == WebSearch()
    assert tool_named("url_context") == WebFetch()


def test_every_alias_names_known_tool():
    assert set(ALIASES.values()) <= TOOLS.keys()
    assert not ALIASES.keys() & TOOLS.keys()


def test_unknown_name_error_lists_known_names():
    with pytest.raises(ConfigurationError) as caught:
        tool_named("web_serch")
    assert all(name in str(caught.value) for name in TOOLS)


@pytest.mark.parametrize(("name", "needed"), [("file_search", "stores"), ("mcp", "url"), ("custom", "name")])
def test_tool_missing_arguments_names_them(name: str, needed: str):
    with pytest.raises(ConfigurationError, match=needed):
        tool_named(name)


def test_each_tool_is_listed_once_under_its_key():
    portable = [tool for tool in ServerSideTool.__subclasses__() if tool.__module__ == ServerSideTool.__module__]
    assert len({tool.key for tool in TOOLS.values()}) == len(TOOLS) == len(portable)
    assert all(issubclass(tool, msgspec.Struct) for tool in TOOLS.values())
