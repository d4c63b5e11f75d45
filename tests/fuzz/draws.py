"""Draws unusual values of arguments."""

import random
from collections.abc import Sequence
from typing import Any

INTEGERS = (
    *(-(2**63), -(2**31), -1, 0, 1, 2, 3, 4, 5, 7, 16, 33, 65535, 65536, 65537, 5 * 10**7),
    *(2**31 - 1, 2**31, 2**32, 2**33 + 1, 10**12, 2**40, 2**62, 2**63 - 1),
)
FLOATS = (
    *(float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0),
    *(1e-45, 1e-40, 1.2e-38, 1e-20, 3e38, 1e39, 1e300, 0.99999999, -1e-40),
)
STRINGS = {
    "rnn_mode": ("lstm", "gru", "rnn_tanh", "lstm_peephole", "", "LSTM", "lstm\0", "gru " * 1000),
    "input_mode": ("linear_input", "skip_input", "auto_select", "", "\u00e4"),
    "direction": ("unidirectional", "bidirectional", "", "both", "\n"),
    "bias_mode": ("none", "single_input", "single_recurrent", "double", "", "two"),
    "owner": ("", "layer 'a'", "\n%s{}", "\0", "x" * 10000),
    **dict.fromkeys(
        ("activation", "recurrent_activation"), ("", "relu", "sigmoid", "hard_sigmoid", "no", "\0")
    ),
    "algorithm": ("auto", "standard", "persist_static", "", "fast"),
}
DTYPES = ("float64", "float32", "float16", "bfloat16")


def integer(rng: random.Random) -> int:
    return rng.choice(INTEGERS) if rng.random() < 0.8 else rng.randrange(-(2**63), 2**63)


def count(rng: random.Random) -> int:
    """Draws the number of an op's outputs.

    TensorFlow allocates the outputs before it asks the op whether the number is right. A million
    of them take minutes, as in `tf.split`, so the numbers are small.
    """
    return rng.choice((-1, 0, 1, 2, 3, 5, 33, 200))


def floating(rng: random.Random) -> float:
    return rng.choice(FLOATS)


def shape(rng: random.Random, good: Sequence[int]) -> list[int]:
    """Draws a shape like `good` but with an error, and with few elements."""
    dims = list(good)
    edit = rng.randrange(7)
    if edit == 0 and dims:
        del dims[rng.randrange(len(dims))]
    elif edit == 1:
        dims.insert(rng.randrange(len(dims) + 1), rng.choice((0, 1, 2)))
    elif edit == 2 and dims:
        dims[rng.randrange(len(dims))] += rng.choice((-1, 1))
    elif edit == 3 and dims:
        dims[rng.randrange(len(dims))] = 0
    elif edit == 4 and dims:
        # The tensor has no elements, so that no size is too large.
        place = rng.randrange(len(dims))
        dims = [0 if i == place else d for i, d in enumerate(dims)]
        dims[rng.randrange(len(dims))] = rng.choice((2**31 - 1, 2**31, 2**40))
        dims[place] = 0
    elif edit == 5:
        dims = [rng.randrange(5) for _ in range(rng.randrange(5))]
    else:
        rng.shuffle(dims)
    return [max(0, dim) for dim in dims]


def numbers(rng: random.Random) -> list[Any]:
    """Draws a kind of numbers and a seed, for the elements of a tensor."""
    kinds = ("zeros", "normal", "huge", "nan", "denormal", "coins", "whole", "places", "steps")
    return [rng.choice(kinds), rng.randrange(1000)]
