"""The random masks of dropout and zoneout, drawn as the ops should draw them.

`config` is anything with the attributes of `cudnn_rnn_tf.config.RnnConfig`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import reference


def philox4x32(counter: np.ndarray, key: np.ndarray, rounds: int = 10) -> np.ndarray:
    """Philox4x32 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.

    The result, like the counter, is uint32 [..., 4]; the key is uint32 [2].
    """
    low = np.uint64(0xFFFFFFFF)
    words = [counter[..., i].astype(np.uint64) for i in range(4)]
    k0, k1 = (int(word) for word in key)
    for _ in range(rounds):
        product0 = np.uint64(0xD2511F53) * words[0]
        product1 = np.uint64(0xCD9E8D57) * words[2]
        words = [
            (product1 >> np.uint64(32)) ^ words[1] ^ np.uint64(k0),
            product1 & low,
            (product0 >> np.uint64(32)) ^ words[3] ^ np.uint64(k1),
            product0 & low,
        ]
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(words, axis=-1).astype(np.uint32)


def dropout_mask(
    seed: Sequence[int], layer: int, rate: float, shape: tuple[int, int, int]
) -> np.ndarray:
    """Returns the mask that the output of `layer`, time-major of `shape`, is multiplied by.

    Element e uses word e % 4 of Philox4x32-10 with key seed[0] and the counter {e / 4 (48 bits),
    layer (16 bits), seed[1] (64 bits)}, and is dropped if that word is below rate * 2^32.
    """
    size = int(np.prod(shape))
    group = np.arange(-(-size // 4), dtype=np.uint64)
    key, stream = (int(word) & 0xFFFFFFFFFFFFFFFF for word in seed)
    counter = np.empty((group.size, 4), np.uint32)
    counter[:, 0] = group & np.uint64(0xFFFFFFFF)
    counter[:, 1] = (group >> np.uint64(32)) | np.uint64(layer << 16)
    counter[:, 2] = stream & 0xFFFFFFFF
    counter[:, 3] = stream >> 32
    words = philox4x32(counter, np.array([key & 0xFFFFFFFF, key >> 32], np.uint32))
    rate = float(np.float32(rate))
    kept = words.ravel()[:size] >= int(rate * 2**32)
    return np.where(kept, 1.0 / (1.0 - rate), 0.0).reshape(shape)


def dropout_masks(
    config: Any, seed: Sequence[int], max_time: int, batch_size: int
) -> list[np.ndarray] | None:
    """Returns the masks of all layers but the last; None without dropout."""
    if not config.dropout:
        return None
    size = reference.num_dirs(config) * (config.num_proj or config.num_units)
    return [
        dropout_mask(seed, layer, config.dropout, (max_time, batch_size, size))
        for layer in range(config.num_layers - 1)
    ]


def recurrent_dropout_masks(config: Any, seed: Sequence[int], batch_size: int) -> np.ndarray | None:
    """Returns the masks that h is multiplied by for each gate, [L * D, G, B, P]; or None.

    The array has the mask that outputs of layer 65535 would have, whose outputs never get one.
    """
    if not config.recurrent_dropout:
        return None
    count = config.num_layers * reference.num_dirs(config) * reference.NUM_GATES[config.rnn_mode]
    size = config.num_proj or config.num_units
    mask = dropout_mask(seed, 65535, config.recurrent_dropout, (count, batch_size, size))
    return mask.reshape(-1, reference.NUM_GATES[config.rnn_mode], batch_size, size)


def zones(config: Any, seed: Sequence[int], max_time: int, batch_size: int) -> np.ndarray | None:
    """Returns where h and c stay what they are, 1 or 0, [L * D, 2, T, B, H]; None without zoneout.

    The array has the mask of dropout that outputs of layer 65534 would have: what it drops stays.
    """
    if not config.has_zoneout:
        return None
    shape = (
        config.num_layers * reference.num_dirs(config),
        2,
        max_time,
        batch_size,
        config.num_units,
    )
    return (
        np.stack(
            [
                (dropout_mask(seed, 65534, rate, shape) == 0)[:, state]
                for state, rate in enumerate((config.zoneout, config.cell_zoneout))
            ],
            axis=1,
        )
        * 1.0
    )
