"""The persistent kernels on a GPU, against the reference, the CPU kernels and themselves."""

import concurrent.futures
import dataclasses

import numpy as np
import pytest
import random_configs
import tensorflow as tf
import test_gpu

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops import op_library

pytestmark = test_gpu.pytestmark

# Root mean squares of the errors of outputs and states; of gradients; and of gradients if a rounded
# number may be on the other side of a ReLU's kink. Float32 products are in TF32, which has
# float16's digits.
TOLERANCE = {
    "float32": (2e-3, 5e-3, 1e-1),
    "float16": (2e-3, 1e-2, 1e-1),
    "bfloat16": (1.6e-2, 8e-2, 5e-1),
}


@pytest.fixture(autouse=True)
def tensor_float_32():
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(False)


def compute_capability() -> tuple[int, int]:
    """Returns that of the GPU, or of the one that is imitated."""
    if imitated := op_library.imitated_architecture():
        return divmod(imitated, 10)
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    return details["compute_capability"]


@pytest.fixture(autouse=True)
def needs_tensor_cores(request):
    """Leaves out the types that the GPU lacks, as its own errors say."""
    dtype = getattr(request.node, "callspec", None) and request.node.callspec.params.get("dtype")
    oldest = (8, 0) if dtype == "bfloat16" else (7, 5)
    if compute_capability() < oldest:
        pytest.skip(f"the GPU has a compute capability below {oldest}")


def supported(case: random_configs.Case) -> random_configs.Case:
    rnn_mode = case.config.rnn_mode.removesuffix("_reset_before")
    config = dataclasses.replace(case.config, rnn_mode=rnn_mode, cell_clip=0.0)
    return dataclasses.replace(case, config=config)


MANY_UNITS = [64, 100, 128, 200, 256, 320, 333, 384, 448, 512]
# Networks with these numbers of units run in teams of blocks that are no clusters.
MOST_UNITS = [600, 640, 720, 768, 900, 1000, 1024]


def large_case(rng: np.random.Generator, index: int, most: bool = False) -> random_configs.Case:
    """Draws more units and sequences than `random_configs`, so that teams of all sizes run."""
    units = MOST_UNITS if most else MANY_UNITS
    batch_size = int(rng.choice([1, 7, 33, 64] if most else [1, 7, 33, 64, 130, 300]))
    # Teams that are no clusters use rings of buffers, which need many steps to go round.
    max_time = int(rng.integers(1, 80 if most else 7))
    lengths = rng.integers(0, max_time + 1, size=batch_size) if rng.random() < 0.5 else None
    return random_configs.Case(
        index=index,
        config=RnnConfig(
            rnn_mode=str(rng.choice(["lstm", "gru", "rnn_tanh"])),
            num_layers=int(rng.integers(1, 3)),
            num_units=int(rng.choice(units)),
            input_size=int(rng.integers(1, 70)),
            direction=str(rng.choice(["unidirectional", "bidirectional"])),
            bias_mode=str(rng.choice(["none", "single_input", "single_recurrent", "double"])),
            dropout=float(rng.choice([0.0, 0.4])),
        ),
        max_time=max_time,
        batch_size=batch_size,
        time_major=bool(rng.random() < 0.5),
        is_training=True,
        sequence_lengths=None if lengths is None else tuple(int(n) for n in lengths),
    )


def wide_case(rng: np.random.Generator, index: int) -> random_configs.Case:
    """Draws matrices so large that their gradients are computed from transposed data in TF32."""
    case = large_case(rng, index)
    config = dataclasses.replace(
        case.config, num_units=int(rng.choice([512, 640])), input_size=int(rng.integers(510, 700))
    )
    return dataclasses.replace(case, config=config)


def stack_case(rng: np.random.Generator, index: int) -> random_configs.Case:
    """Draws several layers that may run at the same time.

    In deep stacks, TF32's rounding moves numbers to the other side of a ReLU's kink, so ReLU
    networks have no gradients here.
    """
    rnn_mode = str(rng.choice(["lstm", "gru", "rnn_tanh", "rnn_relu"]))
    layers = int(rng.integers(2, 6))
    batch_size = int(rng.integers(1, 100 // layers))
    max_time = int(rng.integers(1, 60))
    lengths = rng.integers(0, max_time + 1, size=batch_size) if rng.random() < 0.5 else None
    return random_configs.Case(
        index=index,
        config=RnnConfig(
            rnn_mode=rnn_mode,
            num_layers=layers,
            num_units=int(rng.choice([8, 40, 64, 128, 200, 256, 384, 512])),
            input_size=int(rng.integers(1, 70)),
            bias_mode=str(rng.choice(["none", "single_input", "single_recurrent", "double"])),
        ),
        max_time=max_time,
        batch_size=batch_size,
        time_major=bool(rng.random() < 0.5),
        is_training=bool(rng.random() < 0.5) and rnn_mode != "rnn_relu",
        sequence_lengths=None if lengths is None else tuple(int(n) for n in lengths),
    )


# Cases with one or two units are left out, since their rounded gradients of gates may cancel to
# less than their rounding errors.
CASES = [
    supported(case)
    for case in random_configs.random_cases(160, seed=7)
    if case.config.num_units > 2
]
_RNG = np.random.default_rng(11)
CASES += [large_case(_RNG, 1000 + i) for i in range(40)]
CASES += [large_case(_RNG, 2000 + i, most=True) for i in range(14)]
CASES += [stack_case(_RNG, 2500 + i) for i in range(40)]
CASES += [wide_case(_RNG, 2900 + i) for i in range(8)]
CASES += random_configs.layer_normalized(CASES)[::2] + random_configs.with_zoneout(CASES)[::4]
CASES = random_configs.with_cell_sequences(random_configs.with_resets(CASES))


def run(
    case: random_configs.Case, data: random_configs.Data, **options: object
) -> random_configs.Results:
    with tf.device("GPU:0"):
        return random_configs.run_forward(
            ops.forward,
            case,
            data,
            seed=tf.constant(data.seed),
            is_training=case.is_training,
            **{"algorithm": "persistent", **options},
        )


def run_if_it_fits(case: random_configs.Case, data: random_configs.Data) -> random_configs.Results:
    """Runs a case, or skips the test. An H100 has room for all cases, and smaller GPUs for most."""
    try:
        return run(case, data)
    except tf.errors.UnimplementedError as error:
        if compute_capability() >= (9, 0) or "the weights do not fit" not in error.message:
            raise
        pytest.skip("the GPU is too small")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_reference(case, dtype):
    data = random_configs.draw_data(case, dtype)
    results = run_if_it_fits(case, data)
    check(results, case, data, dtype)
    again = run(case, data)
    assert random_configs.bits(again) == random_configs.bits(results)


def check(results: random_configs.Results, case: random_configs.Case, data, dtype: str) -> None:
    _, expected = random_configs.run_reference(case, data)
    errors = random_configs.rms_errors(results, expected)
    of_outputs, smooth, kinked = TOLERANCE[dtype]
    gradients = {name: errors.pop(name) for name in list(errors) if name.startswith("d_")}
    assert all(error <= of_outputs for error in errors.values()), errors
    limit = kinked if random_configs.has_kinks(case) else smooth
    assert all(error <= limit for error in gradients.values()), gradients


@pytest.mark.parametrize(("name", "rates"), [("lstm", {}), ("lstm with zoneout", {"zoneout": 0.1})])
def test_is_what_runs(name, rates):
    config = RnnConfig("lstm", 1, 48, 5, **rates)
    inputs = tf.ones([3, 20, 5], tf.bfloat16)
    states = [tf.zeros([1, 20, 48], tf.bfloat16)] * 2
    ops.forward(config, inputs, states, tf.zeros([config.layout.size], tf.bfloat16))
    assert any(f"{name}, 48 units, bfloat16" in each for each in crnn.info()["gpu"]["kernels"])


def test_layers_of_a_stack_run_at_the_same_time():
    config = RnnConfig("gru", 3, 56, 5)
    inputs, states = tf.ones([3, 20, 5]), [tf.zeros([3, 20, 56])]
    ops.forward(config, inputs, states, tf.zeros([config.layout.size]), is_training=False)
    kernels = crnn.info()["gpu"]["kernels"]
    (division,) = [text for name, text in kernels.items() if "gru, 56 units" in name]
    assert division.startswith("layers at the same time, clusters of ")


@pytest.mark.parametrize("wrong", [-1, 7])
@pytest.mark.parametrize(
    "rnn_mode, layers", [("gru", 1), ("lstm", 2), ("rnn_tanh", 3), ("lstm_layer_norm", 2)]
)
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_lengths_out_of_range_on_the_device(rnn_mode, layers, direction, dtype, wrong):
    config = RnnConfig(rnn_mode, layers, 40, 5, direction=direction)
    check_lengths_out_of_range(config, dtype, wrong)


def check_lengths_out_of_range(config: RnnConfig, dtype: str, wrong: int) -> None:
    """The host does not know such lengths; all that depends on these sequences is NaN."""
    rng = np.random.default_rng(0)
    inputs = tf.constant(rng.standard_normal((6, 9, config.input_size)), dtype)
    states = [tf.zeros(shape, dtype) for shape in config.state_shapes(9, True)]
    params = tf.constant(rng.standard_normal(config.layout.size) * 0.2, dtype)
    others = [0, 1, 2, 3, 5, 6, 7, 8]

    def results_of(lengths):
        with tf.device("GPU:0"):
            lengths = tf.identity(tf.constant(lengths, tf.int64))
        with tf.GradientTape() as tape:
            tape.watch([inputs, params, *states])
            outputs, finals = ops.forward(
                config,
                inputs,
                states,
                params,
                sequence_lengths=lengths,
                seed=tf.constant([1, 2], tf.int64),
            )
        # A loss may depend on some of the results only, and not on those of the wrong sequence.
        gradients = tape.gradient(
            outputs, [inputs, params, *states], output_gradients=tf.ones_like(outputs)
        )
        of_sequences = [outputs, *finals, gradients[0], *gradients[2:]]
        return [value.numpy().astype("float32") for value in of_sequences], gradients[1].numpy()

    right = [6, 1, 0, 3, 6, 2, 5, 4, 6]
    expected, _ = results_of(right)
    received, of_params = results_of([*right[:4], wrong, *right[5:]])
    assert np.isnan(of_params.astype("float32")).all()
    for value, wanted in zip(received, expected, strict=True):
        assert np.isnan(value[:, 4]).all()
        np.testing.assert_array_equal(value[:, others], wanted[:, others])


def test_padding_is_not_read():
    config = RnnConfig("lstm", 1, 64, 16)
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 10, 16)).astype(np.float32)
    lengths = tf.constant([4, 9])
    states = [tf.zeros([2, 1, 64])] * 2
    params = tf.constant(rng.standard_normal(config.layout.size) * 0.2, tf.float32)

    def gradients_of(fill):
        inputs = data.copy()
        inputs[0, 4:], inputs[1, 9:] = fill, fill
        inputs = tf.constant(inputs)
        with tf.GradientTape() as tape:
            tape.watch([inputs, params])
            outputs, _ = ops.forward(
                config, inputs, states, params, sequence_lengths=lengths, time_major=False
            )
        return [outputs, *tape.gradient(outputs, [inputs, params])]

    for value, expected in zip(gradients_of(np.nan), gradients_of(0.0), strict=True):
        np.testing.assert_array_equal(value, expected)


HASH_OF_RESULTS = """
import hashlib
import tensorflow as tf
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
digest = hashlib.sha256()
for mode, layers, units, direction, dtype in (
    ("lstm", 1, 100, "bidirectional", tf.bfloat16), ("gru", 2, 40, "bidirectional", tf.float32),
    ("gru", 3, 56, "unidirectional", tf.float16), ("lstm", 1, 720, "unidirectional", tf.float32),
):
    config = RnnConfig(mode, layers, units, 9, direction=direction)
    x = tf.cast(tf.random.stateless_normal([7, 19, 9], [0, 1]), dtype)
    params = tf.cast(0.1 * tf.random.stateless_normal([config.layout.size], [2, 3]), dtype)
    states = [tf.ones(s, dtype) for s in config.state_shapes(19, True)]
    for lengths in (None, tf.constant([7, 0, 3, 1, 5, 2, 6, 4] * 2 + [1, 7, 0])):
        with tf.GradientTape() as tape:
            tape.watch([x, params, *states])
            y, finals = ops.forward(
                config, x, states, params, sequence_lengths=lengths, algorithm="persistent")
        results = [y, *finals, *tape.gradient([y, *finals], [x, params, *states])]
        results += ops.forward(
            config, x, states, params, sequence_lengths=lengths, algorithm="persistent",
            is_training=False)[0],
        for result in results:
            assert bool(tf.reduce_all(tf.math.is_finite(tf.cast(result, tf.float32))))
            digest.update(result.numpy().tobytes())
print(digest.hexdigest())
"""


def test_no_memory_is_read_before_it_is_written():
    expected = test_gpu.run_program(HASH_OF_RESULTS)
    assert test_gpu.run_program(HASH_OF_RESULTS, CUDNN_RNN_TF_POISON_SCRATCH="1") == expected


def as_function(
    case: random_configs.Case, data: random_configs.Data
) -> tf.types.experimental.GenericFunction:
    """Makes a function of both passes, since threads can confuse the tensors of eager ops."""
    inputs, params = tf.constant(data.inputs), tf.constant(data.params)
    states = [tf.constant(state) for state in data.states]
    gradients = [tf.constant(d) for d in (data.d_outputs, *data.d_states)]
    lengths = case.sequence_lengths

    @tf.function
    def both_passes():
        with tf.GradientTape() as tape:
            tape.watch([inputs, params, *states])
            outputs, finals = ops.forward(
                case.config,
                inputs,
                states,
                params,
                sequence_lengths=None if lengths is None else tf.constant(lengths, tf.int32),
                seed=tf.constant(data.seed),
                time_major=case.time_major,
                algorithm="persistent",
            )
        results = [outputs, *finals]
        return results + tape.gradient(results, [inputs, params, *states], gradients)

    return both_passes


def test_many_threads():
    """Several threads call with several shapes, and each call gets its own results."""
    cases = [large_case(np.random.default_rng(i), 3000 + i) for i in range(6)]
    cases += [large_case(np.random.default_rng(i), 3100 + i, most=True) for i in range(2)]
    functions = [as_function(case, random_configs.draw_data(case, "bfloat16")) for case in cases]

    def bits_of(function):
        return [tensor.numpy().tobytes() for tensor in function()]

    expected = [bits_of(function) for function in functions]

    def work(offset):
        order = [(i + offset) % len(functions) for i in range(100)]
        return [at for at in order if bits_of(functions[at]) != expected[at]]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert not [at for wrong in pool.map(work, range(4)) for at in wrong]
