"""The networks and shapes that the GPU benchmark times."""

import dataclasses
from collections.abc import Iterator

TYPES = ("float32", "tf32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Row:
    """A network, the shape of its data, its type and what is timed of it.

    Attributes:
        source: "own", or "DeepBench" for a row from its tables.
        mode: "lstm" or "gru".
        layers: layers in the stack.
        units: units per layer and direction; the size of the inputs, too.
        batch: sequences at a time.
        time: steps of each.
        directions: 1 or 2.
        type: one of `TYPES`; "tf32" is float32 with TF32 allowed.
        training: forward and backward, or else inference alone.
    """

    source: str
    mode: str
    layers: int
    units: int
    batch: int
    time: int
    directions: int
    type: str
    training: bool

    @property
    def dtype(self) -> str:
        return "float32" if self.type == "tf32" else self.type

    @property
    def network(self) -> str:
        sides = "bidirectional " if self.directions == 2 else ""
        stack = f"{self.layers}×{self.units}" if self.layers > 1 else f"{self.units}"
        return f"{sides}{self.mode.upper()} {stack}, B{self.batch} T{self.time}"

    @property
    def key(self) -> str:
        return f"{self.network}, {self.type}, {'training' if self.training else 'inference'}"


# Each tuple is mode, layers, units, batch, time, directions.
_OWN = [
    ("lstm", 1, 256, 64, 200, 1),
    ("lstm", 2, 512, 64, 200, 1),
    ("lstm", 1, 512, 16, 25, 1),
    ("lstm", 1, 2048, 64, 25, 1),
    ("gru", 1, 1024, 32, 187, 1),
    ("lstm", 1, 512, 1, 100, 1),
    ("lstm", 4, 1024, 32, 100, 1),
    ("lstm", 2, 512, 64, 200, 2),
]

# Tuples of units, batch and time, from DeepBench's tables `training_set` and `inference_server_set`
# (baidu-research/DeepBench, code/kernels/rnn_problems.h).
_DEEPBENCH_TRAINING = {
    "lstm": [(units, batch, 25) for units in (512, 1024, 2048, 4096) for batch in (16, 32, 64, 128)]
    + [(1536, batch, 50) for batch in (8, 16, 32)]
    + [(256, batch, 150) for batch in (16, 32, 64)],
    "gru": [(2816, 32, time) for time in (750, 375, 187)]
    + [(units, 32, time) for units in (2048, 1536, 2560) for time in (1500, 750, 375, 187)]
    + [(512, 32, 1), (1024, 32, 1500), (1024, 64, 1500)],
}
_DEEPBENCH_INFERENCE = {
    "lstm": [(units, batch, 25) for units in (512, 1024, 2048) for batch in (1, 2, 4)]
    + [(1536, batch, 50) for batch in (1, 2, 4)]
    + [(256, batch, 150) for batch in (1, 2, 4)],
    "gru": [
        (units, batch, time)
        for units in (2816, 2048, 1536, 2560)
        for batch in (1, 2, 4)
        for time in (1500, 750, 375, 187)
    ]
    + [(512, batch, 1) for batch in (1, 2, 4)]
    + [(1024, batch, 1500) for batch in (1, 2, 4)],
}


def rows() -> Iterator[Row]:
    """All rows."""
    networks = [("own", network, training) for training in (False, True) for network in _OWN]
    for training, table in ((False, _DEEPBENCH_INFERENCE), (True, _DEEPBENCH_TRAINING)):
        for mode, shapes in table.items():
            for units, batch, time in shapes:
                networks.append(("DeepBench", (mode, 1, units, batch, time, 1), training))
    seen = set()
    for source, network, training in networks:
        if (network, training) not in seen:
            seen.add((network, training))
            for type_ in TYPES:
                yield Row(source, *network, type_, training)
