"""The tools in the words of OpenAI's API, for the libraries that take them so."""

from typing import Any

TOOLS: dict[str, Any] = {
    "web_search": {"type": "web_search"},
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
    "image_generation": {"type": "image_generation", "partial_images": 2},
    "mcp": {
        "type": "mcp",
        "server_label": "desk",
        "server_url": "https://mcp.example/mcp",
        "require_approval": "always",
    },
}
