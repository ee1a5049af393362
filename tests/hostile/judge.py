"""What holds for the run of any answer, however hostile: in the decoder, the turn, the chunks, the log and the store."""

import time
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from hostile.corpus import closing, decoder_for
from sidestream.errors import RunError
from sidestream.limits import Limits
from sidestream.messages.message import ChatMessage
from sidestream.parts import Error, Finish, ReasoningDelta, StreamPart, TextDelta
from sidestream.providers.protocol import Encoded, FileRef, ModelRequest, Recovery
from sidestream.replay.recording import Exchange, Recording
from sidestream.replay.transport import ChunkSizes, ReplayTransport
from sidestream.results.results import ChatResult
from sidestream.run.run import Run
from sidestream.run.settings import RunHooks, RunSettings
from sidestream.store import Store
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.writer import Writer
from sidestream.stream.grammar import check
from sidestream.transport.calls import HttpCall
from sidestream.turn.machine import Turn
from sidestream.turn.state import AwaitDecision, RunState
from support.left_runs import Log, plain

QUESTION = ChatMessage.user("Why?")
MAX_STEPS = 3
LIMITS = Limits(max_steps=MAX_STEPS)
MAX_CPU_S = 5.0
"""One run of one answer may take this much of the processor. Usual ones take milliseconds."""
ODD_SIZES = (1, 7, 64, 3, 1000)


class Judged(Struct, frozen=True):
    """A run in which everything held."""

    parts: list[StreamPart]

    @property
    def errors(self) -> list[Error]:
        return [part for part in self.parts if isinstance(part, Error) and part.kind != "tool"]

    @property
    def finishes(self) -> list[Finish]:
        return [part for part in self.parts if isinstance(part, Finish)]


async def judge(exchange: Exchange, sizes: ChunkSizes = ODD_SIZES, following: Sequence[Exchange] = ()) -> Judged:
    """Runs an answer twice: in one piece, recorded to a log; and in pieces of these sizes, as chunks.

    Raises whatever goes wrong: an exception of the code, GrammarError, or AssertionError. The calls in the answer are
    of unknown tools, so the run continues; the next answers are those that follow, then a plain text.
    """
    began = time.process_time()
    log = Log()
    run = log.run = _run([exchange, *following], None, RunHooks(log))
    parts = [part async for part in run]
    check(parts)
    log.check()
    assert [part.to_json() for part in parts]
    chunks = [chunk async for chunk in _chunks(_run([exchange, *following], sizes, RunHooks()))]
    _same(parts, chunks)
    spent = time.process_time() - began
    assert spent < MAX_CPU_S, f"one answer took {spent:.1f} s of the processor"
    return Judged(parts)


async def stored(exchange: Exchange, store: Store, id: str) -> None:
    """Records an answer in a store, reads it again, and continues the conversation with an answer of another API.

    Raises whatever goes wrong: an exception of the code, StoreError, or AssertionError. Nothing that a decoder lets
    through may be refused by the log.
    """
    history: list[ChatMessage] = []
    for answer in (exchange, _CLOSING):
        head = (await Conversation(store, id).state()).head
        writer = Writer(store, id, head)
        run = _run([answer], None, RunHooks(writer), history)
        parts = [part async for part in run]
        check(parts)
        assert writer.error is None, writer.error
        state = await Conversation(store, id).state()
        assert RunState.from_json(RunState(run.turn.state).to_json()).to_json() == RunState(run.turn.state).to_json()
        if run.error is not None:
            assert state.status == "failed"
        else:
            assert state.status == ("waiting" if isinstance(run.turn.command, AwaitDecision) else "complete")
            assert plain([*state.messages]) == plain(run.turn.state.messages), "the store has another conversation"
        if state.status == "waiting":
            return  # A person decides how it continues.
        history = [*state.messages]


def _same(parts: list[StreamPart], chunks: list[ChatResult[str]]) -> None:
    deltas = (TextDelta, ReasoningDelta)
    in_pieces = [part for chunk in chunks for part in chunk.parts]
    assert in_pieces == [part for part in parts if not isinstance(part, deltas)], "other chunks gave other parts"
    for kind, texts in ((TextDelta, [c.text for c in chunks]), (ReasoningDelta, [c.thinking for c in chunks])):
        # Between two messages, and between two blocks of thinking, the chunks have line ends of their own.
        said = "".join(part.delta for part in parts if isinstance(part, kind))
        assert "".join(texts).replace("\n", "") == said.replace("\n", ""), "other chunks gave other text"


async def _chunks(run: Run[str]) -> AsyncIterator[ChatResult[str]]:
    try:
        async for chunk in run.chunks():
            yield chunk
    except RunError:
        pass  # It is among the parts too.


_CLOSING = closing("openai-chat")


class _Answers:
    """A model whose requests are answered by these exchanges in turn. Its files cannot be fetched."""

    provider = name = "hostile"

    def __init__(self, exchanges: list[Exchange]) -> None:
        self._left = iter(exchanges)

    def encode(self, request: ModelRequest) -> Encoded:
        sent = next(self._left).request
        call = HttpCall(method=sent.method, url=f"http://hostile{sent.path}", stream=True)
        decoder = decoder_for(sent)
        assert decoder is not None
        return Encoded(call=call, decoder=lambda: decoder)

    def recover(self, error: RunError) -> Recovery | None:
        return None

    def download(self, ref: FileRef) -> HttpCall:
        return HttpCall(method="GET", url="http://hostile/v1/files/none/content")


def _run(
    answers: Sequence[Exchange], sizes: ChunkSizes, hooks: RunHooks, history: Sequence[ChatMessage] = ()
) -> Run[str]:
    exchanges = [*answers, *[_CLOSING] * MAX_STEPS]
    settings = RunSettings(
        model=_Answers(exchanges),
        transport=ReplayTransport(Recording(tuple(exchanges)), sizes),
        limits=LIMITS,
        errors="parts",
        opening=(QUESTION,),
        hooks=hooks,
    )
    return Run(Turn([*history, QUESTION], limits=LIMITS), settings)
