"""The machine that GPU results come from."""

import os
import platform
import subprocess


def _ask(fields: str) -> list[str]:
    """Returns what nvidia-smi says of each GPU."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return process.stdout.strip().splitlines()


def environment(commit: str) -> dict[str, str]:
    """What describes a run, but for the versions of libraries.

    Each GPU has its name and driver, as in `"NVIDIA H200, 580.159.04; NVIDIA H200, 580.159.04"`.
    """
    gpus = "; ".join(_ask("name,driver_version"))
    return {"GPU": gpus, "Python": platform.python_version(), "commit": commit}


def visible_gpus() -> list[str]:
    """Returns what CUDA_VISIBLE_DEVICES would be for each GPU alone."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else _ask("index")


def variables_of(gpu: str) -> dict[str, str]:
    """The environment variables of a process that sees one GPU, and takes memory as it needs it."""
    own = {"CUDA_VISIBLE_DEVICES": gpu, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return {**os.environ, "PYTHONUNBUFFERED": "1", **own}
