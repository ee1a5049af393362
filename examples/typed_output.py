"""Returns the answer as a typed value. The model calls a Python function first.

python examples/typed_output.py "Two nights in the cheapest of Ghent and Porto, please."
python examples/typed_output.py -m replay:examples/recordings/typed_output.json
"""

import argparse
import asyncio
from typing import Annotated

from pydantic import BaseModel, Field

from sidestream import Agent, ToolError

PROMPT = "Where are three nights cheapest: Porto, Ghent or Turku?"
PRICES = {"Ghent": 112, "Porto": 87, "Turku": 95}


class Trip(BaseModel):
    city: str
    nights: int = Field(ge=1)
    total_euros: int
    reason: str = Field(description="One sentence.")


async def price_per_night(city: Annotated[str, "The city's name in English."]) -> int:
    """The price of a night in a hotel, in euros."""
    if city not in PRICES:
        raise ToolError(f"No price for {city}. Known cities: {', '.join(PRICES)}.")
    print(f"looking up {city}")
    return PRICES[city]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    args = parser.parse_args()

    agent = Agent(args.model, tools=[price_per_night], output_type=Trip)
    trip = (await agent.send(args.prompt)).output
    print(f"{trip.nights} nights in {trip.city} for {trip.total_euros} euros. {trip.reason}")


asyncio.run(main())
