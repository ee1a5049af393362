"""System helpers of the bench: open files, memory, CPU time, a clean environment, and facts about the machine."""

import os
import platform
import resource
import sys
from pathlib import Path

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")


def allow_many_files() -> None:
    """Raise the limit of open files, which is usually too low for a thousand sockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))


def peak_kb() -> int:
    """Return the peak memory of this process, in kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of another process so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def environment(root: Path) -> dict[str, str]:
    """Return the environment of a measured process, without keys, proxies and telemetry.

    It imports the sources below `root`, whichever tree the environment of its Python has installed.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join((str(root / "src"), str(root))),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "NO_PROXY": "*",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_API_KEY": "none",
        "GEMINI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DO_NOT_TRACK": "1",
    }


def machine() -> dict[str, str]:
    """Describe the machine on which the measurements were made."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": load,
    }
