"""Whether a program reports at all: nothing is imported unless it has configured OpenTelemetry, and then all arrives."""

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from conformance.suite.subjects import Subject
from conformance.suite.wires import Call, Text
from requirements import requirement
from sidestream.telemetry import Telemetry
from sidestream.testing import FakeProvider, Reply

RUN = """
import asyncio, sys
from sidestream import Agent, tool
from sidestream.testing import FakeProvider, ResponsesScript, ScriptedModel, tool_call

@tool
def look_up(city: str) -> str:
    "The weather."
    return "sunny"

async def main(**settings):
    calls = ResponsesScript().function_call("look_up", {"city": "Paris"}), ResponsesScript().web_search("x").text("Hi")
    async with FakeProvider([script.reply() for script in calls]) as fake:
        agent = Agent("openai-responses:gpt-5.6", base_url=fake.base_url, api_key="sk-0123456789", tools=[look_up], **settings)
        assert (await agent.send("hi")).text == "Hi"
"""
CONFIGURED = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
def names():
    return [span.name for span in spans.get_finished_spans()]
"""


def printed(program: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env={"PATH": "", "NO_PROXY": "127.0.0.1", **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def loaded() -> str:
    return "print(sorted(name for name in sys.modules if name.startswith('opentelemetry') or name == 'sidestream.telemetry.spans'))"


@requirement("R94")
@pytest.mark.parametrize("settings", ["", "telemetry=False"])
def test_run_imports_opentelemetry_only_if_program_did(settings: str):
    assert printed(f"{RUN}\nasyncio.run(main({settings}))\n{loaded()}") == "[]"
    assert printed(f"import sidestream, sidestream.telemetry, sys\nfrom sidestream import Agent\n{loaded()}") == "[]"


@requirement("R94")
def test_importing_api_without_configuration_does_not_trace():
    program = f"{RUN}\nfrom opentelemetry import metrics, trace\nasyncio.run(main())\n"
    assert printed(program + "print('sidestream.telemetry.spans' in sys.modules)") == "False"


@requirement("R94")
def test_configured_tracer_provider_enables_tracing():
    names = printed(f"{RUN}\n{CONFIGURED}\nasyncio.run(main())\nprint(*names(), sep=',')")
    assert names == "chat gpt-5.6,execute_tool look_up,execute_tool web_search,chat gpt-5.6,invoke_agent"


@requirement("R94")
@pytest.mark.parametrize("value", ["django, sidestream", "*"])
def test_variable_disabling_instrumentations_is_respected(value: str):
    program = f"{RUN}\n{CONFIGURED}\nasyncio.run(main())\nprint(names())"
    assert printed(program, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=value) == "[]"


@requirement("R94")
def test_configuring_only_metrics_enables_metrics():
    program = f"""{RUN}
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
asyncio.run(main())
data = reader.get_metrics_data()
print(*sorted(m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics), sep=",")
"""
    assert printed(program).split(",") == [
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.token.usage",
        "gen_ai.execute_tool.duration",
        "gen_ai.invoke_agent.duration",
    ]


@requirement("R94")
def test_settings_without_opentelemetry_name_extra():
    program = f"""{RUN}
from sidestream.errors import MissingExtraError
from sidestream.telemetry import Telemetry
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
try:
    Agent(ScriptedModel(["Hi"]), telemetry=Telemetry(tracer_provider=object())).stream("hi")
except MissingExtraError as error:
    print(error.extra)
"""
    assert printed(program) == "otel"


SERVER = """
import asyncio, sys
from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from sidestream import Agent, open_store
from sidestream.durable import RunClient, open_engine
from sidestream.durable.engines.protocol import Task
from sidestream.server import create_app

async def main(receiver, where):
    exporter = OTLPMetricExporter(receiver + "/v1/metrics")
    here = InMemoryMetricReader()
    meters = MeterProvider([here, PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))])
    store, agent = open_store(where), Agent("openai-responses", api_key="key-0123456789")
    engine = open_engine("embedded", store)
    # What an engine has of workers that know another agent: one run is queued, one is driven after a takeover.
    for talk in ("queued", "driven"):
        await RunClient(agent, "another", store=store, engine=engine).start(talk, "Hi.")
    await engine.cancel("driven")
    await engine.claim(Task(conversation="driven", position=2, queue="another"))
    await store.execute("UPDATE {tasks} SET takeovers = 1 WHERE conversation = 'driven'")
    metrics.set_meter_provider(meters)
    app = create_app({"main": agent}, store=where, engine="embedded")
    async with app.router.lifespan_context(app):
        while here.get_metrics_data() is None:  # Nothing announces the first figures.
            await asyncio.sleep(0.01)
        await asyncio.to_thread(meters.force_flush)
    meters.shutdown()
    await engine.aclose()
    await store.aclose()

asyncio.run(main(*sys.argv[1:]))
"""

# Over the wire


def values(pairs: Iterable[Any]) -> dict[str, Any]:
    """Attributes of OTLP as a dict."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@requirement("R94")
async def test_spans_and_metrics_reach_otlp_receiver(wired: Subject):
    def get_weather(city: str) -> str:
        return "sunny"

    receiver = FakeProvider(base_path="")
    for path in ("/v1/traces", "/v1/metrics"):
        receiver.on("POST", path, Reply(body=b"", content_type="application/x-protobuf"))
    # A thread of its own: the exporters of the SDK block while they send.
    with receiver.in_thread():
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.base_url}/v1/traces")))
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{receiver.base_url}/v1/metrics"), export_interval_millis=float("inf")
        )
        meters = MeterProvider([reader], shutdown_on_exit=False)
        telemetry = Telemetry(tracer_provider=tracers, meter_provider=meters)
        answers = Call("get_weather", {"city": "Paris"}), Text("Sunny.")
        async with wired.open(*answers, tools=[get_weather], telemetry=telemetry) as talk:
            result = await talk.agent.send("hi")
        assert await asyncio.to_thread(meters.force_flush)
        await asyncio.to_thread(meters.shutdown)
        await asyncio.to_thread(tracers.shutdown)
    bodies = {path: [r.body for r in receiver.requests if r.path == path] for path in ("/v1/traces", "/v1/metrics")}
    exports = [ExportTraceServiceRequest.FromString(body) for body in bodies["/v1/traces"]]
    scopes = [scope for export in exports for r in export.resource_spans for scope in r.scope_spans]
    spans = [span for scope in scopes for span in scope.spans]
    model = wired.model.partition(":")[2]
    assert {scope.scope.name for scope in scopes} == {"sidestream"}
    assert [span.name for span in spans] == [
        f"chat {model}",
        "execute_tool get_weather",
        f"chat {model}",
        "invoke_agent",
    ]
    run = spans[-1]
    assert {span.parent_span_id for span in spans[:-1]} == {run.span_id}
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano > 0 for span in spans)
    assert values(run.attributes)["gen_ai.usage.input_tokens"] == result.usage.input.total
    assert values(spans[0].attributes)["gen_ai.operation.name"] == "chat"
    measured = [ExportMetricsServiceRequest.FromString(body) for body in bodies["/v1/metrics"]]
    found = {
        m.name: m for e in measured for r in e.resource_metrics for scope in r.scope_metrics for m in scope.metrics
    }
    assert sum(point.count for point in found["gen_ai.client.operation.duration"].histogram.data_points) == 2
    tokens = found["gen_ai.client.token.usage"].histogram.data_points
    inputs = [point.sum for point in tokens if values(point.attributes)["gen_ai.token.type"] == "input"]
    assert sum(inputs) == result.usage.input.total
    assert list(tokens[0].explicit_bounds) == [4.0**power for power in range(14)]


@requirement("R94", "R160")
def test_server_gauges_reach_otlp_receiver(tmp_path: Path):
    receiver = FakeProvider(base_path="")
    receiver.on("POST", "/v1/metrics", Reply(body=b"", content_type="application/x-protobuf"))
    with receiver.in_thread():
        printed(SERVER, receiver.base_url, str(tmp_path / "talks.db"))
    exports = [ExportMetricsServiceRequest.FromString(received.body) for received in receiver.requests]
    found = {
        " ".join([metric.name, *values(point.attributes).values()]): point.as_int or point.as_double
        for metric in exports[0].resource_metrics[0].scope_metrics[0].metrics
        for point in metric.gauge.data_points
    }
    assert found.pop("sidestream.engine.oldest_queued") > 0
    assert found.pop("sidestream.engine.oldest_lease") > 0
    assert found == {
        "sidestream.engine.tasks queued": 1,
        "sidestream.engine.tasks running": 1,
        "sidestream.engine.tasks waiting": 0,
        "sidestream.engine.takeovers": 1,
        "sidestream.worker.runs": 0,
    }
