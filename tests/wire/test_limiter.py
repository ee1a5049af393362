"""A limiter: how many requests begin in a minute, how many run at once, in which order, and what is reported."""

import asyncio
import threading
from typing import Any

import pytest

from sidestream import Agent, Limiter
from sidestream.errors import ConfigurationError, ProviderError
from sidestream.limits import Limits
from sidestream.parts import Custom, part_from_json
from sidestream.testing import FakeProvider, Reply, error_reply, responses_text, sse
from sidestream.transport.calls import HttpCall
from sidestream.wire import limiter as module, stream
from sidestream.wire.http import HttpTransport, close_session
from sidestream.wire.retry import RetryPolicy
from support.waiting import eventually

QUICK = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)


def agent_at(fake: FakeProvider, **settings: Any) -> Agent[str]:
    return Agent(
        "openai-responses", base_url=fake.base_url, api_key="k", transport=HttpTransport(retry=QUICK), **settings
    )


@pytest.mark.parametrize("settings", [{"concurrent": 0}, {"requests_per_minute": -1}])
def test_limits_below_one_are_refused(settings: Any):
    with pytest.raises(ConfigurationError):
        Limiter(**settings)


async def test_shared_limiter_bounds_concurrent_requests():
    limiter = Limiter(concurrent=2)
    gate = asyncio.Event()
    reply = sse([asyncio.Event(), *responses_text("Hello")])
    async with FakeProvider([Reply(body=[gate, *reply.body[1:]])] * 5) as fake:
        agents = [agent_at(fake, limiter=limiter) for _ in range(5)]
        tasks = [asyncio.create_task(agent.send("hi")) for agent in agents]
        await eventually(lambda: len(fake.requests) == 2 and limiter.waiting == 3, pause_s=0)
        assert limiter.running == 2
        gate.set()
        assert [result.output for result in await asyncio.gather(*tasks)] == ["Hello"] * 5
        assert (limiter.running, limiter.waiting) == (0, 0)
        await close_session()


async def test_limiter_is_fair_and_cancelled_request_leaves_queue():
    limiter, order = Limiter(concurrent=1), []

    async def work(name: int) -> None:
        await limiter.acquire()
        order.append(name)
        await asyncio.sleep(0)
        limiter.release()

    await limiter.acquire()
    tasks = [asyncio.create_task(work(name)) for name in range(6)]
    await eventually(lambda: limiter.waiting == 6, pause_s=0)
    for cancelled in (0, 3):
        tasks[cancelled].cancel()
    await eventually(lambda: limiter.waiting == 4, pause_s=0)
    limiter.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [1, 2, 4, 5]
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_limiter_bounds_requests_per_minute(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MINUTE_S", 0.2)
    limiter = Limiter(requests_per_minute=3)
    loop = asyncio.get_running_loop()
    starts_s: list[float] = []
    for _ in range(8):
        await limiter.acquire()
        starts_s.append(loop.time())
        limiter.release()
    assert all(later - earlier >= 0.19 for earlier, later in zip(starts_s, starts_s[3:], strict=False))
    assert starts_s[2] - starts_s[0] < 0.19


async def test_failed_or_cancelled_request_frees_its_slot():
    limiter = Limiter(concurrent=1)
    async with FakeProvider([error_reply(400), Reply(gate=asyncio.Event()), sse(responses_text("Hello"))]) as fake:
        agent = agent_at(fake, limiter=limiter)
        with pytest.raises(ProviderError):
            await agent.send("hi")
        assert limiter.running == 0
        task = asyncio.create_task(agent.send("hi"))
        await fake.wait_for_requests(2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert limiter.running == 0
        assert (await agent.send("hi")).output == "Hello"
        assert limiter.running == 0
        await close_session()


async def test_wait_and_attempts_are_reported_in_stream():
    limiter = Limiter(concurrent=1)
    async with FakeProvider([error_reply(503), error_reply(529), sse(responses_text("Hello"))]) as fake:
        await limiter.acquire()
        run = agent_at(fake, limiter=limiter).stream("hi")
        parts = asyncio.create_task(collected(run))
        await eventually(lambda: limiter.waiting == 1, pause_s=0)
        limiter.release()
        (notice,) = [part for part in await parts if isinstance(part, Custom)]
        await close_session()
    assert notice.kind == "sidestream.request-delayed"
    assert "sent 3 times" in notice.data["message"]
    assert part_from_json(notice.to_json()) == notice
    assert (notice.data["attempts"], notice.data["causes"]) == (3, ["503", "529"])
    assert notice.data["retry_wait_s"] > 0
    assert notice.data["limiter_wait_s"] > 0


async def collected(run: Any) -> list[Any]:
    return [part async for part in run]


async def test_undelayed_request_reports_no_delay():
    async with FakeProvider([sse(responses_text("Hello"))]) as fake:
        parts = await collected(agent_at(fake, limiter=Limiter(concurrent=1)).stream("hi"))
        await close_session()
    assert not [part for part in parts if isinstance(part, Custom)]


async def test_final_error_counts_attempts():
    async with FakeProvider([error_reply(503)] * 3) as fake:
        with pytest.raises(ProviderError) as caught:
            await agent_at(fake, limits=Limits(max_retries=2)).send("hi")
        await close_session()
    assert caught.value.attempts == 3


def test_one_limiter_serves_several_event_loops():
    limiter, peak, running, done = Limiter(concurrent=2), 0, 0, 0
    lock = threading.Lock()

    async def work() -> None:
        nonlocal peak, running, done
        for _ in range(20):
            await limiter.acquire()
            with lock:
                running += 1
                peak = max(peak, running)
            await asyncio.sleep(0)
            with lock:
                running -= 1
                done += 1
            limiter.release()

    threads = [threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(work(), 20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (peak <= 2, done, limiter.running, limiter.waiting) == (True, 80, 0, 0)


async def test_dropped_response_frees_its_slot():
    limiter = Limiter(concurrent=1)
    async with FakeProvider([Reply(body=b"{}", content_type="application/json")]) as fake:
        transport = module.LimitedTransport(HttpTransport(retry=QUICK), limiter)
        response = await transport.open(HttpCall(url=fake.base_url, body=b"{}"), Limits())
        assert limiter.running == 1
        del response
        assert limiter.running == 0
        await close_session()


async def test_connection_is_reused_within_limit(monkeypatch: pytest.MonkeyPatch):
    # How long a finished response waits for the end of its body: on a busy machine, the end comes later.
    monkeypatch.setattr(stream, "LINGER_S", 30.0)
    limiter = Limiter(concurrent=1)
    async with FakeProvider([sse(responses_text("One")), sse(responses_text("Two"))]) as fake:
        transport = module.LimitedTransport(HttpTransport(retry=QUICK), limiter)
        for _ in range(2):
            response = await transport.open(
                HttpCall(url=f"{fake.base_url}/responses", body=b"{}", stream=True), Limits()
            )
            assert await response.events()
            await response.complete()
            assert limiter.running == 0
        assert fake.connections_total == 1
        await close_session()
