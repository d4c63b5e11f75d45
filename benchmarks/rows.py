"""What benchmarks time: a network with its data, and lists of lengths."""

import dataclasses

import numpy as np

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


def draw_lengths(row: Row) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(row.time // 4, row.time + 1, size=row.batch) for _ in range(DRAWS)]
