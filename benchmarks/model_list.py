"""Recurrent parts of models that people train, other networks, and the least time these need."""

import dataclasses
import functools
import json
import pathlib
from typing import NamedTuple

from benchmarks.rows import Row

# Products of matrices per second at the dense peak of an H100 and an H200 (both have the same
# chip), by type: NVIDIA's data sheet.
PEAK_FLOPS = {"tf32": 494e12, "float16": 989e12, "bfloat16": 989e12}
# What a step of a layer takes where nothing but the chain of steps limits it, in a pass.
STEP_SECONDS = 1.7e-6
LISTS = ("models", "networks")  # Files with the ending .json.
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def flops_of(row: Row) -> float:
    """The operations of a step's products, where all sequences have full length."""
    flops = 0.0
    for layer in range(row.layers):
        inputs, outputs = row.outputs if layer else row.input_size, row.projection or row.units
        of_gates = GATES[row.mode] * row.units * (inputs + outputs)
        flops += 2 * row.directions * (of_gates + row.units * row.projection)
    return flops * row.batch * row.time * (3 if row.training else 1)


class Model(NamedTuple):
    """A model, or a network that stands for several.

    Attributes:
        list: The one of `LISTS` that it is in.
        name: What a command calls it.
        title: What people call it; a network has none.
        row: Its recurrent part, of training.
        lengths: "full", "behind" for sequences padded behind, or "resets" for ones of full length
            inside of which states are reset.
        core: Whether it is one of those that stand for a kind.
        source: The file that says so, repository@commit path:lines, or why it is in the list.
        note: What the file leaves to the data, and what is left out.
    """

    list: str
    name: str
    title: str
    row: Row
    lengths: str
    core: bool
    source: str
    note: str

    @property
    def has_lengths(self) -> bool:
        return self.lengths == "behind"

    def on_cpu(self) -> "Model":
        """The model as CPUs run it: in float32, with few sequences and steps."""
        row = self.row
        sizes = {"batch": min(row.batch, 8), "time": min(row.time, 100)}
        return self._replace(row=dataclasses.replace(row, **sizes, type="float32"))

    def least_seconds(self, training: bool) -> float:
        """The yardstick: the longer of what the products and the chain of steps need.

        The products are those of the steps that are read, at the type's dense peak. Directions run
        side by side, and a training step has two passes and three times an inference's products.
        """
        row = dataclasses.replace(self.row, training=training)
        read = 0.625 if self.has_lengths else 1  # The mean of a uniform draw from [T/4, T].
        steps = row.layers * row.time * (2 if training else 1)
        return max(read * flops_of(row) / PEAK_FLOPS[row.type], steps * STEP_SECONDS)


@functools.cache
def models() -> tuple[Model, ...]:
    """Returns what the lists have, in their order."""
    fields = ("mode", "layers", "units", "directions", "batch", "time", "type")
    return tuple(
        Model(
            name,
            item["name"],
            item.get("title", ""),
            Row(
                *(item[field] for field in fields),
                training=True,
                projection=item["projection"],
                clip=item.get("clip", 0.0),
                inputs=item["inputs"],
                has_bias=item.get("bias", True),
            ),
            *(item[field] for field in ("lengths", "core", "source", "note")),
        )
        for name in LISTS
        for item in json.loads(pathlib.Path(__file__).with_name(f"{name}.json").read_text())
    )
