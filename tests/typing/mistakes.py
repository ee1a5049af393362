"""Typical mistakes of users. Type checkers must report each line that ends in `# wrong`, and no other."""

from dataclasses import dataclass

from sidestream import Agent, Chat, DataPart, Limits, Tool, ToolContext, WebSearch, tool


@dataclass
class City:
    name: str


class Bank:
    balance = 3


class Shop:
    pass


@tool
def pay(amount: int, context: ToolContext[Bank]) -> str:
    return f"{amount} of {context.deps.balance}"


@tool(approval="ask")
async def refund(context: ToolContext[Bank], amount: int) -> str:
    return f"{amount} of {context.deps.balance}"


@tool
def unknown_field(context: ToolContext[Bank]) -> str:
    return context.deps.owner  # wrong


async def wrong_deps(agent: Agent[str, Bank]) -> None:
    await agent.send("hi", deps=Shop())  # wrong
    await agent.send("hi", output_type=City, deps=Shop())  # wrong
    agent.send_sync("hi", deps=3)  # wrong
    agent.stream("hi", deps=Shop())  # wrong
    agent.stream_sync("hi", deps=Shop())  # wrong
    await agent.resume("{}", deps=Shop())  # wrong
    await Chat(agent).send("hi", deps=Shop())  # wrong
    Chat(agent).send_sync("hi", deps=Shop())  # wrong
    Chat(agent).stream("hi", deps=Shop())  # wrong


async def wrong_deps_of_tools() -> None:
    await Agent("openai-responses", tools=[pay]).send("hi", deps=Shop())  # wrong
    await Agent("openai-responses", tools=[refund]).send("hi", deps=Shop())  # wrong


def wrong_tools() -> None:
    Agent[str, Shop]("openai-responses", tools=[pay])  # wrong
    Agent[str, Shop]("openai-responses", tools=[refund])  # wrong
    agent: Agent[str, Shop] = Agent("openai-responses", tools=[pay])  # wrong
    other: Tool[Shop] = pay  # wrong
    print(agent, other)
    Agent("openai-responses", tools=["pay"])  # wrong
    Agent("openai-responses", server_side_tools=[pay])  # wrong


async def wrong_settings(agent: Agent[str]) -> None:
    Agent("openai-responses", api_key=3)  # wrong
    Agent("openai-responses", tool_errors="explode")  # wrong
    Agent("openai-responses", limits={"max_steps": 3})  # wrong
    Agent("openai-responses", instructions="Be brief.")  # wrong
    await agent.send("hi", temperature="high")  # wrong
    await agent.send("hi", tool_errors="explode")  # wrong
    await agent.send(3)  # wrong
    await agent.send([b"bytes"])  # wrong
    agent.stream("hi", errors="ignore")  # wrong
    Chat("openai-responses")  # wrong
    WebSearch(domains=3)  # wrong
    Limits(max_steps="3")  # wrong
    DataPart(b"")  # wrong


async def wrong_outputs(agent: Agent[str]) -> None:
    print((await agent.send("hi", output_type=City)).output.size)  # wrong
    number: int = (await agent.send("hi")).output  # wrong
    city: City = agent.send_sync("hi", output_type=list[City]).output  # wrong
    print(number, city)
