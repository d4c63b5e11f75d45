"""Gives `accelerate` the random models of `test_to_stock.py`, as many as time allows."""

import random
from typing import Any

import tensorflow as tf
import test_to_stock

EXPECTED = ()


def draw(rng: random.Random) -> dict[str, Any]:
    return {"changes": [], "seed": rng.randrange(1 << 30)}


def run(case: dict[str, Any]) -> str:
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return test_to_stock.there_and_back(case["seed"])
