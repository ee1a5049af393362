"""Settings of a process that does little else than to stream: a server, or a worker."""

import gc
import sys

MAX_FILES = 65_536
"""Open files, sockets included, that such a process allows itself."""
GC_THRESHOLDS = (5_000, 20, 20)
"""New objects after which garbage is looked for, and how often among older ones: a stream leaves hardly any, and all
others wait meanwhile."""
SWITCH_S = 0.0001
"""How long the thread that writes the log waits for a loop that is busy with many streams: they all wait for it."""


def allow_many_streams() -> None:
    """Raises the number of files that the process may open, as far as it may, and lets its threads have their turn."""
    sys.setswitchinterval(SWITCH_S)
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if most == resource.RLIM_INFINITY else min(most, MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def keep_what_is_loaded() -> None:
    """What the program is made of stays, so no search for garbage has to look at it; and there are fewer of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
