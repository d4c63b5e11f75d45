"""Processes that begin with what this one has imported, for to import TensorFlow takes seconds.

This process must not have used TensorFlow yet: its threads would be missing in the others.
"""

import os
import pathlib
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

# A program that takes longer than this hangs.
HANG_SECONDS = 300


class Fork:
    """A process that calls a function, as the main program of a Python process would be called.

    Args:
        program: the function. It may end as a main program may: return, raise, or exit.
        output: the file for what the process prints.
    """

    def __init__(self, program: Callable[[], Any], output: pathlib.Path):
        sys.stdout.flush()
        self._output = output
        self.pid = os.fork()
        if self.pid == 0:
            _run(program, output)

    def kill(self) -> bool:
        """Kills the process. Whether it was still running."""
        os.kill(self.pid, signal.SIGKILL)
        return os.WIFSIGNALED(os.waitpid(self.pid, 0)[1])

    def has_ended(self) -> bool:
        """Whether the process has ended, which `kill` still finds out then."""
        state = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z"

    def wait(self) -> int:
        """The exit status; a signal's number, negative, where one ended it.

        Raises:
            TimeoutError: if it takes too long.
        """
        end = time.monotonic() + HANG_SECONDS
        while not self.has_ended():
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError(f"a process hung:\n{self.printed()}")
            time.sleep(0.005)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def printed(self) -> str:
        return self._output.read_text(errors="replace")


def _run(program: Callable[[], Any], output: pathlib.Path) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    status = 0
    try:
        program()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
