"""Draws the networks and numbers of good calls, which targets then change."""

import random
from typing import Any

import ml_dtypes
import numpy as np

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu", "gru_reset_before", "lstm_peephole")
MODES += ("lstm_layer_norm", "gru_layer_norm")


def draw(rng: random.Random) -> dict[str, Any]:
    """Draws a small network and the sizes of its data."""
    rnn_mode = rng.choice(MODES)
    num_units = rng.randrange(1, 6)
    input_mode = rng.choice(("linear_input", "linear_input", "skip_input"))
    is_lstm = rnn_mode in ("lstm", "lstm_peephole")
    num_proj = rng.randrange(num_units + 1) if is_lstm else 0
    has_zones = not num_proj and not rnn_mode.endswith("_norm")
    return {
        "rnn_mode": rnn_mode,
        "num_layers": rng.randrange(1, 4),
        "num_units": num_units,
        "num_proj": num_proj,
        "input_size": num_units if input_mode == "skip_input" else rng.randrange(1, 6),
        "input_mode": input_mode,
        "direction": rng.choice(("unidirectional", "bidirectional")),
        "bias_mode": rng.choice(("none", "single_input", "single_recurrent", "double")),
        "dropout": rng.choice((0.0, 0.5)),
        "cell_clip": rng.choice((0.0, 0.3)) if is_lstm else 0.0,
        "recurrent_dropout": rng.choice((0.0, 0.0, 0.3)),
        "zoneout": rng.choice((0.0, 0.4)) if has_zones else 0.0,
        "cell_zoneout": rng.choice((0.0, 0.6)) if has_zones and rnn_mode == "lstm" else 0.0,
        "max_time": rng.randrange(5),
        "batch_size": rng.randrange(4),
        "time_major": rng.random() < 0.5,
        "dtype": rng.choice(("float64", "float32", "float16", "bfloat16")),
        "has_resets": rng.random() < 0.3,
    }


def fill(shape: Any, dtype: Any, kind: str, seed: int) -> np.ndarray:
    """Returns an array of numbers of a kind.

    "coins" are zeros and ones; "places" and "steps" are what the op ReadMask makes of them.
    """
    if dtype == "bfloat16":
        dtype = ml_dtypes.bfloat16
    rng = np.random.default_rng(seed)
    values = {
        "zeros": lambda: np.zeros(shape),
        "normal": lambda: rng.standard_normal(shape),
        "huge": lambda: rng.standard_normal(shape) * 1e38,
        "nan": lambda: np.where(rng.random(shape) < 0.3, np.nan, rng.standard_normal(shape)),
        "denormal": lambda: rng.standard_normal(shape) * 1e-40,
        "whole": lambda: rng.integers(-9, 10, shape),
        "coins": lambda: rng.random(shape) < 0.6,
        "places": lambda: read_mask(rng.random(shape) < 0.6)[0],
        "steps": lambda: read_mask(rng.random(shape) < 0.6)[1],
    }[kind]()
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def read_mask(mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places and the steps of a mask, whose last dimension is time."""
    mask = np.asarray(mask)
    if not mask.ndim:
        return mask - 1, mask - 1
    before = np.cumsum(mask, axis=-1) - mask
    order = np.argsort(~mask, axis=-1, kind="stable")
    return np.where(mask, before, -1 - before), np.where(np.sort(~mask, axis=-1), -1, order)
