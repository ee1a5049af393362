"""Process settings for servers and workers with many concurrent streams."""

import gc
import sys

MAX_FILES = 65_536
"""Maximum open files of the process, including sockets."""
GC_THRESHOLDS = (5_000, 20, 20)
"""Garbage collection thresholds, per generation. Streams leave little garbage, and a collection pauses all of them."""
SWITCH_S = 0.0001
"""Seconds after which a busy event loop yields to the thread that writes the log, for which all streams wait."""


def allow_many_streams() -> None:
    """Raise the process's limit of open files up to `MAX_FILES`, and switch between threads more often."""
    sys.setswitchinterval(SWITCH_S)
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if most == resource.RLIM_INFINITY else min(most, MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def keep_what_is_loaded() -> None:
    """Exclude the objects loaded so far from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
