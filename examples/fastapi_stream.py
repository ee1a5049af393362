"""Serves a web page that shows an answer as it streams.

python examples/fastapi_stream.py
python examples/fastapi_stream.py -m replay:src/sidestream/cli/commands/demo/web_search.json
"""

import argparse

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, StreamingResponse

from sidestream import SSE_HEADERS, Agent, WebSearch, sse

PAGE = """<!doctype html><meta charset="utf-8"><pre id="text"></pre><script>
const events = new EventSource("/ask?prompt=" + encodeURIComponent("When is the next eclipse?"));
events.onmessage = ({data}) => {
  const part = JSON.parse(data);
  if (part.type === "text-delta") document.getElementById("text").append(part.delta);
  if (part.type === "finish") events.close();  // or the browser would ask again
};
events.onerror = () => events.close();
</script>"""

parser = argparse.ArgumentParser()
parser.add_argument("-m", "--model", default="openai-responses")
parser.add_argument("--port", type=int, default=8000)
args = parser.parse_args()

agent = Agent(args.model, server_side_tools=[WebSearch()])
app = FastAPI()


@app.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse(PAGE)


@app.get("/ask")
async def ask(prompt: str) -> StreamingResponse:
    return StreamingResponse(sse(agent.stream(prompt)), headers=SSE_HEADERS)


agent.check()  # Report a missing key now, not at the first request.
uvicorn.run(app, port=args.port)
