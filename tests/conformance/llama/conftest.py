"""A real model behind a real server: SmolLM2 on llama.cpp, once in each process that runs tests of it."""

from collections.abc import AsyncGenerator, Generator

import pytest

from conformance.llama.launch import LocalModel, model_file, running
from sidestream.wire.http import close_session


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[LocalModel]:
    """The server, started by the first test that asks for it."""
    model = model_file()
    assert model is not None
    with running(model, tmp_path_factory.mktemp("server")) as local:
        yield local


@pytest.fixture
async def local(server: LocalModel) -> AsyncGenerator[LocalModel]:
    """The model, for one test; the connections to it are closed afterwards."""
    yield server
    await close_session()
