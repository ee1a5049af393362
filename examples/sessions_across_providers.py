"""Continues one conversation across three providers. It is stored, so the next start continues it.

python examples/sessions_across_providers.py "Where shall I hike in May?" "How do I get there?" "What does it cost?"
python examples/sessions_across_providers.py -m replay:examples/recordings/sessions_across_providers.json
"""

import argparse
import asyncio

from sidestream import Agent, Chat, open_store

MODELS = ["openai-responses", "anthropic", "google"]
PROMPTS = ["Name one island for a hike in May.", "How do I get there from Lisbon?", "Sum up the plan in one line."]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", nargs="*", default=PROMPTS)
    parser.add_argument("-m", "--model", action="append", help="of the first turn, of the second, and so on in turn")
    parser.add_argument("--store", default="talks.db")
    parser.add_argument("--id", default="hike", help="the conversation")
    args = parser.parse_args()

    agents = [Agent(model) for model in args.model or MODELS]
    store = open_store(args.store)
    for number, prompt in enumerate(args.prompts):
        agent = agents[number % len(agents)]
        # Create a new Chat for each turn, as a new process would. The log holds the messages of all providers, and what
        # each provider needs to continue: OpenAI gets only the messages since its last answer.
        chat = Chat(agent, store=store, id=args.id)
        print(f"> {prompt}")
        async for chunk in chat.send_stream(prompt):
            print(chunk.output, end="", flush=True)
        print("\n")

    chat = Chat(agents[0], store=store, id=args.id)
    await chat.load()
    print(f"{len(chat.messages)} messages in {args.store}; run it again to continue")
    await store.aclose()


asyncio.run(main())
