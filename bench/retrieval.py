"""`python -m bench.retrieval`: 40 questions about this repository's docs, by words, by vectors and by both.

A question counts if one of the first passages holds its answer. The questions use a reader's words rather than those of
the page, and were written before the ranking was changed.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sidestream import open_index
from sidestream.portable.index import Index, Passage
from sidestream.tools.server_side import HybridSearch

DOCS = Path(__file__).parent.parent / "docs"
QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("How long does the client wait for a connection by default?", "retries.md: | `connect_timeout_s` |"),
    ("Is a broken stream tried again after it printed something?", "retries.md: before its first event"),
    ("Two agents must not exceed 60 calls a minute together", "retries.md: Limiter(requests_per_minute=60"),
    ("What happens when a gateway sends events that are not valid JSON?", "retries.md: code `not-json`"),
    (
        "Where do I save a run that waits for a person?",
        "approvals.md: result.run_state.to_json()",
        "approvals.md: `state` is `result.run_state`",
        "approvals.md: You can save `run.state`",
    ),
    ("Can I say yes once for the whole conversation?", 'approvals.md: remember="conversation"'),
    ("Ask a person only for large amounts of money", 'approvals.md: ["amount"] > 100'),
    ("Protect a dangerous function against prompt injection", "approvals.md: is_sensitive=True"),
    ("How do I stop an agent that never finishes?", "safety.md: max_steps=", "agents.md: | `max_steps` |"),
    ("Can the model leak a secret through a link?", "safety.md: put it into a URL"),
    ("Continue a chat with a different provider", "sessions.md: Set `chat.agent` to continue"),
    ("The conversation is too long for the window of the model", "sessions.md: `strategy` |"),
    ("A history from my database has a call without a result", "sessions.md: `dangling-call`"),
    ("Send traces to Langfuse", "telemetry.md: cloud.langfuse.com"),
    ("Do spans contain my prompts?", "telemetry.md: capture_content=True", "telemetry.md: are not recorded unless"),
    (
        "Which span covers a function?",
        "telemetry.md: `execute_tool NAME`",
        "telemetry.md: A function of yours runs inside its `execute_tool` span",
    ),
    (
        "What if the machine that executes a run crashes?",
        "durable.md: Once its lease expires",
        "server.md: another server takes over within two leases",
    ),
    ("How many runs does a worker execute at the same time?", "durable.md: | `--concurrency` |"),
    ("What becomes of a call that no one approves in time?", "durable.md: `--on-expiry`"),
    ("Schedule a message for tomorrow morning", "server.md: X-Sidestream-At"),
    (
        "Does an answer go on when the browser is closed?",
        "server.md: A run continues when its client disconnects",
    ),
    (
        "Which request lists what the server is running at the moment?",
        "server.md: `GET /api/runs`",
    ),
    ("How many runs can one PostgreSQL handle?", "scale.md: 10,000 runs in flight"),
    ("How much disk space do a million runs take?", "scale.md: 18 GB"),
    ("Use a deployment in Microsoft's cloud", "azure-and-vertex.md: openai.azure.com"),
    ("Use Gemini with Google Cloud credentials", "azure-and-vertex.md: google.auth.default"),
    ("Get an instance of my own class instead of text", "typed-output.md: output_type=City"),
    ("What if the answer fails the validation of its type?", "typed-output.md: max_output_retries"),
    ("Keep an uploaded file only for a day", "files.md: expires_in_s=86_400"),
    ("Let the model produce a CSV file", 'media.md: mime_types=["text/csv"]'),
    ("Let another model draw pictures for Llama", 'portable.md: ImageGeneration(via="openai-responses"'),
    ("Which packages can code use in the interpreter?", "portable.md: Nothing can be installed from inside"),
    ("Can code that the model wrote reach the network?", "portable.md: No network, no environment"),
    ("Run shell commands in my own project folder", 'portable.md: Shell(workspace="./project")'),
    ("Which search service can be used without a key?", "portable.md: searxng:URL"),
    ("Kill the process at every point in a test", "failure.md: `crash_loop` runs"),
    ("Simulate a provider that answers with 429", "failure.md: error_reply(status", "failure.md: error_reply(429"),
    ("Are symbolic links followed when a folder is indexed?", "portable.md: link loops"),
    (
        "Is the cost of a call known in a trace?",
        "telemetry.md: The cost is in US",
        "telemetry.md: sidestream.usage.cost",
    ),
    ("How do I switch on Claude's prompt cache?", "anthropic.md: prompt_cache="),
)
"""A question, and the passages that answer it: a file and a phrase in it."""
KEYWORD = HybridSearch(embedding_weight=0.0, text_weight=1.0)
VECTOR = HybridSearch(embedding_weight=1.0, text_weight=0.0)
NONSENSE = (
    "Who won the football world cup in 1954?",
    "best recipe for sourdough bread",
    "quantum chromodynamics lattice spacing",
    "Where can I see penguins in Patagonia?",
)
"""Questions that the docs do not answer."""


def rank_of(found: Sequence[Passage], answers: Sequence[str]) -> int | None:
    """Return the rank of the first passage that answers, from 1, or None."""
    wanted = [answer.split(": ", 1) for answer in answers]
    return next(
        (
            at
            for at, hit in enumerate(found, 1)
            if any(hit.path.endswith(f"/{file}") and phrase in hit.text for file, phrase in wanted)
        ),
        None,
    )


async def table(index: Index) -> str:
    """Return the figures of each way to rank, as Markdown."""
    ways = {"words": KEYWORD, "vectors": VECTOR, "both": None}
    ranks = {name: [await _rank(index, weights, *row) for row in QUESTIONS] for name, weights in ways.items()}
    lines = ["| ranking | at 1 | at 5 | at 10 | mean reciprocal rank |", "|---|---:|---:|---:|---:|"]
    for name, found in ranks.items():
        at = [sum(rank is not None and rank <= limit for rank in found) for limit in (1, 5, 10)]
        mean = sum(1 / rank for rank in found if rank) / len(found)
        lines.append(f"| {name} | {at[0]} | {at[1]} | {at[2]} | {mean:.2f} |")
    missed = [row[0] for row, rank in zip(QUESTIONS, ranks["both"], strict=True) if rank is None or rank > 5]
    return "\n".join([*lines, "", f"of {len(QUESTIONS)}; not within 5 by both:", *(f"- {text}" for text in missed)])


async def _rank(index: Index, weights: HybridSearch | None, question: str, *answers: str) -> int | None:
    return rank_of(await index.search(question, 10, weights=weights), answers)


async def scores(index: Index) -> str:
    """Return the best scores of questions that the docs answer, and of those that they do not."""
    good = sorted([(await index.search(row[0], 1))[0].score for row in QUESTIONS])
    bad = [max((hit.score for hit in await index.search(text, 1)), default=0.0) for text in NONSENSE]
    middle = good[len(good) // 2]
    return (
        f"best score: answered {good[0]:.2f} to {good[-1]:.2f}, median {middle:.2f}; unanswered {max(bad):.2f} at most"
    )


async def main(where: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_index(where or Path(folder) / "index.db") as index:
            await index.add(DOCS)
            await index.complete()
            counts = await index.counts()
            print(f"{counts.files} files, {counts.passages} passages\n")
            print(await table(index))
            print(f"\n{await scores(index)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
