"""Damages the bytes of files."""

import random
from typing import Any

KINDS = ("flip", "flip", "set", "insert", "delete", "cut")


def draw(rng: random.Random, size: int) -> list[list[Any]]:
    """Draws changes to a file of `size` bytes: bytes set, inserted or removed, or the end cut."""
    changes = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        # Most of what programs check is in headers, at either end of the file.
        place = rng.choice(
            (
                rng.randrange(size),
                rng.randrange(min(300, size)),
                size - 1 - rng.randrange(min(700, size)),
            )
        )
        what = rng.choice(KINDS)
        value = {
            "flip": lambda: 1 << rng.randrange(8),
            "set": lambda: rng.choice((0, 1, 0x7F, 0x80, 0xFF)),
            "insert": lambda: list(rng.randbytes(rng.randrange(1, 9))),
            "delete": lambda: rng.randrange(1, 9),
            "cut": lambda: 0,
        }[what]()
        changes.append([what, place, value])
    return changes


def apply(content: bytes, changes: list[list[Any]]) -> bytes:
    damaged = bytearray(content)
    for what, place, value in changes:
        if what == "cut":
            del damaged[place:]
        elif what == "delete":
            del damaged[place : place + value]
        elif what == "insert":
            damaged[place:place] = bytes(value)
        elif place < len(damaged):
            damaged[place] = damaged[place] ^ value if what == "flip" else value
    return bytes(damaged)
