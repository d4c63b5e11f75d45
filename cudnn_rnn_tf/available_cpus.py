"""How many processors this process may use."""

import os
import pathlib

_MEMBERSHIP = pathlib.Path("/proc/self/cgroup")
_CGROUPS = pathlib.Path("/sys/fs/cgroup")


def available_cpus(membership: pathlib.Path = _MEMBERSHIP, cgroups: pathlib.Path = _CGROUPS) -> int:
    """The processors that this process may run on, or its quota of processor time if that is less.

    Containers limit processor time by the file `cpu.max` of control groups (Linux's documentation,
    "Control Group v2", section "CPU Interface Files"). It has the microseconds that all threads
    together may run in a period, or "max", and the length of the period. A quota of 2.5 processors
    counts as 2, since threads beyond a quota make the whole process wait; the result is at least 1.
    """
    cpus = len(os.sched_getaffinity(0))
    for line in _text(membership).splitlines():
        # Lines of version 1 begin with other numbers.
        if line.startswith("0::/"):
            group = pathlib.PurePosixPath(line.removeprefix("0::/"))
            for path in (group, *group.parents):
                quota, _, period = _text(cgroups / path / "cpu.max").partition(" ")
                if quota.isdecimal():
                    cpus = min(cpus, int(quota) // int(period))
    return max(1, cpus)


def _text(file: pathlib.Path) -> str:
    """Empty if the file cannot be read, as in a container that does not show it."""
    try:
        return file.read_text()
    except OSError:
        return ""
