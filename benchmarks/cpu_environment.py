"""The machine that CPU results come from."""

import os
import pathlib
import platform
import re


def environment(commit: str) -> dict[str, str]:
    """What describes a run, but for the libraries' versions."""
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {
        "commit": commit,
        "processor": model.group(1) if model else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "cores of the machine": str(os.cpu_count()),
        "Python": platform.python_version(),
    }
