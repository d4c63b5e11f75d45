"""Layers that a CPU runs in a GPU's place: their divisions, their data and the kernels' calls."""

import ctypes
import dataclasses
import pathlib
import re
import types
from collections.abc import Sequence

import numpy as np
import random_configs
import reference
import reference_masks
from cxx import ROOT, activation_macros, cell_macro, compile_for_fake_device

# The largest errors, relative to the largest number of a tensor. Results pass through a few dozen
# steps, each of which is rounded to the type.
TOLERANCE = {"float32": 1e-5, "float16": 0.01, "bfloat16": 0.06}
TOLERANCE_OF_HALVES = 2e-3  # Floats that are rounded to float16 where they are multiplied.


@dataclasses.dataclass(frozen=True)
class Shape:
    """A way to divide a layer, as `Shape` in shape.h has it."""

    rnn_mode: str
    dtype: str
    num_units: int
    team: int
    is_cluster: int
    block_units: int
    row_tiles: int
    forward_warps: int
    splits: int
    forward_resident: int
    backward_warps: int
    backward_resident: int
    is_stack: int = 0
    is_of_old_gpu: int = 0  # Whether the GPU has no clusters but those of one block.
    # 1 if floats are split for the tensor cores, 2 with fused multiply-adds, 3 in float16.
    products: int = 0
    slices: int = 1  # Blocks of a band; 1 if there are no bands.
    activation: str = ""
    recurrent_activation: str = ""
    has_warpgroups: int = 0
    zoneout: float = 0.0
    cell_zoneout: float = 0.0

    def __str__(self) -> str:
        return "-".join(str(value) for value in dataclasses.astuple(self))

    @property
    def index(self) -> int:
        return (STACKS if self.is_stack else SHAPES).index(self)

    @property
    def has_resets(self) -> bool:
        """Whether the kernels are compiled for resets, as those of every second shape are."""
        return self.index % 2 == 0

    @property
    def has_cell_sequences(self) -> bool:
        """Whether they return c of all steps, as those of two of three LSTMs do."""
        return self.rnn_mode in reference.LSTMS and self.index % 3 < 2

    @property
    def has_zoneout(self) -> bool:
        return self.zoneout > 0 or self.cell_zoneout > 0

    @property
    def directions(self) -> int:
        return 1 if self.is_stack else 1 + self.index // 2 % 2

    @property
    def norms(self) -> int:
        normalizes = self.rnn_mode.endswith("_layer_norm")
        return reference.NUM_VECTORS[self.rnn_mode] // 2 if normalizes else 0

    @property
    def slots(self) -> int:
        has_all = self.slices == 1 or self.has_warpgroups
        return 4 if has_all else reference.NUM_GATES[self.rnn_mode]

    @property
    def tolerance(self) -> float:
        # Sums of 80000, whose deviations are near 1, are rounded to multiples of 2^-7.
        of_sums = 2**-8 if self.norms and self.dtype == "float16" else 0.0
        return of_sums + (TOLERANCE_OF_HALVES if self.products == 3 else TOLERANCE[self.dtype])


SHAPES = [
    Shape("lstm", "float32", 24, 2, 1, 12, 1, 3, 1, 1, 2, 2),
    Shape("lstm", "bfloat16", 48, 4, 1, 16, 2, 2, 2, 1, 2, 1),
    Shape("lstm", "float16", 40, 1, 1, 40, 1, 5, 1, 2, 3, 3),
    Shape("gru", "float32", 21, 4, 1, 8, 1, 4, 2, 0, 2, 1),
    Shape("gru", "bfloat16", 33, 8, 1, 8, 1, 2, 1, 2, 1, 0),
    Shape("gru", "float16", 16, 2, 1, 8, 2, 1, 1, 1, 1, 1),
    Shape("rnn_tanh", "float32", 9, 1, 1, 12, 2, 3, 1, 1, 1, 2),
    Shape("rnn_relu", "float32", 61, 16, 1, 4, 1, 1, 1, 2, 2, 1),
    Shape("lstm", "float32", 130, 16, 1, 12, 1, 4, 4, 1, 5, 1),
    Shape("lstm", "bfloat16", 22, 3, 0, 8, 1, 2, 1, 1, 1, 1),
    Shape("gru", "float16", 30, 2, 0, 16, 2, 2, 2, 1, 1, 1),
    Shape("rnn_tanh", "float32", 20, 3, 0, 8, 1, 2, 1, 1, 2, 1),
    # In these shapes, a sender has more parts than there are threads, or a thread has many senders.
    Shape("gru", "float32", 40, 2, 0, 20, 2, 5, 1, 1, 2, 1),
    Shape("rnn_tanh", "float16", 152, 19, 0, 8, 2, 2, 1, 1, 1, 1),
    Shape("lstm", "float16", 40, 1, 1, 40, 1, 5, 1, 2, 3, 3, is_of_old_gpu=1),
    Shape("gru", "float32", 21, 1, 1, 24, 2, 4, 2, 0, 2, 1, is_of_old_gpu=1),
    Shape("lstm", "float32", 24, 2, 1, 12, 1, 3, 1, 1, 2, 2, products=1),
    Shape("gru", "float32", 40, 2, 0, 20, 2, 5, 1, 1, 2, 1, products=1),
    Shape("lstm", "float32", 24, 2, 1, 12, 2, 3, 1, 1, 2, 2, products=2),
    Shape("gru", "float32", 40, 2, 0, 20, 2, 5, 1, 1, 2, 1, products=2),
    Shape("rnn_tanh", "float32", 37, 1, 1, 40, 1, 4, 2, 1, 2, 1, is_of_old_gpu=1, products=2),
    Shape("lstm", "float32", 24, 2, 1, 16, 1, 2, 2, 1, 2, 1, products=3),
    Shape("gru", "float32", 21, 4, 1, 8, 2, 2, 1, 0, 2, 1, products=3),
    Shape("rnn_tanh", "float32", 37, 1, 1, 40, 1, 4, 2, 1, 2, 2, is_of_old_gpu=1, products=3),
    Shape("lstm", "float32", 61, 4, 0, 16, 1, 2, 1, 1, 2, 1, products=3),
    Shape("gru", "float32", 40, 2, 0, 24, 2, 3, 1, 1, 2, 1, products=3),
    Shape("lstm_peephole", "float32", 24, 2, 1, 12, 1, 3, 1, 1, 2, 2),
    Shape(
        *("lstm", "float32", 24, 2, 1, 12, 1, 3, 1, 1, 2, 2),
        **{"products": 1, "activation": "elu", "recurrent_activation": "hard_sigmoid"},
    ),
    Shape("gru", "bfloat16", 33, 8, 1, 8, 1, 2, 1, 2, 1, 0, activation="softsign"),
    Shape("lstm_peephole", "bfloat16", 22, 3, 0, 8, 1, 2, 1, 1, 1, 1),
    Shape("lstm_peephole", "float32", 61, 4, 0, 16, 2, 2, 1, 1, 2, 1, products=3),
    Shape("lstm_peephole", "float16", 61, 8, 0, 8, 1, 2, 1, 1, 1, 1, slices=2),
    Shape("lstm", "bfloat16", 90, 12, 0, 8, 2, 2, 1, 0, 2, 1, slices=4),
    Shape("gru", "float16", 120, 8, 0, 16, 1, 2, 2, 1, 1, 1, slices=2),
    Shape("rnn_tanh", "float16", 125, 8, 0, 16, 1, 1, 1, 1, 1, 1, slices=2),
    # A block of the next shape has more maxima of gradients than threads.
    Shape("lstm", "float32", 61, 8, 0, 8, 4, 2, 1, 1, 2, 1, products=3, slices=4),
    Shape("gru", "float32", 110, 8, 0, 16, 1, 3, 1, 1, 2, 1, products=3, slices=2),
    Shape("lstm", "float16", 120, 4, 0, 32, 3, 8, 1, 2, 4, 1, has_warpgroups=1),
    Shape(
        *("gru", "float32", 60, 4, 0, 16, 2, 8, 1, 0, 4, 1),
        **{"products": 3, "slices": 2, "has_warpgroups": 1},
    ),
    # Parts of 16, 8, 32 and 4 lanes; in the second shape, the last of them has no unit.
    Shape("lstm_layer_norm", "float32", 61, 4, 1, 16, 2, 2, 1, 1, 2, 1, products=3),
    Shape("lstm_layer_norm", "float16", 61, 3, 1, 24, 1, 3, 1, 1, 2, 1),
    Shape("gru_layer_norm", "bfloat16", 61, 2, 1, 32, 1, 2, 2, 1, 2, 1),
    Shape("lstm_layer_norm", "float32", 21, 2, 1, 12, 1, 3, 1, 1, 2, 2),
    Shape("gru_layer_norm", "float32", 37, 1, 1, 40, 2, 4, 2, 1, 2, 1, is_of_old_gpu=1),
    Shape("lstm", "float16", 92, 2, 1, 48, 5, 4, 1, 2, 4, 1, has_warpgroups=1),
    Shape("gru", "float32", 100, 4, 1, 32, 2, 4, 1, 1, 8, 0, products=3, has_warpgroups=1),
    Shape("lstm", "float32", 61, 1, 1, 64, 2, 4, 1, 1, 4, 0, products=3, has_warpgroups=1),
    Shape("lstm_layer_norm", "float16", 61, 4, 0, 16, 2, 2, 1, 1, 2, 1),
    Shape("gru_layer_norm", "float32", 40, 2, 0, 20, 1, 5, 1, 1, 2, 1, products=2),
    Shape("gru", "float16", 61, 1, 1, 64, 2, 4, 1, 1, 4, 0, has_warpgroups=1),
    Shape(
        *("lstm", "float32", 24, 2, 1, 16, 1, 2, 2, 1, 2, 1),
        **{"products": 3, "zoneout": 0.3, "cell_zoneout": 0.4},
    ),
    Shape("gru", "float16", 16, 2, 1, 8, 2, 1, 1, 1, 1, 1, zoneout=0.3),
    Shape("lstm", "float32", 24, 2, 1, 12, 2, 3, 1, 1, 2, 2, products=2, cell_zoneout=0.4),
    Shape("lstm", "bfloat16", 24, 3, 0, 8, 1, 1, 1, 1, 1, 1, zoneout=0.3, cell_zoneout=0.4),
    Shape("lstm_peephole", "float32", 60, 4, 0, 16, 2, 2, 1, 1, 2, 1, products=3, zoneout=0.3),
]

# Stacks have no backward kernel.
STACKS = [
    Shape("lstm", "float32", 24, 2, 1, 12, 1, 3, 1, 1, 0, 0, is_stack=1),
    Shape("lstm", "bfloat16", 48, 4, 1, 16, 2, 2, 2, 1, 0, 0, is_stack=1),
    Shape("gru", "float16", 40, 1, 1, 40, 1, 5, 1, 0, 0, 0, is_stack=1),
    Shape("gru", "float32", 20, 3, 1, 8, 1, 4, 2, 0, 0, 0, is_stack=1),
    Shape("rnn_tanh", "float16", 24, 2, 1, 16, 1, 2, 1, 1, 0, 0, is_stack=1),
    Shape("rnn_relu", "bfloat16", 16, 1, 1, 16, 1, 2, 1, 1, 0, 0, is_stack=1),
    Shape("lstm", "float16", 24, 1, 1, 24, 1, 2, 1, 1, 0, 0, is_stack=1, is_of_old_gpu=1),
    Shape("gru", "float32", 20, 3, 1, 8, 1, 4, 2, 0, 0, 0, is_stack=1, products=1),
    Shape("lstm", "float32", 24, 1, 1, 24, 1, 2, 1, 1, 0, 0, 1, is_of_old_gpu=1, products=2),
    Shape("lstm", "float32", 44, 2, 1, 24, 1, 4, 2, 1, 0, 0, is_stack=1, products=3),
    Shape("gru", "float32", 20, 3, 1, 8, 1, 2, 1, 0, 0, 0, is_stack=1, products=3),
    Shape("lstm_peephole", "float16", 24, 2, 1, 16, 1, 2, 1, 1, 0, 0, is_stack=1),
    Shape(
        *("lstm", "float32", 44, 2, 1, 24, 1, 4, 2, 1, 0, 0),
        **{"is_stack": 1, "products": 3, "zoneout": 0.3, "cell_zoneout": 0.4},
    ),
]


HEADERS = ROOT / "kernels/gpu/persistent"
SHAPE_FIELDS = re.findall(r"\n  F\((\w+), (\w+)\)", (HEADERS / "shape.h").read_text())
ARGUMENTS = re.sub("//.*", "", (HEADERS / "arguments.h").read_text())
TYPES = {"int": ctypes.c_int, "long long": ctypes.c_longlong, "float": ctypes.c_float}
TYPES["unsigned int"] = ctypes.c_uint


def _structure(name: str) -> type[ctypes.Structure]:
    """Returns a structure of arguments.h, with the fields that it has there."""
    found = re.search(rf"struct {name} (?:: (\w+) )?{{(.*?)\n}};", ARGUMENTS, re.DOTALL)
    fields = [*_structure(found[1])._fields_] if found[1] else []
    declaration = r"\n  (?:const )?(?!static)((?:unsigned )?\w+(?: long)?\*?) (\w[^;]*);"
    for kind, declared in re.findall(declaration, found[2]):
        kind = ctypes.c_void_p if kind.endswith("*") else TYPES.get(kind) or _structure(kind)
        for field, count in re.findall(r"(\w+)(?:\[(\w+)\])?(?:,| =.*|$)", declared):
            many = int(count.replace("kMaxLayers", "8") or 0)
            fields.append((field, kind * many if many else kind))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


FORWARD, BACKWARD = _structure("ForwardArguments"), _structure("BackwardArguments")

# Only kernels of single steps have projections.
OF_STEPS = dict.fromkeys(("projection", "projected_backprop"))


def compile_kernel(shape: Shape, kernel: str, folder: pathlib.Path) -> ctypes.CDLL:
    """Returns the kernel `forward` or `backward` of a layer, compiled into the folder once."""
    is_forward = kernel == "forward"
    warps = shape.forward_warps if is_forward else shape.backward_warps
    resident = shape.forward_resident if is_forward else shape.backward_resident
    library = folder / f"{shape}-{kernel}.so"
    if library.exists():
        return ctypes.CDLL(str(library))
    values = dataclasses.asdict(shape) | {"units": shape.num_units, "warps": warps}
    values |= {"splits": shape.splits if is_forward else 1, "resident_pairs": resident}
    values |= {"slots": shape.slots, "norms": shape.norms}
    values["word_operands"] = 1 if shape.dtype == "float32" and shape.products < 3 else 2
    options = [
        f'-DKERNEL="{ROOT}/kernels/gpu/persistent/{kernel}.cu"',
        f"-DIS_TRAINING={is_forward:d}",
        *(f"-D{macro}={values[name]}" for name, macro in SHAPE_FIELDS),
        *("-DIS_OF_OLD_GPU",) * shape.is_of_old_gpu,
        f"-DHAS_RESETS={shape.has_resets:d}",
        f"-DCELL_SEQUENCES={shape.directions * shape.has_cell_sequences}",
        f"-DIS_{shape.dtype.replace('float32', 'float').upper()}",
        *(cell_macro(shape.rnn_mode, shape.has_zoneout), *activation_macros(shape)),
    ]
    compile_for_fake_device("persistent_on_fake_device", library, folder, *options)
    return ctypes.CDLL(str(library))


def reordered(array: np.ndarray, time_major: bool) -> np.ndarray:
    """Returns rows of (time, sequence) in the order of a buffer, or the other way round."""
    return array if time_major else np.ascontiguousarray(array.swapaxes(0, 1))


def _pointer(array: np.ndarray | None) -> int | None:
    if array is None:
        return None
    assert array.flags.c_contiguous
    return array.ctypes.data


class Network:
    """A network that the kernels run, its random data and the reference's results.

    The products of the lowest layer's input side are drawn: the matrix of each of its gates selects
    a part of the input of its own.
    """

    def __init__(self, shape: Shape, rng: np.random.Generator, layers: int, directions: int):
        self.shape, self.rng, self.layers, self.directions = shape, rng, layers, directions
        self.dtype = random_configs.numpy_dtype(shape.dtype)
        self.gates = reference.NUM_GATES[shape.rnn_mode]
        self.slots = 4 if self.gates > 1 else 1
        self.is_lstm = shape.rnn_mode in reference.LSTMS
        self.num_vectors = reference.NUM_VECTORS.get(shape.rnn_mode, 0)
        gates, units = self.gates, shape.num_units
        self.config = types.SimpleNamespace(
            rnn_mode=shape.rnn_mode,
            num_layers=layers,
            num_units=units,
            num_proj=0,
            input_size=directions * gates * units,
            input_mode="linear_input",
            direction="bidirectional" if directions == 2 else "unidirectional",
            bias_mode="double",
            dropout=0.0,
            cell_clip=0.0,
            zoneout=shape.zoneout,
            cell_zoneout=shape.cell_zoneout,
            has_zoneout=shape.has_zoneout,
            layer_norm_epsilon=1e-3,
            activation=shape.activation,
            recurrent_activation=shape.recurrent_activation,
        )
        count = layers * directions
        self.recurrent = [self._draw_weights() for _ in range(count)]
        self.of_input = [None] * directions
        self.of_input += [self._draw_weights() for _ in range(count - directions)]
        self.biases = [[self.draw(gates * units) for _ in range(2)] for _ in range(count)]
        self.vectors = [self.draw(self.num_vectors, units, scale=0.3) for _ in range(count)]
        if shape.norms:  # Large means must not hide the deviations, nor leave float16's range.
            # Over a team's many steps, what such sums lose when they are rounded would add up.
            mean = 40000 if shape.dtype == "float16" and shape.is_cluster else 30
            for bias in self.biases[0]:
                bias += mean

    def _draw_weights(self) -> np.ndarray:
        gates, units = self.gates, self.shape.num_units
        return self.draw(gates * units, units, scale=units**-0.5)

    def draw(self, *dims: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self.rng.standard_normal(dims)).astype(self.dtype)

    def full(self, *dims: int, of: float = np.nan, dtype: np.dtype | None = None) -> np.ndarray:
        return np.full(dims, of, dtype or self.dtype)

    def draw_data(self, steps: int, batch: int, with_lengths: bool) -> None:
        gates, units, count = self.gates, self.shape.num_units, self.layers * self.directions
        self.products = self.draw(steps, batch, self.directions, gates * units)
        self.states = [self.draw(count, batch, units) for _ in range(1 + self.is_lstm)]
        self.lengths = self.order = None
        if with_lengths:
            self.lengths = self.rng.integers(0, steps + 1, size=batch).astype(np.int32)
            self.lengths[1:2] = 0
            self.order = np.argsort(-self.lengths, kind="stable").astype(np.int32)
        self.seed = np.array([3 - 2**60, 2**50 + 7])
        self.resets = self.rng.random((steps, batch)) < 0.3 if self.shape.has_resets else None
        eye = np.eye(self.config.input_size).reshape(self.directions, gates, units, -1)
        weights, biases = [], []
        for i in range(count):
            of_input = eye[i] if self.of_input[i] is None else np.split(self.of_input[i], gates)
            weights += [*of_input, *np.split(self.recurrent[i], gates), *self.vectors[i]]
            for side in self.biases[i]:
                biases += np.split(side, gates)
        self.run = reference.forward(
            self.config,
            self.products.astype(np.float64).reshape(steps, batch, -1),
            [state.astype(np.float64) for state in self.states],
            weights,
            biases,
            sequence_lengths=self.lengths,
            resets=self.resets,
            masks=None,
            zones=reference_masks.zones(self.config, self.seed, steps, batch),
            time_major=True,
        )

    def buffers(
        self,
        d: int,
        time_major: bool,
        gradients: list[np.ndarray],
        outputs: np.ndarray,
        cells: Sequence[np.ndarray] = (),
    ) -> types.SimpleNamespace:
        """Returns what the kernels read and write for direction `d`, or a stack's layer `d`.

        Rows are (time, sequence) or (sequence, time). Places that are not written stay NaN.
        `gradients` are those of the outputs, which have the rows' order, and of the states. `cells`
        are c of all steps and its gradient, if there are any.
        """
        gates, slots, units = self.gates, self.slots, self.shape.num_units
        of_input = reordered(self.products[:, :, d % self.directions], time_major)
        lead, batch = of_input.shape[:2], self.products.shape[1]
        gate_buffer = self.full(*lead, slots * units)
        gate_buffer[..., : gates * units] = of_input
        rows = -(-batch // (8 * self.shape.row_tiles)) * 8 * self.shape.row_tiles
        at = d * units * outputs.itemsize
        all_c, all_c_backprop = [_pointer(array) + at for array in cells] or [None, None]
        return types.SimpleNamespace(
            **OF_STEPS,
            pseudo_layer=d,
            recurrent_weights=self.recurrent[d],
            vectors=self.vectors[d],
            input_bias=self.biases[d][0],
            recurrent_bias=self.biases[d][1],
            gates=gate_buffer,
            input_weights=None,
            input=None,
            cells=self.full(*lead, units),
            all_c=all_c,
            all_c_backprop=all_c_backprop,
            first_h=self.states[0][d].copy(),
            first_c=self.states[-1][d].copy(),
            output=_pointer(outputs) + at,
            last_h=self.full(batch, units),
            last_c=self.full(batch, units),
            output_backprop=_pointer(gradients[0]) + at,
            last_h_backprop=gradients[1][d].copy(),
            last_c_backprop=gradients[-1][d].copy(),
            first_h_backprop=self.full(batch, units),
            first_c_backprop=self.full(batch, units),
            bias_sums=self.full(rows, slots * units, dtype=np.float32),
            norms=self.full(*lead, 2 * self.shape.norms, dtype=np.float32),
            vector_sums=self.full(rows, self.num_vectors * units, dtype=np.float32),
        )

    def call(
        self, kernel: ctypes.CDLL, kind: type, buffers: list, strides: tuple[int, int]
    ) -> None:
        """Calls a kernel with buffers for each direction or layer."""
        steps, batch = self.products.shape[:2]
        resets = None if self.resets is None else reordered(self.resets, strides[1] == 1)
        order = (_pointer(self.lengths), _pointer(self.order))
        units = self.shape.num_units
        arguments = kind(output_stride=self.directions * units, state_stride=units)
        arguments.sequences = (*order, batch, steps, *strides, _pointer(resets))
        rates = [self.config.zoneout, self.config.cell_zoneout]
        seed = _pointer(self.seed) if self.config.has_zoneout else None
        thresholds = [int(np.float64(np.float32(rate)) * 2**32) for rate in rates]
        arguments.zoneout = (seed, tuple(rates), tuple(thresholds), 65534)
        arguments.epsilon = self.config.layer_norm_epsilon
        for own, direction in zip(buffers, arguments.direction, strict=False):
            for name, _ in direction._fields_:
                value = getattr(own, name)
                pointer = value if isinstance(value, int) else _pointer(value)
                setattr(direction, name, pointer)
        kernel.run(ctypes.byref(arguments), len(buffers), int(self.rng.integers(1000)))
