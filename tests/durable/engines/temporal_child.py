"""A worker in a process of its own: drives what it gets for as long as it lives, and prints what happens.

Usage: temporal_child.py URL LEASE_S
"""

import asyncio
import sys
import time

from sidestream.durable.engines.protocol import Claim, LeaseLostError, Outcome
from sidestream.durable.engines.temporal import TemporalEngine


def say(word: str, claim: Claim) -> None:
    print(word, claim.task.conversation, claim.token, int(claim.is_takeover), time.monotonic(), flush=True)


async def drive(claim: Claim) -> Outcome:
    say("claimed", claim)
    while True:
        await asyncio.sleep(claim.lease_s / 3)
        try:
            await claim.heartbeat()
        except LeaseLostError:
            say("lost", claim)
            raise
        say("beat", claim)


async def main() -> None:
    engine = TemporalEngine(None, sys.argv[1], lease_s=float(sys.argv[2]))
    await engine.work(drive, queues=["models"], slots=10)


asyncio.run(main())
