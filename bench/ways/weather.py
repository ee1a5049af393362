"""The tool that every loop calls."""

from typing import Any

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "strict": True,
}

calls: list[str] = []


def get_weather(city: str, unit: str) -> dict[str, Any]:
    """The weather in a city."""
    calls.append(city)
    return {"city": city, "unit": unit, "temperature": 21}
