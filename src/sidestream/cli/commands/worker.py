"""The `sidestream worker` command, which executes runs that servers and other programs started."""

import signal
from typing import TYPE_CHECKING, Any

import click

from sidestream.cli import exit_codes, key_file
from sidestream.cli.inputs import options
from sidestream.cli.stdio import warn_on_stderr

if TYPE_CHECKING:
    from sidestream.agent.agent import Agent
    from sidestream.durable.log.approval_deadlines import OnExpiry


@click.command()
@options.engine_option
@options.store_option
@options.named_agents_option
@click.option(
    "--models/--no-models",
    "allows_models",
    default=None,
    help="Whether to execute runs that name a model string. By default, only if no agent is given.",
)
@click.option(
    "--concurrency", default=50, show_default=True, type=click.IntRange(min=1), help="Maximum concurrent runs."
)
@options.lease_option
@click.option(
    "--drain",
    "drain_s",
    default="20s",
    show_default=True,
    callback=options.duration,
    metavar="AGE",
    help="How long runs may take to finish after SIGTERM. The rest are handed off to another worker.",
)
@click.option(
    "--log-interval",
    "interval_s",
    default="0.05s",
    show_default=True,
    callback=options.duration,
    metavar="AGE",
    help="How often a run's output is written to the log, where readers see it. Longer intervals reduce database load.",
)
@options.approval_options
@click.option(
    "--health-host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address for --health-port."
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve /health, /readyz, /healthz and /metrics on this port; 0 picks a free one.",
)
def worker(
    engine: str,
    store: str | None,
    named: dict[str, "Agent[Any]"],
    allows_models: bool | None,
    concurrency: int,
    lease_s: float | None,
    drain_s: float,
    interval_s: float,
    approval_s: float | None,
    on_expiry: "OnExpiry",
    answer_s: float | None,
    health_host: str,
    health_port: int | None,
) -> int:
    """Execute runs that other programs started, until SIGTERM or Ctrl-C.

    Any number of workers may share a store. If a worker dies, hangs or is disconnected, the others continue its runs. A
    worker executes only runs whose agent it knows, so start new versions of an agent under a new name. A second signal
    hands off runs immediately, without waiting for --drain.
    """
    from sidestream.cli.interrupts import run_async

    warn_on_stderr()
    key_file.load()
    allows = not named if allows_models is None else allows_models

    async def work() -> int:
        import asyncio
        from contextlib import AsyncExitStack

        from sidestream.durable.engines import open_engine
        from sidestream.durable.worker.process_tuning import allow_many_streams, keep_what_is_loaded
        from sidestream.durable.worker.service import WorkerService
        from sidestream.store.opening import open_store
        from sidestream.store.wrapped import shared

        async with AsyncExitStack() as stack:
            opened = shared(open_store(store))
            stack.push_async_callback(opened.aclose)
            chosen = open_engine(engine, opened, lease_s=lease_s)
            stack.push_async_callback(chosen.aclose)
            service = WorkerService(
                opened,
                chosen,
                named,
                allows_models=allows,
                slots=concurrency,
                drain_s=drain_s,
                interval_s=interval_s,
                approval_s=approval_s,
                on_expiry=on_expiry,
                answer_s=answer_s,
            )

            def stop() -> None:
                if service.driving and not service.is_stopping:
                    left = f"runs in progress ({service.driving}) have {drain_s:g} s to finish"
                    click.echo(f"stopping: {left}; a second signal hands them off now", err=True)
                service.stop()

            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
            if health_port is not None:
                port = await stack.enter_async_context(service.served(health_host, health_port))
                click.echo(f"http://{health_host}:{port}/health", err=True)
            names = ", ".join([*named, *(["any model"] if allows else [])])
            allow_many_streams()
            keep_what_is_loaded()
            click.echo(f"executing {names}; up to {concurrency} runs at once; press Ctrl-C to stop", err=True)
            await service.run()
        return exit_codes.OK

    return run_async(work())
