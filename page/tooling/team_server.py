"""A team's server for pictures of the page: its own name and icon, two users, and an agent without tools to choose.

.venv/bin/python page/tooling/team_server.py [PORT]
"""

import sys
import tempfile
from pathlib import Path

from starlette.requests import HTTPConnection

from sidestream import Agent
from sidestream.cli.interrupts import exit_now
from sidestream.providers.protocol import ModelRequest
from sidestream.server import Page, create_app
from sidestream.server.uvicorn_runner import bound_socket, serve
from sidestream.testing import ScriptedModel

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#7a3e9d"/>'
    '<path d="M8 23 16 8l8 15M11 18h10" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round"/></svg>'
)
ANSWERS = {
    "order": "Your order 4711 left our warehouse this morning. It arrives on **Friday between 9:00 and 12:00**.",
    "return": "Pack it in its box, print the label in your account, and hand it in at any parcel shop within 30 days.",
}


def answer(request: ModelRequest) -> str:
    """Answer as a shop's support would."""
    text = request.messages[-1].text.lower()
    return next((said for word, said in ANSWERS.items() if word in text), "I am happy to help with that.")


async def user_of(connection: HTTPConnection) -> str | None:
    """Return the name in the cookie, as the app's own sign-in would set it."""
    return connection.cookies.get("user")


def main() -> None:
    """Serve until interrupted, and print the URL."""
    folder = Path(tempfile.mkdtemp())
    (folder / "acme.svg").write_text(ICON)
    page = Page(
        title="Acme help",
        icon=str(folder / "acme.svg"),
        greeting="What can we help with?",
        examples=[
            "Where is my order?",
            "How do I return a parcel?",
            "Do you repair bicycles?",
            "Which sizes are there?",
        ],
        panels=["settings", "runs"],
        sign_in_url="/login",
        sign_out_url="/logout",
    )
    agents = {"support": Agent(ScriptedModel(answer))}
    app = create_app(agents, store=folder / "talks.db", auth=user_of, page=page)
    listening = bound_socket("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    serve(app, listening, exit_now=exit_now)


if __name__ == "__main__":
    main()
