"""Calls the package as nobody would call it, and reports what does not end in an error.

    make fuzz ARGS=--seconds=600

Each case is a good call with a few changes, drawn from a seed. It runs in a child process: a
signal, a hang, or an exception of a type that users are not told to expect, is a failure. A failure
is made as small as it goes, by leaving changes out while it stays one, and is reported as a line of
JSON that can be run again, `--case='…'`, and kept in `corpus.json`, which is run first.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
TARGETS = (
    *("raw_ops", "graphs", "native_module", "saved"),
    *("layers", "models", "held", "onnx_graphs", "archives", "growth", "threads"),
)
# A case that takes longer than this hangs; the slowest good ones take a second or two.
HANG_SECONDS = 60
START_SECONDS = 300


class Outcome(NamedTuple):
    """How a case ended.

    Attributes:
        case: what was run, with its changes.
        kind: "ok"; an error that was to be expected, by its type; or a failure.
        is_failure: which of the two.
    """

    case: dict[str, Any]
    kind: str
    is_failure: bool


class Child:
    """A process that runs cases, one after the other."""

    def __init__(self, targets: Sequence[str]):
        self._unread = b""
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, *["-S"] * sys.flags.no_site, HERE / "child.py", *targets],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                # Another child may start before this one has returned its memory.
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            },
        )
        try:
            self._read(START_SECONDS)
        except (EOFError, TimeoutError):
            self.close()
            raise RuntimeError(f"the child process did not start:\n{self.last_words()}") from None

    def run(self, request: dict[str, Any]) -> Outcome:
        """Runs one case, which the request contains or gives the seed of."""
        case = request
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = {}
        while "kind" not in answer:
            try:
                answer = self._read(HANG_SECONDS)
            except (EOFError, TimeoutError) as error:
                return Outcome(case, self._end(may_still_end=isinstance(error, EOFError)), True)
            case = answer.get("case", case)
        return Outcome(case, answer["kind"], answer["is_failure"])

    def _end(self, may_still_end: bool) -> str:
        """Returns how the process ended, or that it did not.

        A process that ends closes its pipes first. Then it returns a GPU's memory, for example,
        which takes seconds.
        """
        try:
            status = self._process.wait(timeout=HANG_SECONDS if may_still_end else 0)
        except subprocess.TimeoutExpired:
            self.close()
            return f"hang of more than {HANG_SECONDS} s"
        self.close()
        return signal.Signals(-status).name if status < 0 else f"exit with status {status}"

    def _read(self, seconds: float) -> dict[str, Any]:
        """Returns the next line.

        Raises:
            TimeoutError: if the line does not come in time.
            EOFError: if the process has ended, or is about to.
        """
        end, descriptor = time.monotonic() + seconds, self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = max(0, end - time.monotonic())
            ready, _, _ = select.select([descriptor], [], [], left)
            if not ready:
                raise TimeoutError
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise EOFError
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-2000:]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()


class Runner:
    """Runs cases of some targets in as many processes as it takes, one at a time."""

    def __init__(self, *targets: str):
        self._targets = targets
        self._child: Child | None = None

    def run(self, request: dict[str, Any]) -> Outcome:
        if self._child is None or not self._child.is_alive:
            self._child = Child(self._targets)
        outcome = self._child.run(request)
        if outcome.is_failure and self._child.is_alive:
            # The next case runs in a new process, since the failure may have left something behind.
            self._child.close()
        return outcome

    def shrink(self, outcome: Outcome) -> Outcome:
        """Removes changes as long as the failure stays the same, and returns the last outcome."""
        index = 0
        # If a child ended while it drew a case, the case is unknown and has no changes.
        while index < len(outcome.case.get("changes", ())):
            changes = [*outcome.case["changes"]]
            del changes[index]
            smaller = self.run({**outcome.case, "changes": changes})
            if smaller.kind == outcome.kind:
                outcome = smaller
            else:
                index += 1
        return outcome

    def close(self) -> None:
        if self._child is not None and self._child.is_alive:
            self._child.close()


def corpus(target: str) -> list[dict[str, Any]]:
    cases = json.loads((HERE / "corpus.json").read_text())
    return [case for case in cases if case["target"] == target]


def requests(target: str, seconds: float, seed: int, with_corpus: bool) -> Iterator[dict[str, Any]]:
    """Yields the whole corpus, and then seeds until the time is over."""
    if with_corpus:
        yield from corpus(target)
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        yield {"target": target, "seed": f"{seed}.{number}"}
        number += 1


def fuzz(
    runner: Runner, source: Iterator[dict[str, Any]]
) -> tuple[collections.Counter, list[Outcome]]:
    """Runs cases; returns how often each kind of end came, and the failures, made small."""
    ends, failures = collections.Counter(), {}
    for request in source:
        outcome = runner.run(request)
        ends[outcome.kind] += 1
        if outcome.is_failure and outcome.kind not in failures:
            failures[outcome.kind] = runner.shrink(outcome)
            report(failures[outcome.kind])
    return ends, list(failures.values())


def report(failure: Outcome) -> None:
    print(f"FAILURE: {failure.kind}\n  --case='{json.dumps(failure.case)}'", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0, help="of the cases that are drawn")
    parser.add_argument("--targets", default=",".join(TARGETS), help="some of %(default)s")
    parser.add_argument("--case", help="run this case alone")
    parser.add_argument("--gpu", action="store_true", help="let the cases see the GPUs")
    parser.add_argument("--report", type=pathlib.Path, help="a file for the numbers, as JSON")
    options = parser.parse_args(arguments)
    if not options.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if options.case is not None:
        case = json.loads(options.case)
        with contextlib.closing(Runner(case["target"])) as runner:
            ends, failures = fuzz(runner, iter([case]))
        print(dict(ends))
        return 1 if failures else 0
    targets = options.targets.split(",")
    all_ends: dict[str, dict[str, int]] = {}
    all_failures: list[Outcome] = []
    for target in targets:
        source = requests(target, options.seconds / len(targets), options.seed, with_corpus=True)
        with contextlib.closing(Runner(target)) as runner:
            ends, failures = fuzz(runner, source)
        all_ends[target] = dict(ends.most_common())
        all_failures += failures
        print(f"{target}: {ends.total()} cases, {len(failures)} kinds of failure", flush=True)
        for kind, count in ends.most_common():
            print(f"  {count:7} {kind}")
    if options.report is not None:
        numbers = {
            "seed": options.seed,
            "ends": all_ends,
            "failures": [{"kind": failure.kind, "case": failure.case} for failure in all_failures],
        }
        options.report.write_text(json.dumps(numbers, indent=1) + "\n")
    return 1 if all_failures else 0


if __name__ == "__main__":
    sys.exit(main())
