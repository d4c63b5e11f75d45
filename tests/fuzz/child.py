"""Runs the cases that `fuzz.py` sends, one per line, and says how each ended.

A target is a module in this folder. Its `draw(rng)` returns a case, and its `run(case)` runs a case
and returns how it ended, or raises; `EXPECTED` are the exceptions that `run` may raise. A case is a
dictionary with its `target`, a list of `changes`, any of which may be left out, and whatever else
the target needs.
"""

import importlib
import json
import os
import pathlib
import random
import resource
import sys
import warnings
from typing import Any

# The most memory of the process. Larger allocations fail, so that other programs keep theirs.
_MEMORY = 24 << 30


def main() -> None:
    # AddressSanitizer and CUDA reserve more address space than this; the former has a limit of its
    # own.
    reserves = os.environ.get("CUDA_VISIBLE_DEVICES") != "-1"
    if not reserves and "asan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    # Answers go to a copy of standard output, and other output goes to standard error, so that they
    # are not mixed.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    # What the tests draw, targets draw as well, a room's tests too.
    tests = pathlib.Path(__file__).resolve().parents[1]
    sys.path.extend(map(str, (tests, tests / "convert", tests / "keras")))
    modules = {target: importlib.import_module(target) for target in sys.argv[1:]}
    answer(ready=True)
    for line in sys.stdin:
        case = json.loads(line)
        target = case["target"]
        module = modules[target]
        try:
            if "seed" in case:
                case = {"target": target, **module.draw(random.Random(case["seed"]))}
            answer(case=case)
            kind, is_failure = module.run(case) or "ok", False
        except module.EXPECTED as error:
            # An error is expected of a case, but not while it is drawn.
            kind, is_failure = type(error).__name__, "seed" in case
        except BaseException as error:  # The fuzzer looks for these errors.
            first = next(iter(str(error).splitlines()), "")
            kind, is_failure = f"{type(error).__name__}: {first[:200]}", True
        answer(kind=kind, is_failure=is_failure)


if __name__ == "__main__":
    main()
