"""What benchmarks time: a network with its data, lists of lengths, and the rows of gpu_lengths."""

import dataclasses

import numpy as np

SYSTEMS = ("cudnn_rnn_tf", "keras", "torch")
DRAWS = 8  # The number of lists of lengths, which take turns.


@dataclasses.dataclass(frozen=True)
class Row:
    """A network, the shape of its data and its type; "tf32" is float32 with TF32 allowed."""

    mode: str
    layers: int
    units: int
    directions: int
    batch: int
    time: int
    type: str
    training: bool
    projection: int = 0
    clip: float = 0.0  # The bound of cell states, if any.
    inputs: int = 0  # The size of a step's input; 0 for the number of units.
    has_bias: bool = True

    @property
    def input_size(self) -> int:
        return self.inputs or self.units

    @property
    def outputs(self) -> int:
        """The size of a step's output."""
        return self.directions * (self.projection or self.units)

    @property
    def dtype(self) -> str:
        return "float32" if self.type == "tf32" else self.type

    def __str__(self) -> str:
        sides = "bidirectional " if self.directions == 2 else ""
        stack = f"{self.layers}×{self.units}" if self.layers > 1 else f"{self.units}"
        what = "training" if self.training else "inference"
        stack += f" projected to {self.projection}" if self.projection else ""
        stack += ", clipped" if self.clip else ""
        return (
            f"{sides}{self.mode.upper()} {stack}, B{self.batch} T{self.time}, {self.type}, {what}"
        )


ROWS = [
    Row(*network, type_, training)
    for network, types, training in [
        (("lstm", 1, 384, 1, 48, 120), ("float16", "tf32", "float32"), True),
        (("lstm", 2, 640, 1, 32, 80), ("float16",), True),
        (("gru", 1, 512, 1, 64, 300), ("float16",), True),
        (("lstm", 3, 320, 2, 32, 400), ("float16",), True),
        (("lstm", 1, 256, 1, 64, 200), ("bfloat16", "float16", "tf32"), True),
        (("lstm", 1, 512, 1, 64, 200), ("float16", "tf32"), True),
        (("lstm", 1, 64, 1, 32, 100), ("tf32",), True),
        (("gru", 2, 128, 1, 64, 50), ("tf32",), True),
        (("lstm", 1, 128, 2, 32, 300), ("tf32",), True),
        (("lstm", 1, 128, 1, 512, 50), ("tf32",), True),
        (("lstm", 1, 32, 1, 64, 100), ("tf32",), True),
        (("lstm", 1, 768, 1, 32, 100), ("float16",), True),
        (("gru", 1, 1024, 1, 32, 100), ("float16",), True),
        (("lstm", 1, 1024, 1, 64, 100), ("float16", "tf32"), True),
        (("lstm", 1, 64, 1, 32, 100), ("float32",), True),
        (("lstm", 1, 256, 1, 64, 200), ("float32",), True),
        (("lstm", 1, 512, 1, 64, 200), ("float32",), True),
        (("gru", 1, 512, 1, 64, 100), ("float32",), True),
        (("lstm", 1, 128, 2, 32, 300), ("float32",), True),
        (("lstm", 2, 512, 1, 16, 100), ("float16",), False),
        (("lstm", 2, 512, 1, 2, 60), ("float16",), False),
        (("lstm", 2, 256, 2, 64, 200), ("tf32",), False),
        (("gru", 1, 256, 1, 128, 100), ("float16",), False),
        (("lstm", 1, 128, 1, 8, 100), ("tf32",), False),
        (("lstm", 2, 256, 1, 64, 200), ("float32",), False),
        (("lstm", 1, 512, 1, 32, 100), ("tf32",), False),
        (("gru", 1, 1024, 1, 64, 100), ("float16",), False),
    ]
    for type_ in types
]

# With different lengths, the steps of these are enqueued one by one, or nearly so. Each stack has a
# row for one of its layers.
STEP_ROWS = [
    Row(*network, type_, training, *options)
    for network, options, types, training in [
        (("lstm", 1, 512, 1, 64, 100), (256,), ("float16", "tf32"), True),
        (("lstm", 1, 1024, 1, 64, 100), (512,), ("float16", "tf32"), True),
        (("lstm", 1, 256, 2, 32, 100), (128,), ("tf32",), True),
        (("lstm", 1, 512, 1, 32, 100), (256,), ("tf32",), True),
        (("lstm", 3, 512, 1, 32, 100), (256,), ("tf32",), True),
        (("lstm", 1, 512, 1, 64, 100), (0, 1.0), ("float16", "tf32"), True),
        (("lstm", 1, 256, 2, 32, 200), (0, 1.0), ("tf32",), True),
        (("lstm", 1, 256, 1, 64, 200), (), ("float64",), True),
        (("gru", 1, 512, 1, 64, 100), (), ("float64",), True),
        (("lstm", 2, 256, 2, 32, 100), (), ("float64",), True),
        (("lstm", 1, 256, 2, 32, 100), (), ("float64",), True),
        (("lstm", 1, 1024, 1, 128, 50), (), ("float16", "tf32"), True),
        (("lstm", 1, 1024, 1, 256, 50), (), ("float16", "tf32"), True),
        (("lstm", 1, 1536, 1, 64, 100), (), ("float16", "tf32"), True),
        (("lstm", 1, 2048, 1, 64, 50), (), ("float16", "tf32"), True),
        (("gru", 1, 2048, 1, 64, 50), (), ("float16",), True),
        (("lstm", 1, 1024, 1, 64, 100), (512,), ("tf32",), False),
        (("lstm", 1, 2048, 1, 64, 50), (), ("float16",), False),
        (("gru", 1, 256, 1, 64, 100), (), ("float64",), False),
    ]
    for type_ in types
]


def draw_lengths(row: Row) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(row.time // 4, row.time + 1, size=row.batch) for _ in range(DRAWS)]
