"""The threads of numpy's matrix products.

OpenBLAS starts one thread per processor, and they busy-wait for each other: on a machine that does anything else, a
small product then costs several times its own work. Several products on one thread each do not.
"""

import ctypes
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

_SUFFIXES = ("64_", "_64", "")
_PREFIXES = ("scipy_openblas", "openblas")

_lock = threading.Lock()
_entered: list[int] = []
"""How many threads there were, once for each block that is being executed."""


@contextmanager
def single_threaded(np: Any) -> Generator[None]:
    """Within the block each product uses the thread that calls it, in this whole process. Other BLAS are left alone."""
    functions = _functions(np)
    if functions is None:
        yield
        return
    get, set_ = functions
    with _lock:
        _entered.append(_entered[0] if _entered else get())
        set_(1)
    try:
        yield
    finally:
        with _lock:
            before = _entered.pop()
            if not _entered:
                set_(before)


@cache
def _functions(np: Any) -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)
    except (AttributeError, OSError):
        return None
    for prefix in _PREFIXES:
        for suffix in _SUFFIXES:
            get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            set_ = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            if get is not None and set_ is not None:
                return get, set_
    return None
