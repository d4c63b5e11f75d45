"""One network in each library that the CPU benchmark compares.

Each library draws its own weights and inputs, since only their shapes decide its speed, and gets
its data in the layout it has by default: batch-major in `cudnn_rnn_tf` and Keras, time-major in
torch and ONNX. Sequences of different lengths are padded. This package's layer and Keras's get a
mask, torch packs the sequences, as its users do, and the others get the lengths.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import systems
from benchmarks.rows import Row

FLOAT_BYTES = 4
# What can be timed: "inference" and, unless the library does not train, "training".
Calls = dict[str, Callable[[], Any]]


@dataclasses.dataclass(frozen=True)
class Network:
    """What is computed.

    If `shortest` is given, the sequences' lengths are spread evenly from there to `num_steps`, and
    are in random order. Otherwise all sequences have `num_steps`.
    """

    rnn_mode: str
    num_layers: int
    batch_size: int
    num_steps: int
    input_size: int
    num_units: int
    num_dirs: int
    shortest: int | None = None

    def __str__(self) -> str:
        mode = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN tanh"}[self.rnn_mode]
        steps = self.num_steps if self.shortest is None else f"{self.shortest}–{self.num_steps}"
        sizes = (self.num_layers, self.batch_size, steps)
        sizes += (self.input_size, self.num_units, self.num_dirs)
        return f"{mode} {', '.join(map(str, sizes))}"

    @property
    def label(self) -> str:
        """What plots call the network, such as "bidirectional LSTM 2×128, B32 T100"."""
        mode = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "tanh RNN"}[self.rnn_mode]
        layers = f"{self.num_layers}×" if self.num_layers > 1 else ""
        direction = "bidirectional " if self.num_dirs == 2 else ""
        return f"{direction}{mode} {layers}{self.num_units}, B{self.batch_size} T{self.num_steps}"

    @property
    def lengths(self) -> np.ndarray | None:
        """Each sequence's steps, int32 [B]; None if all are `num_steps`."""
        if self.shortest is None:
            return None
        spread = np.linspace(self.shortest, self.num_steps, self.batch_size)
        return np.random.default_rng(20).permutation(spread.round().astype(np.int32))

    @property
    def mask(self) -> np.ndarray | None:
        """Whether a step belongs to its sequence, [B, T]; None if all do."""
        return None if self.lengths is None else np.arange(self.num_steps) < self.lengths[:, None]

    @property
    def sequence_steps(self) -> int:
        """The sum of all sequences' steps."""
        if self.lengths is None:
            return self.num_steps * self.batch_size
        return int(self.lengths.sum())

    @property
    def num_gates(self) -> int:
        return {"lstm": 4, "gru": 3, "rnn_tanh": 1}[self.rnn_mode]

    @property
    def row(self) -> Row:
        """The network as other benchmarks name it."""
        shape = (self.num_layers, self.num_units, self.num_dirs, self.batch_size, self.num_steps)
        return Row(self.rnn_mode, *shape, "float32", training=False, inputs=self.input_size)

    @property
    def fan_ins(self) -> list[int]:
        """The input size of each layer."""
        return [self.input_size] + [self.num_dirs * self.num_units] * (self.num_layers - 1)

    @property
    def held_bytes(self) -> int:
        """What there is before a training step: inputs, weights and the outputs' gradient."""
        inputs, outputs, weights = self._elements()
        return FLOAT_BYTES * (inputs + weights + outputs)

    @property
    def needed_bytes(self) -> int:
        """Inputs, outputs, weights, their gradients, and (G + 2) S H L D elements of reserve."""
        inputs, outputs, weights = self._elements()
        pseudo_layers = self.num_layers * self.num_dirs
        reserve = self.sequence_steps * self.num_units * pseudo_layers
        return FLOAT_BYTES * (2 * (inputs + outputs + weights) + (self.num_gates + 2) * reserve)

    def _elements(self) -> tuple[int, int, int]:
        padded_steps = self.num_steps * self.batch_size
        rows = self.num_dirs * self.num_gates * self.num_units
        weights = sum(rows * (fan_in + self.num_units + 2) for fan_in in self.fan_ins)
        outputs = padded_steps * self.num_dirs * self.num_units
        return padded_steps * self.input_size, outputs, weights


NETWORKS = (
    Network("lstm", 1, 1, 100, 256, 256, 1),
    Network("lstm", 1, 64, 100, 256, 256, 1),
    Network("lstm", 2, 32, 100, 128, 128, 2),
    Network("lstm", 1, 16, 25, 512, 512, 1),
    Network("lstm", 1, 64, 25, 1024, 1024, 1),
    Network("gru", 1, 64, 100, 256, 256, 1),
    Network("rnn_tanh", 1, 64, 100, 256, 256, 1),
    Network("lstm", 1, 1, 25, 64, 64, 1),
    Network("lstm", 2, 8, 400, 80, 320, 2),
    Network("gru", 3, 16, 100, 512, 512, 1),
    Network("gru", 2, 24, 60, 96, 320, 1),
    # Calls for single steps, as of a decoder.
    Network("lstm", 1, 1, 1, 1024, 1024, 1),
    Network("lstm", 1, 16, 1, 512, 512, 1),
)
NETWORKS_OF_DIFFERENT_LENGTHS = (
    Network("lstm", 1, 64, 100, 256, 256, 1, shortest=10),
    Network("lstm", 2, 8, 400, 80, 320, 2, shortest=100),
    Network("gru", 2, 32, 100, 128, 128, 2, shortest=10),
    Network("lstm", 1, 128, 50, 64, 64, 1, shortest=5),
)


def _both(make: Callable[[Row], Any], row: Row) -> Calls:
    steps = {
        "inference": make(row),
        "training": make(dataclasses.replace(row, training=True)),
    }
    return {what: lambda step=step: step(0) for what, step in steps.items()}


def _set_tensorflow_threads(threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def _masks(network: Network) -> list[Any]:
    import tensorflow as tf

    return [None if network.mask is None else tf.constant(network.mask)]


def fused_model(network: Network, threads: int, dtype: str = "float32") -> Calls:
    """`cudnn_rnn_tf`'s layer."""
    _set_tensorflow_threads(threads)
    row = dataclasses.replace(network.row, type=dtype)
    return _both(lambda row: systems.ours(row, _masks(network)), row)


def predictor_model(network: Network, threads: int, dtype: str = "float32") -> Calls:
    """`cudnn_rnn_tf.CpuPredictor` of the layer, with NumPy arrays."""
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    layer = systems.layer_of(dataclasses.replace(network.row, type=dtype))
    layer.build((None, None, network.input_size))
    predictor = crnn.CpuPredictor(layer, threads)
    shape = (network.batch_size, network.num_steps, network.input_size)
    inputs = tf.cast(np.random.default_rng(20).standard_normal(shape), dtype).numpy()
    return {"inference": lambda: predictor(inputs, sequence_lengths=network.lengths)}


def keras_model(network: Network, threads: int) -> Calls:
    """`keras.layers`: one layer per layer, in `Bidirectional` where there are two directions."""
    _set_tensorflow_threads(threads)
    return _both(lambda row: systems.of_keras(row, _masks(network)), network.row)


def torch_model(network: Network, threads: int) -> Calls:
    """`torch.nn`."""
    import torch

    torch.set_num_threads(threads)
    draws = None if network.lengths is None else [network.lengths]
    return _both(lambda row: systems.of_torch(row, draws, batch_first=False), network.row)


def onnxruntime_model(network: Network, threads: int) -> Calls:
    """ONNX Runtime: one node per layer; inputs and outputs are bound, so that nothing is copied."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        _onnx_network(network).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    shape = (network.num_steps, network.batch_size)
    inputs = np.random.default_rng(20).standard_normal((*shape, network.input_size), np.float32)
    outputs = np.zeros((*shape, network.num_dirs * network.num_units), np.float32)
    binding.bind_ortvalue_input("inputs", onnxruntime.OrtValue.ortvalue_from_numpy(inputs))
    binding.bind_ortvalue_output("outputs", onnxruntime.OrtValue.ortvalue_from_numpy(outputs))
    return {"inference": lambda: session.run_with_iobinding(binding)}


def _onnx_network(network: Network) -> Any:
    import onnx

    operator = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN"}[network.rnn_mode]
    random = np.random.default_rng(20)
    rows, bound = network.num_gates * network.num_units, network.num_units**-0.5
    attributes: dict[str, Any] = {
        "hidden_size": network.num_units,
        "direction": "bidirectional" if network.num_dirs == 2 else "forward",
    }
    if network.rnn_mode == "gru":
        attributes["linear_before_reset"] = 1
    initializers, nodes = [], []

    def constant(name: str, value: np.ndarray) -> str:
        initializers.append(onnx.numpy_helper.from_array(value, name))
        return name

    def weights(name: str, *shape: int) -> str:
        shape = (network.num_dirs, *shape)
        return constant(name, random.uniform(-bound, bound, shape).astype(np.float32))

    # An RNN node's outputs are [T, D, B, H].
    shape = constant("shape", np.array([0, 0, network.num_dirs * network.num_units]))
    lengths = [] if network.lengths is None else [constant("lengths", network.lengths)]
    inputs = "inputs"
    for index, fan_in in enumerate(network.fan_ins):
        names = [
            weights(f"kernel_{index}", rows, fan_in),
            weights(f"recurrent_kernel_{index}", rows, network.num_units),
            weights(f"bias_{index}", 2 * rows),
        ]
        last = index == network.num_layers - 1
        outputs = "outputs" if last else f"outputs_{index}"
        make = onnx.helper.make_node
        nodes += [
            make(operator, [inputs, *names, *lengths], [f"by_direction_{index}"], **attributes),
            make("Transpose", [f"by_direction_{index}"], [f"by_batch_{index}"], perm=[0, 2, 1, 3]),
            make("Reshape", [f"by_batch_{index}", shape], [outputs]),
        ]
        inputs = outputs
    floats = onnx.TensorProto.FLOAT
    sequences = [network.num_steps, network.batch_size]
    graph = onnx.helper.make_graph(
        nodes,
        str(network),
        [onnx.helper.make_tensor_value_info("inputs", floats, [*sequences, network.input_size])],
        [
            onnx.helper.make_tensor_value_info(
                "outputs", floats, [*sequences, network.num_dirs * network.num_units]
            )
        ],
        initializers,
    )
    # These are the oldest versions with these operators as they are used here, which any runtime
    # reads.
    return onnx.helper.make_model(
        graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 14)]
    )
