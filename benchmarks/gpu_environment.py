"""The machine that GPU results come from."""

import collections
import platform
import subprocess


def environment(commit: str) -> dict[str, str]:
    """What describes a run, but for the versions of libraries.

    Each GPU has its name and driver, as in `"NVIDIA H200, 580.159.04; NVIDIA H200, 580.159.04"`.
    """
    process = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    gpus = "; ".join(process.stdout.strip().splitlines())
    return {"GPU": gpus, "Python": platform.python_version(), "commit": commit}


def describe_gpus(gpus: str) -> str:
    """What an environment calls its GPUs, for readers: `"2 × NVIDIA H200, driver 580.159.04"`."""
    counts = collections.Counter(gpus.split("; "))
    kinds = [f"{count} × {gpu}" if count > 1 else gpu for gpu, count in counts.items()]
    return "; ".join(kind.replace(", ", ", driver ") for kind in kinds)
