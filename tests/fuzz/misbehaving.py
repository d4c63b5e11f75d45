"""A target that does everything that must not happen, for testing `fuzz.py`."""

import ctypes
import os
import random
import time
from typing import Any

EXPECTED = (ValueError,)


def draw(rng: random.Random) -> dict[str, Any]:
    if rng.getstate() == random.Random("bad").getstate():
        raise ValueError("There is no such case.")
    return {"changes": [rng.choice(("nothing", "value"))]}


def run(case: dict[str, Any]) -> None:
    for change in case["changes"]:
        if change == "abort":
            os.abort()
        if change == "segfault":
            ctypes.string_at(8)
        if change == "exit":
            os._exit(0)
        if change == "slow exit":
            os.closerange(3, 100)
            time.sleep(1.5)
            os._exit(0)
        if change == "hang":
            time.sleep(3600)
        if change == "key":
            raise KeyError("wrong")
        if change == "value":
            raise ValueError("right")
