"""Errors can be printed and logged, whatever characters a server or a file put into them."""

import io
import logging

import pytest

from sidestream import errors
from sidestream.errors import RunError, SidestreamError, ToolServerError
from sidestream.logs import get_logger
from sidestream.server.errors import RequestError
from sidestream.server.http.requests import json_response

HALF = "bad \udce9 name \ud83d"
TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SidestreamError)]


def error_of(kind: type[SidestreamError]) -> SidestreamError:
    """An error of this class, with what cannot be encoded in all its texts."""
    match kind:
        case errors.MissingExtraError | errors.DocumentError:
            return kind(HALF, HALF)
        case errors.BlobError:
            return kind(HALF, digest=HALF)
        case errors.ToolServerError | errors.SignInError:
            return kind(HALF, server=HALF)
        case _:
            return kind(HALF)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_prints_with_surrogates(kind: type[SidestreamError]):
    error = error_of(kind)
    with io.TextIOWrapper(io.BytesIO(), "utf-8") as out:
        print(error, repr(error), f"{error}", file=out)
        if isinstance(error, RunError):
            print(error.message, file=out)
            assert error.message == "bad ? name ?"
    assert "\ud83d" not in str(error)


def test_text_without_surrogates_is_kept():
    assert str(ToolServerError("née 🙂", server="x")) == "née 🙂"


def test_log_lines_with_surrogates_are_written(capsys: pytest.CaptureFixture[str]):
    log, out = get_logger("sidestream.wire.test"), io.BytesIO()
    handler = logging.StreamHandler(io.TextIOWrapper(out, "utf-8", write_through=True))
    log.addHandler(handler)
    try:
        log.warning("server %s failed", HALF)
        try:
            raise ValueError(HALF)
        except ValueError:
            log.exception("it broke")
    finally:
        log.removeHandler(handler)
    assert b"server bad ? name ? failed" in out.getvalue()
    assert b"ValueError: bad ? name ?" in out.getvalue()
    assert "Logging error" not in capsys.readouterr().err


def test_refused_request_with_surrogates_is_json():
    error = RequestError(400, HALF)
    assert b"bad ? name ?" in bytes(json_response(error.body(), 400).body)
