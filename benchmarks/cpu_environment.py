"""The machine that CPU results come from."""

import datetime
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def environment() -> dict[str, str]:
    """What describes a run, but for the libraries' versions."""

    def git(*command: str) -> str:
        process = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return process.stdout.strip() if process.returncode == 0 else "unknown"

    changes = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": git("rev-parse", "--short=12", "HEAD") + (" with local changes" * bool(changes)),
        "processor": model.group(1) if model else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "cores of the machine": str(os.cpu_count()),
        "load average before the run": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
    }
