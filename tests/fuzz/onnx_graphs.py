"""Gives `from_onnx` the random graphs of `test_convert_onnx_random.py`, as many as time allows.

A graph without a flaw must be taken, and its layer compute what ONNX Runtime does; one with a flaw
must be refused.
"""

import random
from typing import Any

import test_convert_onnx_random as graphs

EXPECTED = ()


def draw(rng: random.Random) -> dict[str, Any]:
    flaw = rng.choice((None, rng.choice(graphs.FLAWS)))
    return {"changes": [], "numbers": rng.randrange(1 << 30), "flaw": flaw}


def run(case: dict[str, Any]) -> str:
    if case["flaw"] is None:
        graphs.test_what_is_taken_computes_the_same(case["numbers"])
        return "computes the same"
    graphs.test_what_has_no_equivalent_is_refused(case["flaw"], case["numbers"])
    return "refused"
