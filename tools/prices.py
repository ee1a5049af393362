"""Generate `src/sidestream/prices/table.json` from the price table in an installed `litellm`.

    pip install --no-deps --target /tmp/litellm litellm
    python -m tools.prices /tmp/litellm [OUT]

The table holds the rates and fees of models that our providers serve, by service tier. Batch APIs, speech, video and
realtime are left out, since none of our providers uses them.
"""

import json
import re
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "src" / "sidestream" / "prices" / "table.json"
SOURCE_FILE = "model_prices_and_context_window_backup.json"

LISTS = {"openai": "openai", "anthropic": "anthropic", "gemini": "google"}
"""Our price lists, by provider name in the source."""
MODES = {"chat", "responses", "embedding", "image_generation"}
RATES = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "cache_write_1h": "cache_creation_input_token_cost_above_1hr",
    "reasoning": "output_cost_per_reasoning_token",
    "input_audio": "input_cost_per_audio_token",
    "input_image": "input_cost_per_image_token",
    "input_video": "input_cost_per_video_token",
    "cache_read_audio": "cache_read_input_audio_token_cost",
    "output_audio": "output_cost_per_audio_token",
    "output_image": "output_cost_per_image_token",
}
TIERS = ("flex", "priority", "ultrafast")
SEARCHES = {"openai": "web_search", "anthropic": "web_search", "google": "google_search"}
LONG = re.compile(r"input_cost_per_token_above_(\d+)k_tokens$")


def number(value: Any) -> float | int:
    """Convert a number to an int if it is whole, otherwise to a float without binary noise."""
    plain = float(value)
    return int(plain) if plain.is_integer() else plain


def per_million(value: float) -> float | int:
    return number(Decimal(repr(value)) * 1_000_000)


def rates(entry: dict[str, Any], suffix: str = "") -> dict[str, Any]:
    """Return the rates of the tier whose fields end with `suffix`."""
    found = {kind: entry.get(field + suffix) for kind, field in RATES.items()}
    # A rate of 0 means that the kind does not occur or is not billed yet.
    return {kind: per_million(value) for kind, value in found.items() if isinstance(value, int | float) and value}


def tier(entry: dict[str, Any], size: str | None, name: str = "") -> dict[str, Any]:
    """Return the rates of a tier, including those of long requests."""
    price = rates(entry, f"_{name}" if name else "")
    if size is None or not price:
        return price
    price["long_from"] = int(size) * 1000
    long = rates(entry, f"_above_{size}k_tokens" + (f"_{name}" if name else ""))
    return price | ({"long": long} if long else {})


def price_of(entry: dict[str, Any], search: str) -> dict[str, Any]:
    sizes = [match[1] for field in entry if (match := LONG.match(field))]
    size = sizes[0] if sizes else None
    price = tier(entry, size)
    tools: dict[str, Any] = {}
    costs = entry.get("search_context_cost_per_query")
    if costs:
        tools[search] = costs["search_context_size_medium"]
    if "google_maps_grounding_cost_per_query" in entry:
        tools["google_maps"] = entry["google_maps_grounding_cost_per_query"]
    if tools:
        price["tools"] = {tool: number(fee) for tool, fee in tools.items()}
        if search == "google_search" and entry.get("web_search_billing_unit") != "per_query":
            price["once_per_request"] = sorted(tools)
    if isinstance(modes := entry.get("provider_specific_entry"), dict):
        price["factors"] = modes
    tiers = {name: found for name in TIERS if (found := tier(entry, size, name))}
    return price | ({"tiers": tiers} if tiers else {})


def fees(folder: Path, source: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the fees that are the same for every model. The file search fee is a constant in the source's code."""
    code = (folder / "constants.py").read_text()
    match = re.search(r'"OPENAI_FILE_SEARCH_COST_PER_1K_CALLS", ([\d.]+) / 1000\)', code)
    if match is None:
        raise SystemExit("constants.py does not name the fee of a file search as it did; look there")
    container = source["openai/container"]["code_interpreter_cost_per_session"]
    return {"openai": {"container": container, "file_search": float(Decimal(match[1]) / 1000)}}


def table(folder: Path, version: str, date: str) -> dict[str, Any]:
    source: dict[str, dict[str, Any]] = json.loads((folder / SOURCE_FILE).read_text())
    lists: dict[str, dict[str, Any]] = {ours: {} for ours in LISTS.values()}
    for name, entry in source.items():
        ours = LISTS.get(entry.get("litellm_provider", ""))
        model = name.removeprefix("gemini/")
        if ours is None or entry.get("mode") not in MODES or "/" in model:
            continue
        price = price_of(entry, SEARCHES[ours])
        if price.get("input") and model not in lists[ours]:
            lists[ours][model] = price
    return {
        "date": date,
        "source": f"litellm {version}, {SOURCE_FILE}",
        "fees": fees(folder, source),
        "lists": {ours: dict(sorted(models.items())) for ours, models in lists.items()},
    }


def lines(made: dict[str, Any]) -> str:
    """Format the table with one model per line, so that diffs stay readable."""
    head = json.dumps({key: made[key] for key in ("date", "source", "fees")}, indent=1)[:-2]
    lists = [
        f'  "{name}": {{\n' + ",\n".join(f"   {json.dumps(m)}: {json.dumps(p)}" for m, p in models.items()) + "\n  }"
        for name, models in made["lists"].items()
    ]
    return head + ',\n "lists": {\n' + ",\n".join(lists) + "\n }\n}\n"


def main(arguments: list[str]) -> None:
    if len(arguments) not in (1, 2):
        raise SystemExit(__doc__)
    root, out = Path(arguments[0]), Path(arguments[1]) if len(arguments) > 1 else TABLE
    info = next(root.glob("litellm-*.dist-info"))
    version = info.name.removeprefix("litellm-").removesuffix(".dist-info")
    made = table(root / "litellm", version, f"{datetime.now(UTC):%Y-%m-%d}")
    out.write_text(lines(made))
    counts = ", ".join(f"{len(models)} of {name}" for name, models in made["lists"].items())
    print(f"{out}: {counts}, from litellm {version}")


if __name__ == "__main__":
    main(sys.argv[1:])
