"""Runs the cases that `fuzz.py` sends, one a line, and says how each ended.

A target is a module here with `draw(rng)`, which returns a case, and `run(case)`, which runs it and
returns how it ended, or raises. A case is a dictionary: of its `target`, of a list of `changes`, of
which any may be left out, and of what else the target wants to know. `EXPECTED` are the exceptions
that may come.
"""

import importlib
import json
import os
import random
import resource
import sys
import warnings
from typing import Any

# A program that asks for more is told that there is none, and takes none from other programs.
_MEMORY = 24 << 30


def main() -> None:
    target = sys.argv[1]
    # AddressSanitizer, which reserves more than there is, has a limit of its own.
    if "asan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    # Answers go where nothing else that is printed can get in between.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    module = importlib.import_module(target)
    answer(ready=target)
    for line in sys.stdin:
        case = json.loads(line)
        if "seed" in case:
            case = {"target": target, **module.draw(random.Random(case["seed"]))}
        answer(case=case)
        try:
            kind, is_failure = module.run(case) or "ok", False
        except module.EXPECTED as error:
            kind, is_failure = type(error).__name__, False
        except BaseException as error:  # Everything else is what is looked for.
            first = next(iter(str(error).splitlines()), "")
            kind, is_failure = f"{type(error).__name__}: {first[:200]}", True
        answer(kind=kind, is_failure=is_failure)


if __name__ == "__main__":
    main()
