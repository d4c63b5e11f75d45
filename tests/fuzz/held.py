"""Copies models whose layers hold more than variables, and compares what the copies compute."""

import random
from typing import Any

import held_layers

EXPECTED = ()


def draw(rng: random.Random) -> dict[str, Any]:
    door = rng.choice([*held_layers.DOORS])
    kinds, _ = held_layers.DOORS[door]
    return {"changes": [], "door": door, "kind": rng.choice([*kinds])}


def run(case: dict[str, Any]) -> str:
    held_layers.check(case["kind"], case["door"])
    return f"through {case['door']}"
