"""The machine that results come from."""

import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess


def _ask(fields: str) -> list[str]:
    """Returns what nvidia-smi says of each GPU."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return process.stdout.strip().splitlines()


def environment(commit: str, *libraries: str, on_cpu: bool = False) -> dict[str, str]:
    """What describes a run, with the versions of libraries such as "TensorFlow".

    Each GPU has its name and driver, as in `"NVIDIA H200, 580.159.04; NVIDIA H200, 580.159.04"`.
    """
    about = {"Python": platform.python_version(), "commit": commit}
    if on_cpu:
        model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        about["processor"] = model.group(1) if model else platform.machine()
        about["cores"] = str(len(os.sched_getaffinity(0)))
        about["cores of the machine"] = str(os.cpu_count())
    else:
        about = {"GPU": "; ".join(_ask("name,driver_version")), **about}
    packages = {name: "torch" if name == "PyTorch" else name for name in libraries}
    return about | {name: importlib.metadata.version(each) for name, each in packages.items()}


def visible_gpus() -> list[str]:
    """Returns what CUDA_VISIBLE_DEVICES would be for each GPU alone."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else _ask("index")


def variables_of(gpu: str) -> dict[str, str]:
    """The environment variables of a process that sees one GPU, and takes memory as it needs it."""
    own = {"CUDA_VISIBLE_DEVICES": gpu, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return {**os.environ, "PYTHONUNBUFFERED": "1", **own}
