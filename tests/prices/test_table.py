"""The price table: made by a program, read once and only when a cost is computed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from sidestream.prices.price import TokenKind
from sidestream.prices.pricing import PriceList, PriceTable, price_table
from support.places import ROOT

SOURCE: dict[str, Any] = {
    "sample_spec": {"litellm_provider": "one of …", "mode": "one of …"},
    "gpt-x": {
        "litellm_provider": "openai",
        "mode": "responses",
        "input_cost_per_token": 1.75e-06,
        "output_cost_per_token": 1.4e-05,
        "cache_read_input_token_cost": 1.75e-07,
        "input_cost_per_token_above_272k_tokens": 3.5e-06,
        "output_cost_per_token_above_272k_tokens": 2.1e-05,
        "input_cost_per_token_flex": 8.75e-07,
        "output_cost_per_token_flex": 7e-06,
        "input_cost_per_token_batches": 8.75e-07,
        "search_context_cost_per_query": {"search_context_size_medium": 0.01},
    },
    "azure/gpt-x": {"litellm_provider": "azure", "mode": "chat", "input_cost_per_token": 9e-06},
    "high/1024-x-1024/gpt-image": {"litellm_provider": "openai", "mode": "image_generation", "input_cost_per_token": 1},
    "whisper": {"litellm_provider": "openai", "mode": "audio_transcription", "input_cost_per_token": 1},
    "claude-x": {
        "litellm_provider": "anthropic",
        "mode": "chat",
        "input_cost_per_token": 5e-06,
        "cache_creation_input_token_cost": 6.25e-06,
        "cache_creation_input_token_cost_above_1hr": 1e-05,
        "provider_specific_entry": {"us": 1.1},
    },
    "gemini/gemini-x": {
        "litellm_provider": "gemini",
        "mode": "chat",
        "input_cost_per_token": 3e-07,
        "output_cost_per_reasoning_token": 2.5e-06,
        "search_context_cost_per_query": {"search_context_size_medium": 0.035},
        "google_maps_grounding_cost_per_query": 0.025,
    },
    "gemini/gemini-free": {"litellm_provider": "gemini", "mode": "chat", "input_cost_per_token": 0},
    "openai/container": {"litellm_provider": "openai", "mode": "chat", "code_interpreter_cost_per_session": 0.03},
}


def test_price_program_extracts_only_supported_providers(tmp_path: Path) -> None:
    folder = tmp_path / "litellm"
    folder.mkdir()
    (tmp_path / "litellm-9.8.7.dist-info").mkdir()
    (folder / "model_prices_and_context_window_backup.json").write_text(json.dumps(SOURCE))
    (folder / "constants.py").write_text(
        'OPENAI_FILE_SEARCH_COST_PER_1K_CALLS: Final = get_env_float("OPENAI_FILE_SEARCH_COST_PER_1K_CALLS", 2.5 / 1000)'
    )
    out = tmp_path / "table.json"
    program = [sys.executable, "-m", "tools.prices", str(tmp_path), str(out)]
    subprocess.run(program, cwd=ROOT, check=True, timeout=60, capture_output=True)
    made = json.loads(out.read_text())
    assert made["source"] == "litellm 9.8.7, model_prices_and_context_window_backup.json"
    assert made["fees"] == {"openai": {"container": 0.03, "file_search": 0.0025}}
    assert made["lists"] == {
        "openai": {
            "gpt-x": {
                "input": 1.75,
                "output": 14,
                "cache_read": 0.175,
                "long_from": 272000,
                "long": {"input": 3.5, "output": 21},
                "tools": {"web_search": 0.01},
                "tiers": {"flex": {"input": 0.875, "output": 7, "long_from": 272000}},
            }
        },
        "anthropic": {"claude-x": {"input": 5, "cache_write": 6.25, "cache_write_1h": 10, "factors": {"us": 1.1}}},
        "google": {
            "gemini-x": {
                "input": 0.3,
                "reasoning": 2.5,
                "tools": {"google_search": 0.035, "google_maps": 0.025},
                "once_per_request": ["google_maps", "google_search"],
            }
        },
    }
    msgspec.json.decode(out.read_bytes(), type=PriceTable)


def test_every_table_price_has_input_rate_within_bounds() -> None:
    for models in price_table().lists.values():
        assert len(models) > 15
        for name, price in models.items():
            rates = [getattr(price, kind) for kind in get_args(TokenKind)]
            assert price.input is not None, name
            assert all(rate is None or 0 < rate < 1000 for rate in rates), name
            assert all(0 < fee < 1 for fee in price.tools.values()), name
            assert price.long is None or price.long_from is not None, name


def test_price_list_decodes_only_requested_price() -> None:
    prices = PriceList({"a": msgspec.Raw(b'{"input": 1}'), "b": msgspec.Raw(b'{"input": "?"}')})
    table = PriceTable("2026-01-01", "here", {"ours": prices})
    price = table.find("ours", "a")
    assert price is not None
    assert price.input == 1
    assert prices["a"] is prices["a"]
    assert len(prices) == 2
    with pytest.raises(msgspec.ValidationError):
        table.find("ours", "b")


def test_import_and_new_agent_do_not_read_table() -> None:
    code = (
        "import sidestream, sys\n"
        "assert not any(name.startswith('sidestream.prices') for name in sys.modules)\n"
        "sidestream.Agent('openai-responses:gpt-5', api_key='k')\n"
        "from sidestream.prices.pricing import price_table\n"
        "assert price_table.cache_info().currsize == 0\n"
        "assert price_table() is price_table()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
