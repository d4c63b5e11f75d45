"""Networks of all engines of a GPU, on a CPU that plays its part.

Results are compared with `reference`.

The fake GPU runs the package's kernels and takes its memory from the host. Plain loops take the
place of cuBLAS, and its cuDNN runs the kernels of single steps.
"""

import ctypes
import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import random_configs
import reference
from cxx import ROOT, activation_macros, cell_macro, compile_for_fake_device, compiled

from cudnn_rnn_tf.config import RnnConfig

# One worker of pytest-xdist runs all of them, so that what they share is compiled once.
pytestmark = pytest.mark.xdist_group("step_kernels")

MODES = ["lstm", "gru", "rnn_tanh", "rnn_relu", "gru_reset_before", "lstm_peephole"]
NORMALIZING = ["lstm_layer_norm", "gru_layer_norm"]
MODES += NORMALIZING
DTYPES = ["float64", "float32", "float16", "bfloat16"]
DIRECTIONS = ["unidirectional", "bidirectional"]
ENGINES = ["steps", "cudnn", "persistent", "teams"]
BIAS_MODES = ["none", "single_input", "single_recurrent", "double"]
# The largest root mean squares of errors, of outputs and states, and of gradients: a step rounds
# the states that it hands to the next one, and those gradients that products read.
TOLERANCE = {"float16": (2e-3, 1e-2), "bfloat16": (1.6e-2, 8e-2)}
# Errors relative to the largest number, where products of floats are in float16.
TOLERANCE_OF_HALVES = 4e-3


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> ctypes.CDLL:
    sources = [
        *sorted((ROOT / "kernels" / "gpu" / "persistent").glob("*.cc")),
        *(f"kernels/gpu/cudnn/{name}.cc" for name in ("network", "description")),
        *(f"kernels/gpu/{name}.cc" for name in ("device_limits", "product")),
        "kernels/rnn_backend.cc",
        *("kernels/param_layout.cc", "kernels/rnn_spec.cc"),
    ]
    path = compiled(
        tmp_path_factory.mktemp("network"), "network_on_fake_gpu", sources, "-shared", "-fPIC"
    )
    library = ctypes.CDLL(str(path))
    library.run_network.restype = library.persistent_error.restype = ctypes.c_char_p
    library.num_halved_products.restype = ctypes.c_int
    folder = tmp_path_factory.mktemp("persistent")

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
    def compile_kernel(kernel: bytes, path: bytes) -> None:
        name, *macros = kernel.decode().split()
        options = [f"-D{macro}" for macro in macros]
        options.append(f'-DKERNEL="{ROOT}/kernels/gpu/persistent/{name}.cu"')
        program = "persistent_on_fake_device"
        compile_for_fake_device(program, pathlib.Path(path.decode()), folder, *options)

    library.compile_kernel = compile_kernel  # The library calls it, so it must live as long.
    library.compile_persistent_kernels(compile_kernel, str(folder).encode())
    return library


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Compiles the kernels for a cell and a type, and returns the library's path.

    The activations are the cell's own, or those of a configuration.
    """
    folder = tmp_path_factory.mktemp("kernels")

    def path_of(rnn_mode: str, dtype: str, config: Any = None) -> pathlib.Path:
        has_zoneout = config is not None and config.has_zoneout
        macros = [cell_macro(rnn_mode, has_zoneout), *activation_macros(config)]
        path = folder / f"{dtype}{''.join(macros)}.so"
        if path.exists():
            return path
        options = [f"-DIS_{dtype.upper() if dtype != 'float32' else 'FLOAT'}", *macros]
        options += ["-Werror", *["-DNORMALIZES"] * (rnn_mode in NORMALIZING)]
        compile_for_fake_device("steps_on_fake_device", path, folder, *options)
        return path

    return path_of


def padding_of(case: random_configs.Case) -> np.ndarray:
    """Returns where steps are past the sequences' ends, [T, B, 1] or [B, T, 1]."""
    lengths = case.sequence_lengths or [case.max_time] * case.batch_size
    padding = np.arange(case.max_time)[:, None] >= np.asarray(lengths)
    return (padding if case.time_major else padding.T)[..., None]


def unaligned(array: np.ndarray) -> np.ndarray:
    """Returns a copy that begins one number past where arrays usually begin."""
    copy = np.empty(array.size + 1, array.dtype)[1:].reshape(array.shape)
    copy[...] = array
    return copy


def run(
    network: ctypes.CDLL,
    library: pathlib.Path,
    case: random_configs.Case,
    data: random_configs.Data,
    dtype: str,
    allow_tf32: bool = False,
    lengths_on_device: bool = False,
    engine: str = "steps",
    seed: np.ndarray | None = None,
    other_layout: tuple[int, int] = (0, 0),
    has_d_inputs: bool = True,
) -> random_configs.Results:
    config = case.config
    numbers = [
        *(MODES.index(config.rnn_mode), config.num_layers, config.num_units, config.input_size),
        *(config.num_proj, config.input_mode == "skip_input", DIRECTIONS.index(config.direction)),
        *(BIAS_MODES.index(config.bias_mode), DTYPES.index(dtype), case.max_time),
        *(case.batch_size, case.time_major, case.is_training, allow_tf32, lengths_on_device),
        *(ENGINES.index(engine), *other_layout),
    ]
    rates = [config.dropout, config.recurrent_dropout, config.cell_clip, config.layer_norm_epsilon]
    rates += [config.zoneout, config.cell_zoneout]
    padding = padding_of(case)

    def unread(array: np.ndarray) -> np.ndarray:
        return np.where(padding, array.dtype.type(np.nan), array)

    is_lstm = config.rnn_mode in reference.LSTMS
    d_states = list(data.d_states)
    # The op returns c as it is, and its caller limits it.
    bound = data.inputs.dtype.type(np.float32(config.cell_clip) or np.inf)
    cells = d_cells = None
    if is_lstm:

        def limited(d: np.ndarray, c: np.ndarray) -> np.ndarray:
            return np.where(np.abs(c) < bound, d, d.dtype.type(0))

        expected, _ = random_configs.run_reference(case, data)
        d_states[1] = limited(d_states[1], expected.states[1])
        if case.has_cell_sequences:
            d_cells = unread(limited(data.d_cells[0], expected.cells))
            cells = np.full_like(d_cells, np.nan)
    given = [unaligned(unread(data.inputs)), *data.states, *[None] * (not is_lstm), data.params]
    d_given = [unread(data.d_outputs), *d_states, *[None] * (not is_lstm)]
    results, d_results = (
        [None if array is None else np.full_like(array, np.nan) for array in like]
        for like in ([d_given[0], *given[1:3]], given)
    )
    d_results[0] = unaligned(d_results[0]) if has_d_inputs else None
    tensors = [*given, *results, *d_given, *d_results, cells, d_cells]
    lengths = None
    if case.sequence_lengths is not None:
        lengths = np.array(case.sequence_lengths, np.int64 if lengths_on_device else np.int32)
    resets = case.resets
    message = network.run_network(
        str(library).encode(),
        (ctypes.c_int64 * len(numbers))(*numbers),
        (ctypes.c_float * len(rates))(*rates),
        None if lengths is None else ctypes.c_void_p(lengths.ctypes.data),
        None if resets is None else ctypes.c_void_p(resets.ctypes.data),
        ctypes.c_void_p((data.seed if seed is None else seed).ctypes.data),
        (ctypes.c_void_p * len(tensors))(*(t if t is None else t.ctypes.data for t in tensors)),
    )
    if message:
        raise NotImplementedError(message.decode())
    kinds = 1 + is_lstm
    if is_lstm:
        results[2] = np.clip(results[2], -bound, bound)
        cells = cells if cells is None else np.clip(cells, -bound, bound)
    return random_configs.Results(
        results[0],
        tuple(results[1 : 1 + kinds]),
        d_results[0],
        tuple(d_results[1 : 1 + kinds]),
        d_results[3],
        () if cells is None else (cells,),
    )


def supported(case: random_configs.Case) -> random_configs.Case:
    """Returns the case, or every third one with recurrent dropout, which excludes projections.

    Some other cases project to as many units as there are.
    """
    config = case.config
    if case.index % 3 == 0:
        case = random_configs.with_recurrent_dropout(case)
        config = dataclasses.replace(case.config, num_proj=0)
    elif config.num_proj and case.index % 3 == 1:
        config = dataclasses.replace(config, num_proj=config.num_units)
    return dataclasses.replace(case, config=config)


def of_passes(case: random_configs.Case, errors: dict[str, float]) -> dict[str, float]:
    """Leaves out the gradients, which only training has."""
    return {
        name: error
        for name, error in errors.items()
        if case.is_training or not name.startswith("d_")
    }


# Kernels with other activations have a test of their own, as each pair of them is compiled anew.
OF_ACTIVATIONS = {"activation": "", "recurrent_activation": ""}
CASES = random_configs.with_resets(
    supported(dataclasses.replace(case, config=dataclasses.replace(case.config, **OF_ACTIVATIONS)))
    for case in random_configs.random_cases(160, seed=31)
    if case.config.num_units < 42
)
CASES = random_configs.with_cell_sequences(CASES)
PROJECTED = ("lstm", "lstm_peephole")
# Both kinds of GRUs, and of LSTMs that may be projected, run every case of one of them.
CASES += [
    dataclasses.replace(case, config=dataclasses.replace(case.config, rnn_mode=other))
    for case in CASES
    for pair in (("gru", "gru_reset_before"), PROJECTED)
    for mode, other in (pair, pair[::-1])
    if case.config.rnn_mode == mode
]
CASES += random_configs.layer_normalized(CASES)[::2]
CASES += random_configs.with_zoneout(case for case in CASES if "rnn" not in case.config.rnn_mode)[
    ::3
]

# In the half types, rounding may move a number to the other side of a kink. Cases with one or two
# units are left out too, since their rounded gradients of gates may cancel to less than their
# rounding errors.
HALF_CASES = [
    case
    for case in CASES
    if min(case.config.num_units, case.config.num_proj or 3) > 2
    and case.config.rnn_mode != "rnn_relu"
    and not case.config.cell_clip
]
HALF_CASES = HALF_CASES[:40] + random_configs.with_zoneout(HALF_CASES)[:12]


def test_cases_cover_what_only_single_steps_run():
    training = [case for case in CASES if case.is_training]
    for mode in PROJECTED:
        lstms = [case.config for case in training if case.config.rnn_mode == mode]
        assert any(config.num_proj and config.cell_clip for config in lstms)
        assert any(config.num_proj and config.direction == "bidirectional" for config in lstms)
        assert any(config.cell_clip and config.recurrent_dropout for config in lstms)
        assert any(config.num_proj == config.num_units for config in lstms)
    assert any(not case.is_training and case.config.num_proj for case in CASES)
    grus = [case.config for case in training if case.config.rnn_mode == "gru_reset_before"]
    assert any(c.recurrent_dropout and c.direction == "bidirectional" for c in grus)
    assert any(not c.recurrent_dropout and c.num_layers > 1 for c in grus)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", random_configs.mostly_slow(CASES, one_of=3), ids=str)
def test_agrees_with_the_reference(case, dtype, network, kernels):
    # Rounding to float16 might move a cell's state over the clip.
    allow_tf32 = case.index % 2 == 0 and not case.config.cell_clip
    check_floats(case, dtype, network, kernels, allow_tf32, case.index % 3 == 0)
    config = case.config
    is_halved = dtype == "float32" and allow_tf32
    is_halved &= config.rnn_mode not in ("rnn_relu", "gru_reset_before", *NORMALIZING)
    is_halved &= not (case.is_training and config.recurrent_dropout)
    assert (network.num_halved_products() > 0) == is_halved


def check_floats(case, dtype, network, kernels, allow_tf32, lengths_on_device=False) -> None:
    data, expected = random_configs.draw_smooth_data(case, dtype)
    library = kernels(case.config.rnn_mode, dtype, case.config)
    options = {"allow_tf32": allow_tf32, "lengths_on_device": lengths_on_device}
    results = run(network, library, case, data, dtype, **options)
    check_errors(case, dtype, network, results, expected)


def check_errors(case, dtype, network, results, expected) -> None:
    is_halved = network.num_halved_products() > 0
    tolerance = TOLERANCE_OF_HALVES if is_halved else random_configs.TOLERANCE[dtype]
    for name, error in of_passes(case, random_configs.errors(results, expected, dtype)).items():
        assert error <= tolerance, (name, error)


def draw_persistent(
    rnn_mode: str, has_resets: bool, has_cells: bool, has_zoneout: bool, number: int
) -> random_configs.Case:
    """Draws a network of the persistent kernels, of few sizes, so that few are compiled."""
    rng = np.random.default_rng([number, 77])
    units, steps, batch = 22, int(rng.integers(1, 7)), 9
    skips = number % 4 == 1
    projects = rnn_mode in PROJECTED and not has_zoneout
    config = RnnConfig(
        *(rnn_mode, int(rng.integers(1, 4)), units, units if skips else 5),
        input_mode="skip_input" if skips else "linear_input",
        direction=DIRECTIONS[int(rng.integers(2))],
        bias_mode=BIAS_MODES[int(rng.integers(4))],
        dropout=float(rng.choice([0.0, 0.3])),
        num_proj=int(rng.choice([0, 9, units])) if projects else 0,
        zoneout=0.3 * has_zoneout,
        cell_zoneout=0.4 * (has_zoneout and rnn_mode == "lstm"),
    )
    lengths = tuple(int(length) for length in rng.integers(0, steps + 1, batch))
    time_major, is_training = bool(rng.integers(2)), number % 4 < 3
    case = random_configs.Case(number, config, steps, batch, time_major, is_training, None)
    return dataclasses.replace(
        case,
        sequence_lengths=lengths if number % 3 else None,
        has_resets=has_resets,
        has_cell_sequences=has_cells,
    )


@pytest.mark.parametrize(
    ("rnn_mode", "dtype", "allow_tf32", "has_resets", "has_cells", "has_zoneout"),
    [
        ("lstm", "float32", False, True, True, False),
        pytest.param("lstm", "float32", True, False, False, False, marks=pytest.mark.slow),
        pytest.param("gru", "float16", False, True, False, False, marks=pytest.mark.slow),
        pytest.param(
            "lstm_peephole", "bfloat16", *(False, False, True, False), marks=pytest.mark.slow
        ),
        ("lstm_layer_norm", "float32", True, True, True, False),
        pytest.param("gru_layer_norm", "float32", *[False] * 4, marks=pytest.mark.slow),
        ("lstm", "float32", True, True, True, True),
        pytest.param("gru", "float32", False, False, False, True, marks=pytest.mark.slow),
        pytest.param(
            "lstm_peephole", "float16", *(False, False, True, True), marks=pytest.mark.slow
        ),
    ],
)
def test_networks_of_persistent_kernels(
    rnn_mode, dtype, allow_tf32, has_resets, has_cells, has_zoneout, network, kernels
):
    """What is around the steps, which test_persistent_kernels.py tries by themselves."""
    for number in range(12):
        case = draw_persistent(rnn_mode, has_resets, has_cells, has_zoneout, number)
        library = kernels(rnn_mode, dtype, case.config)
        check_means(network, library, case, dtype, allow_tf32)


def check_means(network, library, case, dtype, allow_tf32, engine="persistent") -> None:
    data = random_configs.draw_data(case, dtype)
    results = run(network, library, case, data, dtype, allow_tf32, engine=engine)
    expected = random_configs.run_reference(case, data)[1]
    tolerances = TOLERANCE.get(dtype, (TOLERANCE_OF_HALVES if allow_tf32 else 1e-5,) * 2)
    for name, error in of_passes(case, random_configs.rms_errors(results, expected)).items():
        assert error <= tolerances[name.startswith("d_")], (str(case), name, error)


@pytest.mark.parametrize("rnn_mode", ["lstm", "gru"])
@pytest.mark.parametrize("engine", ["steps", "cudnn", "persistent"])
def test_without_d_inputs_other_gradients_are_the_same(engine, rnn_mode, network, kernels):
    """Few inputs, many, so many that layers above make room for them, and more than that."""
    of_halves = [2**17 // 88 + 3] * ((engine, rnn_mode) == ("persistent", "lstm"))
    for number, input_size in enumerate([5, 40, 150, 700] * 3 + of_halves):
        case = draw_persistent(rnn_mode, False, False, False, 4 * number)
        options = {"direction": DIRECTIONS[number // 4 % 2 == 0], "num_proj": 0}
        config = dataclasses.replace(case.config, input_size=input_size, **options)
        case, library = dataclasses.replace(case, config=config), kernels(rnn_mode, "float32")
        given = network, library, case, random_configs.draw_data(case, "float32"), "float32"
        results, others = (
            run(*given, allow_tf32=number % 2 == 0, engine=engine, has_d_inputs=has_d_inputs)
            for has_d_inputs in (True, False)
        )
        for name in ("d_states", "d_params"):
            np.testing.assert_array_equal(getattr(others, name), getattr(results, name), str(case))


def test_a_block_of_a_team_may_end_before_another_has_read_the_first_states(network, kernels):
    """In a single step, blocks of a team that is no cluster do not wait for each other."""
    for index in range(4):
        config = RnnConfig("lstm", 1, 22, 5, num_proj=9)
        case = random_configs.Case(index, config, 1, 9, True, True, None)
        check_means(network, kernels("lstm", "float32"), case, "float32", False, "teams")


@pytest.mark.parametrize(
    ("rnn_mode", "with_lengths", "num_units"),
    [
        *(("lstm", False, 40), ("lstm", True, 368), ("gru", False, 432)),
        *((mode, place % 2 == 0, 40) for place, mode in enumerate([*MODES, "projected", "masked"])),
    ],
)
def test_products_over_all_steps_in_float16(rnn_mode, with_lengths, num_units, network, kernels):
    """They are where a matrix is large: here that of the inputs, and so many units have room."""
    mode = "lstm" if rnn_mode in ("projected", "masked") else rnn_mode
    options = {"num_proj": 24 * (rnn_mode == "projected")}
    options["recurrent_dropout"] = 0.3 * (rnn_mode == "masked")
    input_size = 2**17 // (num_units * reference.NUM_GATES[mode]) + 3
    config = RnnConfig(
        mode, 2, num_units, input_size, direction=DIRECTIONS[with_lengths], **options
    )
    lengths = (4, 0, 2) if with_lengths else None
    case = random_configs.Case(8000, config, 4, 3, not with_lengths, True, lengths)
    check_floats(case, "float32", network, kernels, allow_tf32=True)
    assert network.num_halved_products() > 0


@pytest.mark.parametrize(("rnn_mode", "num_proj"), [("lstm", 0), ("lstm", 4), ("gru", 0)])
@pytest.mark.parametrize("is_large", [False, True])
def test_products_in_float16_have_the_range_of_floats(
    is_large, rnn_mode, num_proj, network, kernels
):
    """Sequences, and rows of matrices, are orders of magnitude apart, and each is as exact."""
    input_size = 2**17 // (8 * reference.NUM_GATES[rnn_mode]) + 3 if is_large else 5
    options = {"direction": "bidirectional", "bias_mode": "none", "num_proj": num_proj}
    config = RnnConfig(rnn_mode, 1, 8, input_size, **options)
    case = random_configs.Case(8001, config, 3, 5, True, True, None)
    data = random_configs.draw_data(case, "float32")
    # A GRU's h keeps the power of its first h.
    of_inputs, of_states, of_gradients = np.float32(
        [
            [1e-12, 1e8, 1, 1e-3, 0],
            [1e30 if rnn_mode == "lstm" else 1e2, 1e-12, 1, 0, 1],
            [1e-25, 1e6, 1, 1e-10, 1],
        ]
    )[..., None]
    # Matrices that small leave gates unsaturated, some of whose rows are zero.
    weights = np.float32(1e-8) * data.params.reshape(2, -1)
    weights[:, : 3 * input_size] = 0.0
    data = data._replace(
        inputs=data.inputs * of_inputs,
        states=(data.states[0] * of_states, *data.states[1:]),
        params=weights.ravel(),
        d_outputs=data.d_outputs * of_gradients,
        d_states=tuple(gradient * of_gradients for gradient in data.d_states),
    )
    expected = random_configs.run_reference(case, data)[1].named()
    library = kernels(rnn_mode, "float32")
    results = run(network, library, case, data, "float32", allow_tf32=True).named()
    assert network.num_halved_products() > (6 if is_large else 0)
    for name, value in results.items():
        assert np.isfinite(value).all(), name
        for b in range(5 if value.ndim == 3 else 1):  # The parameters have no sequences.
            own = (..., b, slice(None)) if value.ndim == 3 else ...
            error = random_configs.rms_error(value[own], expected[name][own])
            assert error <= TOLERANCE_OF_HALVES, (name, b, error)


@pytest.mark.parametrize(
    ("rnn_mode", "dtype", "activation", "recurrent_activation"),
    [
        ("lstm", "float32", "relu", "hard_sigmoid"),
        ("lstm_peephole", "float64", "softsign", "keras_2_hard_sigmoid"),
        ("gru", "float32", "elu", "sigmoid"),
        ("gru_reset_before", "float64", "linear", "softsign"),
        ("rnn_tanh", "float32", "hard_sigmoid", ""),
    ],
)
def test_activations(rnn_mode, dtype, activation, recurrent_activation, network, kernels):
    of_mode = [case for case in CASES if case.config.rnn_mode == rnn_mode and case.is_training]
    for case in of_mode[:6]:
        config = dataclasses.replace(
            case.config, activation=activation, recurrent_activation=recurrent_activation
        )
        case = dataclasses.replace(case, config=config)
        check_floats(case, dtype, network, kernels, allow_tf32=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", HALF_CASES, ids=str)
def test_half_types_agree_with_the_reference(case, network, kernels):
    """Kernels of every second cell are compiled for float16, the others for bfloat16."""
    dtype = [*TOLERANCE][MODES.index(case.config.rnn_mode) % 2]
    library = kernels(case.config.rnn_mode, dtype, case.config)
    check_means(network, library, case, dtype, allow_tf32=False, engine="steps")


@pytest.mark.parametrize(
    ("rnn_mode", "max_time", "lengths"),
    [(mode, 72, range(0, 64, 8)) for mode in MODES] + [("gru", 293, (*range(6), 293))],
)
def test_gradients_over_many_steps(rnn_mode, max_time, lengths, network, kernels):
    """The sums over steps are then divided into parts: 9 for 576 steps, 4 for 2051, 3 are left."""
    case = next(case for case in CASES if case.config.input_mode == "linear_input")
    config = dataclasses.replace(case.config, rnn_mode=rnn_mode, num_units=20)
    sizes = {"max_time": max_time, "batch_size": len(lengths)}
    case = dataclasses.replace(case, config=config, sequence_lengths=tuple(lengths), **sizes)
    check_floats(case, "float32", network, kernels, allow_tf32=False)


@pytest.mark.parametrize("wrong", [-1, 6])
def test_a_length_out_of_range_on_the_device(wrong, network, kernels):
    """The outputs of this sequence are NaN, and other sequences are not affected."""
    case = next(case for case in CASES if case.index == 0)
    config = dataclasses.replace(
        case.config, rnn_mode="gru", num_layers=1, dropout=0.0, direction="bidirectional"
    )
    right = (5, 0, 3, 1)
    case = dataclasses.replace(case, config=config, max_time=5, batch_size=4, time_major=True)
    case = dataclasses.replace(case, sequence_lengths=right)
    data = random_configs.draw_data(case, "float32")
    library = kernels("gru", "float32")
    expected = run(network, library, case, data, "float32", lengths_on_device=True)
    case = dataclasses.replace(case, sequence_lengths=(5, 0, wrong, 1))
    results = run(network, library, case, data, "float32", lengths_on_device=True)
    assert np.isnan(results.outputs[:, 2]).all()
    others = [0, 1, 3]
    np.testing.assert_array_equal(results.outputs[:, others], expected.outputs[:, others])
    for name in ("states", "d_states"):
        np.testing.assert_array_equal(
            getattr(results, name)[0][:, others], getattr(expected, name)[0][:, others]
        )


# cuDNN lacks recurrent dropout, resets, cell sequences, projections to as many units, and some
# cells.
OF_CUDNN = [
    dataclasses.replace(case, has_resets=False, has_cell_sequences=False)
    for case in CASES
    if not case.config.recurrent_dropout
    and case.config.layout.is_in_cudnn
    and case.config.num_proj != case.config.num_units
]


def seed_of_cudnn(seed: np.ndarray) -> np.ndarray:
    """Mixes the two seeds into the one that cuDNN gets, as splitmix64's finalizer does."""

    def mix(x: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> shift)) * factor % 2**64
        return x ^ (x >> 31)

    first, second = (int(word) % 2**64 for word in seed)
    mixed = mix((mix((first + 0x9E3779B97F4A7C15) % 2**64) + second) % 2**64)
    return np.array([mixed, 0], np.uint64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", random_configs.mostly_slow(OF_CUDNN, one_of=4), ids=str)
def test_passes_of_cudnn_agree_with_the_reference(case, dtype, network, kernels):
    """Data are described to cuDNN, brought into its order, and back."""
    for attempt in range(20):
        data = random_configs.draw_data(case, dtype, attempt)
        seed, data = data.seed, data._replace(seed=seed_of_cudnn(data.seed))
        reference_run, expected = random_configs.run_reference(case, data)
        if reference_run.margin > 1e-5:
            break
    allow_tf32 = case.index % 2 == 0 and not case.config.cell_clip
    options = {"allow_tf32": allow_tf32, "engine": "cudnn", "seed": seed}
    library = kernels(case.config.rnn_mode, dtype)
    results = run(network, library, case, data, dtype, **options)
    check_errors(case, dtype, network, results, expected)


@pytest.mark.parametrize(
    "other_layout, named",
    [((1, 0), "its size in bytes is"), ((0, 1), "the first byte of layer_0_forward_")],
)
def test_another_layout_of_cudnn_is_an_error(other_layout, named, network, kernels):
    case = next(case for case in OF_CUDNN if case.config.bias_mode == "double")
    data = random_configs.draw_data(case, "float32")
    options = {"engine": "cudnn", "other_layout": other_layout}
    with pytest.raises(NotImplementedError, match=named):
        run(network, kernels(case.config.rnn_mode, "float32"), case, data, "float32", **options)


@pytest.mark.parametrize("units", [1, 3, 4, 7, 8, 64])
def test_persistent_kernels_count_the_padding_in_an_int(units, network):
    """A block has up to seven units more than the layer, and counts four slots of each."""
    steps = 2**31 // (4 * (units + 7))

    def error(steps: int) -> bytes:
        return network.persistent_error(ctypes.c_int64(units), ctypes.c_int64(steps))

    assert b"as many steps" in error(steps)
    assert error(steps // 4) == b""


def test_what_cannot_run_is_an_error(network, kernels):
    case = CASES[0]
    config = dataclasses.replace(
        case.config, rnn_mode="lstm", num_proj=2, recurrent_dropout=0.1, dropout=0.0
    )
    case = dataclasses.replace(case, config=config, is_training=True)
    data = random_configs.draw_data(case, "float32")
    message = "persistent cannot run projections with recurrent dropout"
    with pytest.raises(NotImplementedError, match=message):
        run(network, kernels("lstm", "float32"), case, data, "float32")


@pytest.mark.parametrize("engine", ["steps", "persistent"])
def test_what_zoneout_keeps_stays_exactly_as_it_was(engine, network, kernels):
    config = RnnConfig("lstm", 1, 7, 5, zoneout=0.99999, cell_zoneout=0.99999)
    case = random_configs.Case(1, config, 6, 3, True, True, None)
    data = random_configs.draw_data(case, "float32")
    library = kernels("lstm", "float32", config)
    results = run(network, library, case, data, "float32", engine=engine)
    np.testing.assert_array_equal(results.outputs, np.broadcast_to(data.states[0], (6, 3, 7)))
    np.testing.assert_array_equal(results.states[1], data.states[1])
