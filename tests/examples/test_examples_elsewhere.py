"""The same examples on the other providers' wires: only the model string changes."""

from pathlib import Path
from typing import Any

import pytest

from examples.test_examples import files, start
from sidestream.replay.recording import Exchange, RecordedRequest, RecordedResponse
from sidestream.testing import GeminiScript, MessagesScript, Recording, encode_events, pixel_png

PATHS = {"anthropic": "/v1/messages", "google": "/v1/models/gemini-3:streamGenerateContent?alt=sse"}
PNG = {"base64": __import__("base64").b64encode(pixel_png()).decode()}
TRIP = '{"city": "Porto", "nights": 3, "total_euros": 261, "reason": "It is cheapest."}'
FOUND = {
    "type": "web_search_result",
    "url": "https://a.example/",
    "title": "A",
    "encrypted_content": "x",
    "page_age": None,
}
CITED = {
    "type": "web_search_result_location",
    "url": "https://a.example/",
    "title": "A",
    "cited_text": "Yes.",
    "encrypted_index": "y",
}
WEB = {"web": {"uri": "https://a.example/", "title": "A"}}
NOTE = {"text": "Train to Turku at 17:39"}


def conversation(provider: str, example: str) -> list[Any]:
    """What the provider answers in this example, answer by answer."""
    claude, gemini = MessagesScript, GeminiScript
    calls = {"city": "Porto"}, {"destination": "Turku"}
    scripts: dict[tuple[str, str], list[Any]] = {
        ("anthropic", "web_search"): [claude().web_search("x", [FOUND]).text("It is so.", citations=[CITED])],
        ("google", "web_search"): [
            gemini().text("It is so.").grounding(WEB, supports=[(0, 9, "It is so.", [0])], webSearchQueries=["x"])
        ],
        ("anthropic", "code_plot"): [claude().code_execution("plot()", files=["file_1"]).text("Done.")],
        ("google", "code_plot"): [gemini().code("plot()", "").inline_data(pixel_png()).text("Done.")],
        ("anthropic", "typed_output"): [claude().tool_use("price_per_night", calls[0], "toolu_1"), claude().text(TRIP)],
        ("google", "typed_output"): [
            gemini().function_call("price_per_night", calls[0]),
            gemini().text(TRIP),
            gemini().text(TRIP),
        ],
        ("anthropic", "approval"): [
            claude().tool_use("next_train", calls[1], "toolu_1"),
            claude().tool_use("add_note", NOTE, "toolu_2"),
            claude().text("Noted."),
        ],
        ("google", "approval"): [
            gemini().function_call("next_train", calls[1]),
            gemini().function_call("add_note", NOTE),
            gemini().text("Noted."),
        ],
        ("google", "image_previews"): [gemini().inline_data(pixel_png()).text("A dot.")],
    }
    return scripts[provider, example]


def recorded(provider: str, example: str, folder: Path) -> Path:
    exchanges = []
    for script in conversation(provider, example):
        events = script.events() if isinstance(script, MessagesScript) else script.chunks()
        answer = RecordedResponse(content_type="text/event-stream", body=encode_events(events).decode())
        exchanges.append(Exchange(answer, RecordedRequest(path=PATHS[provider], body={"stream": True})))
    exchanges.append(
        Exchange(
            RecordedResponse(content_type="image/png", body=PNG), RecordedRequest("GET", "/v1/files/file_1/content")
        )
    )
    path = folder / "recording.json"
    Recording(tuple(exchanges)).save(path)
    return path


@pytest.mark.parametrize("provider", ["anthropic", "google"])
@pytest.mark.parametrize(
    ("example", "said", "left"),
    [
        ("web_search", "https://a.example/", []),
        ("code_plot", "plot()", [".png"]),
        ("typed_output", "3 nights in Porto for 261 euros", []),
        ("approval", "Noted.", ["notes.txt"]),
        ("image_previews", "", [".png"]),
    ],
)
def test_example_runs_with_other_model_string(
    provider: str, example: str, said: str, left: list[str], tmp_path: Path
) -> None:
    if (provider, example) == ("anthropic", "image_previews"):
        pytest.skip("Anthropic makes no images but by code")
    recording = recorded(provider, example, tmp_path)
    folder = tmp_path / "work"
    folder.mkdir()
    options = ["--yes"] if example == "approval" else []
    done = start(example, folder, "-m", f"replay:{recording}", *options)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout + done.stderr
    assert [ending for ending in left if not any(name.endswith(ending) for name in files(folder))] == []
