"""One network, with the same weights and inputs, in each library that the CPU benchmark compares.

Each library gets its data in the layout it has by default: batch-major in `cudnn_rnn_tf` and Keras,
time-major in torch and ONNX. What is checked is brought into one form, which is torch's: data
batch-major, and per pseudo-layer the weights `kernel` [G * H, fan_in], `recurrent_kernel`
[G * H, H], `bias` [G * H] and `recurrent_bias` [G * H], with the gates in cuDNN's order.

A training step is the forward pass and, from a given gradient of the outputs (that is, of the loss
sum(outputs * upstream)), the gradients of the inputs and of all weights.

Sequences of different lengths are padded. This package's layer and Keras's get a mask, torch packs
and pads them, as its users do, and the others get the lengths.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FLOAT_BYTES = 4


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
    def fan_ins(self) -> list[int]:
        """The input size of each layer."""
        return [self.input_size] + [self.num_dirs * self.num_units] * (self.num_layers - 1)

    @property
    def weight_shapes(self) -> list[tuple[int, ...]]:
        """Four per pseudo-layer."""
        rows, units = self.num_gates * self.num_units, self.num_units
        return [
            shape
            for fan_in in self.fan_ins
            for _ in range(self.num_dirs)
            for shape in ((rows, fan_in), (rows, units), (rows,), (rows,))
        ]

    @property
    def forward_flops(self) -> int:
        """2 S D G H (fan_in + H), summed over layers, for S sequence steps.

        The gates' arithmetic is not counted.

        A backward pass has twice that: each product's gradient to either side is another one.
        """
        gates = self.num_dirs * self.num_gates * self.num_units
        fan_ins = sum(fan_in + self.num_units for fan_in in self.fan_ins)
        return 2 * self.sequence_steps * gates * fan_ins

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
        weights = sum(int(np.prod(shape)) for shape in self.weight_shapes)
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


@dataclasses.dataclass(frozen=True)
class Data:
    """Float32, batch-major: inputs [B, T, I], upstream [B, T, D * H], and the weights.

    The upstream gradient of padding is zero.
    """

    inputs: np.ndarray
    upstream: np.ndarray
    weights: list[np.ndarray]


def draw(network: Network) -> Data:
    """The same numbers in every process."""
    random = np.random.default_rng(20)
    sequences = (network.batch_size, network.num_steps)
    bound = network.num_units**-0.5
    inputs = random.standard_normal((*sequences, network.input_size), np.float32)
    upstream = random.standard_normal(
        (*sequences, network.num_dirs * network.num_units), np.float32
    )
    if network.mask is not None:
        upstream[~network.mask] = 0
    return Data(
        inputs,
        upstream,
        [
            random.uniform(-bound, bound, shape).astype(np.float32)
            for shape in network.weight_shapes
        ],
    )


@dataclasses.dataclass(frozen=True)
class Model:
    """A network in one library: what is timed, and what is checked.

    Attributes:
        calls: "inference" and, unless the library does not train, "training".
        results: outputs and gradients by name, in the form that all libraries share.
    """

    calls: dict[str, Callable[[], Any]]
    results: Callable[[], dict[str, np.ndarray]]


def _time_and_batch_swapped(sequences: np.ndarray) -> np.ndarray:
    return sequences.swapaxes(0, 1)


def _named_gradients(d_inputs: np.ndarray, d_weights: Sequence[np.ndarray]) -> dict[str, Any]:
    parts = ("kernel", "recurrent_kernel", "bias", "recurrent_bias")
    return {
        "gradient of inputs": d_inputs,
        **{
            f"gradient of {parts[index % 4]} of pseudo-layer {index // 4}": gradient
            for index, gradient in enumerate(d_weights)
        },
    }


def _tensorflow_model(
    layers: Sequence[Any],
    network: Network,
    data: Data,
    to_weights: Callable[[list[Any]], list[np.ndarray]],
) -> Model:
    """A stack of Keras layers inside `tf.function`.

    Args:
        layers: the layers, built and with their weights.
        network: what the layers compute.
        data: inputs and upstream gradient.
        to_weights: brings the gradients of all trainable variables into the shared form.
    """
    import tensorflow as tf

    dtype = layers[0].compute_dtype
    inputs = tf.cast(data.inputs, dtype)
    upstream = tf.cast(data.upstream, dtype)
    mask = network.mask
    variables = [variable.value for layer in layers for variable in layer.trainable_variables]

    @tf.function(autograph=False)
    def infer(inputs: tf.Tensor) -> tf.Tensor:
        for layer in layers:
            inputs = layer(inputs, mask=mask, training=False)
        return inputs

    @tf.function(autograph=False)
    def train(inputs: tf.Tensor, upstream: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = inputs
            for layer in layers:
                outputs = layer(outputs, mask=mask, training=True)
        return outputs, tape.gradient(outputs, [inputs, *variables], output_gradients=upstream)

    def results() -> dict[str, np.ndarray]:
        outputs, (d_inputs, *d_variables) = train(inputs, upstream)

        def array(sequences: tf.Tensor) -> np.ndarray:
            return tf.cast(sequences, "float32").numpy()

        def without_padding(sequences: tf.Tensor) -> np.ndarray:
            """Keras repeats a sequence's last output there; other libraries have zeros."""
            return array(sequences) if mask is None else array(sequences) * mask[..., np.newaxis]

        return {
            "outputs": without_padding(infer(inputs)),
            "outputs in training": without_padding(outputs),
            **_named_gradients(array(d_inputs), to_weights(d_variables)),
        }

    calls = {"inference": lambda: infer(inputs), "training": lambda: train(inputs, upstream)}
    return Model(calls, results)


def _set_tensorflow_threads(threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def _fused_layer(network: Network, data: Data, dtype: str) -> Any:
    """One layer of `cudnn_rnn_tf` for the whole stack."""
    import cudnn_rnn_tf as crnn

    gates = network.num_gates
    layer_class = {
        "lstm": crnn.CudnnLSTM,
        "gru": crnn.CudnnGRU,
        "rnn_tanh": crnn.CudnnRNNTanh,
    }[network.rnn_mode]
    layer = layer_class(
        network.num_layers,
        network.num_units,
        direction="bidirectional" if network.num_dirs == 2 else "unidirectional",
        dtype=dtype,
    )
    layer.build((None, None, network.input_size))
    matrices = [w for weight in data.weights if weight.ndim == 2 for w in np.split(weight, gates)]
    biases = [b for weight in data.weights if weight.ndim == 1 for b in np.split(weight, gates)]
    layer.kernel.assign(layer.canonical_to_params(matrices, biases))
    return layer


def fused_model(network: Network, threads: int, dtype: str = "float32") -> Model:
    """`cudnn_rnn_tf`'s layer."""
    _set_tensorflow_threads(threads)
    import tensorflow as tf

    data, gates, parts = draw(network), network.num_gates, len(network.weight_shapes) // 2
    layer = _fused_layer(network, data, dtype)

    def to_weights(gradients: list[Any]) -> list[np.ndarray]:
        stacks = [
            [tf.concat(tensors[i : i + gates], 0) for i in range(0, len(tensors), gates)]
            for tensors in layer.params_to_canonical(gradients[0])
        ]
        # The shared form has two matrices and then two biases of each pseudo-layer.
        ordered = [
            tensor
            for index in range(0, parts, 2)
            for tensors in stacks
            for tensor in tensors[index : index + 2]
        ]
        return [tf.cast(tensor, "float32").numpy() for tensor in ordered]

    return _tensorflow_model([layer], network, data, to_weights)


def predictor_model(network: Network, threads: int, dtype: str = "float32") -> Model:
    """`cudnn_rnn_tf.CpuPredictor` of the layer, with NumPy arrays."""
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    data = draw(network)
    predictor = crnn.CpuPredictor(_fused_layer(network, data, dtype), threads)
    inputs, lengths = tf.cast(data.inputs, dtype).numpy(), network.lengths
    return Model(
        {"inference": lambda: predictor(inputs, sequence_lengths=lengths)},
        lambda: {"outputs": predictor(inputs, sequence_lengths=lengths)[0].astype(np.float32)},
    )


def keras_model(network: Network, threads: int) -> Model:
    """`keras.layers`: one layer per layer, in `Bidirectional` where there are two directions."""
    _set_tensorflow_threads(threads)
    import keras

    data = draw(network)
    layer_class = {
        "lstm": keras.layers.LSTM,
        "gru": keras.layers.GRU,
        "rnn_tanh": keras.layers.SimpleRNN,
    }[network.rnn_mode]
    # Keras has a GRU's gates in the order z r h; the permutation is its own inverse.
    order = (1, 0, 2) if network.rnn_mode == "gru" else range(network.num_gates)

    def permute(weight: np.ndarray) -> np.ndarray:
        parts = np.split(weight, network.num_gates)
        return np.concatenate([parts[gate] for gate in order])

    layers = []
    per_layer = 4 * network.num_dirs
    for index, fan_in in enumerate(network.fan_ins):
        layer = layer_class(network.num_units, return_sequences=True)
        layer = keras.layers.Bidirectional(layer) if network.num_dirs == 2 else layer
        layer.build((network.batch_size, network.num_steps, fan_in))
        permuted = [permute(w) for w in data.weights[index * per_layer : (index + 1) * per_layer]]
        values = []
        for kernel, recurrent, bias, recurrent_bias in zip(*[iter(permuted)] * 4, strict=True):
            # Only Keras's GRU has two bias sets.
            both = [bias, recurrent_bias]
            values += [kernel.T, recurrent.T, np.stack(both) if network.rnn_mode == "gru" else None]
            values[-1] = sum(both) if values[-1] is None else values[-1]
        layer.set_weights(values)
        layers.append(layer)

    def to_weights(gradients: list[Any]) -> list[np.ndarray]:
        arrays = [np.asarray(gradient) for gradient in gradients]
        weights = []
        for kernel, recurrent, bias in zip(*[iter(arrays)] * 3, strict=True):
            biases = np.broadcast_to(bias, (2, bias.shape[-1]))
            weights += [permute(part) for part in (kernel.T, recurrent.T, *biases)]
        return weights

    return _tensorflow_model(layers, network, data, to_weights)


def torch_model(network: Network, threads: int) -> Model:
    """`torch.nn`."""
    import torch

    torch.set_num_threads(threads)
    data = draw(network)
    module_class = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN}
    module = module_class[network.rnn_mode](
        network.input_size,
        network.num_units,
        network.num_layers,
        bidirectional=network.num_dirs == 2,
    )
    parameters = list(module.parameters())
    with torch.no_grad():
        for parameter, weight in zip(parameters, data.weights, strict=True):
            parameter.copy_(torch.from_numpy(weight))
    inputs = torch.from_numpy(data.inputs).transpose(0, 1).contiguous()
    upstream = torch.from_numpy(data.upstream).transpose(0, 1).contiguous()
    watched = inputs.clone().requires_grad_()
    lengths = None if network.lengths is None else torch.from_numpy(network.lengths)

    def run(inputs: Any) -> Any:
        if lengths is None:
            return module(inputs)[0]
        packed = torch.nn.utils.rnn.pack_padded_sequence(inputs, lengths, enforce_sorted=False)
        return torch.nn.utils.rnn.pad_packed_sequence(module(packed)[0])[0]

    def infer() -> Any:
        with torch.inference_mode():
            return run(inputs)

    def train() -> tuple[Any, tuple[Any, ...]]:
        outputs = run(watched)
        return outputs, torch.autograd.grad(outputs, [watched, *parameters], upstream)

    def results() -> dict[str, np.ndarray]:
        outputs, (d_inputs, *d_weights) = train()
        return {
            "outputs": _time_and_batch_swapped(infer().numpy()),
            "outputs in training": _time_and_batch_swapped(outputs.detach().numpy()),
            **_named_gradients(
                _time_and_batch_swapped(d_inputs.numpy()),
                [gradient.numpy() for gradient in d_weights],
            ),
        }

    return Model({"inference": infer, "training": train}, results)


def onnxruntime_model(network: Network, threads: int) -> Model:
    """ONNX Runtime: one node per layer; inputs and outputs are bound, so that nothing is copied."""
    import onnxruntime

    data = draw(network)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        _onnx_network(network, data).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    inputs = np.ascontiguousarray(_time_and_batch_swapped(data.inputs))
    outputs = onnxruntime.OrtValue.ortvalue_from_numpy(
        np.zeros(_time_and_batch_swapped(data.upstream).shape, np.float32)
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("inputs", onnxruntime.OrtValue.ortvalue_from_numpy(inputs))
    binding.bind_ortvalue_output("outputs", outputs)

    def infer() -> None:
        session.run_with_iobinding(binding)

    def results() -> dict[str, np.ndarray]:
        infer()
        return {"outputs": _time_and_batch_swapped(outputs.numpy())}

    return Model({"inference": infer}, results)


def _onnx_network(network: Network, data: Data) -> Any:
    import onnx

    operator = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN"}[network.rnn_mode]
    # ONNX stacks the gates as i o f c and z r h.
    order = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,)}[network.rnn_mode]
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

    def stack(weights: Sequence[np.ndarray]) -> np.ndarray:
        parts = [np.split(weight, network.num_gates) for weight in weights]
        return np.stack([np.concatenate([gates[gate] for gate in order]) for gates in parts])

    # An RNN node's outputs are [T, D, B, H].
    shape = constant("shape", np.array([0, 0, network.num_dirs * network.num_units]))
    lengths = [] if network.lengths is None else [constant("lengths", network.lengths)]
    inputs = "inputs"
    for index in range(network.num_layers):
        first = 4 * network.num_dirs * index
        kernel, recurrent, bias, recurrent_bias = (
            stack(data.weights[first + part : first + 4 * network.num_dirs : 4])
            for part in range(4)
        )
        names = [
            constant(f"kernel_{index}", kernel),
            constant(f"recurrent_kernel_{index}", recurrent),
            constant(f"bias_{index}", np.concatenate([bias, recurrent_bias], axis=1)),
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
