"""Tests `accelerate`, after which fused ops run the recurrent layers of an existing model."""

import keras
import numpy as np
import pytest
import reference_masks

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins

layers = keras.layers
DROP_INS = (drop_ins.LSTM, drop_ins.GRU, drop_ins.SimpleRNN, drop_ins.Bidirectional)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def sequential() -> tuple[keras.Model, np.ndarray]:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Embedding(7, 3, mask_zero=True),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True, dropout=0.1, seed=1)),
            layers.GRU(5, return_sequences=True, seed=2, dropout=0.1),
            layers.SimpleRNN(2, activation="relu"),
        ]
    )
    return model, np.random.default_rng(0).integers(0, 7, (5, 6))


def stacked() -> tuple[keras.Model, np.ndarray]:
    """Returns a model with three stacks in a row, and a layer above that belongs to none."""
    model = keras.Sequential([keras.Input((6,)), layers.Embedding(7, 3, mask_zero=True)])
    for _ in range(2):
        model.add(layers.Bidirectional(layers.LSTM(4, return_sequences=True)))
    for _ in range(3):
        model.add(layers.GRU(5, return_sequences=True, reset_after=True))
    model.add(layers.SimpleRNN(3, return_sequences=True, use_bias=False))
    regularizer = keras.regularizers.L2(0.1)
    model.add(layers.SimpleRNN(3, use_bias=False, recurrent_regularizer=regularizer))
    model.add(layers.Dense(2))
    return model, np.random.default_rng(0).integers(0, 7, (5, 6))


def branched() -> tuple[keras.Model, np.ndarray]:
    """Returns a model with a stack under an unpadded mask, and layers that are no stack."""
    inputs = keras.Input((6, 4))
    x = layers.Masking(7.0)(inputs)
    for name in ("first", "second", "third"):
        x = layers.LSTM(4, return_sequences=True, name=name)(x)
    # This layer's outputs are read twice.
    y = layers.GRU(4, return_sequences=True, name="read")(x)
    z = layers.GRU(4, return_sequences=True, name="reader")(y)
    z = layers.GRU(4, return_sequences=True, name="other_units_follow")(z)
    z = layers.GRU(5, return_sequences=True, name="dropped", dropout=0.1, seed=1)(z)
    z = layers.GRU(5, name="ends")(z)
    pooled = layers.GlobalAveragePooling1D()(y)
    model = keras.Model(inputs, layers.Concatenate()([z, pooled]))
    values = draw(5, 6, 4)
    values[0, 2] = values[1, 0] = values[2, 4:] = 7.0
    return model, values


def functional() -> tuple[keras.Model, np.ndarray]:
    """Returns a model with a nested model, a shared layer, states, wrappers and unfused layers."""
    inputs = keras.Input((6, 4))
    shared = layers.LSTM(4, return_sequences=True, name="shared")
    nested = keras.Sequential(
        [
            keras.Input((6, 4)),
            layers.GRU(4, return_sequences=True, name="nested"),
            layers.GRU(4, return_sequences=True, activation="selu", name="old"),
        ]
    )
    x, *states = layers.LSTM(4, return_sequences=True, return_state=True, name="first")(inputs)
    x = shared(nested(shared(x, initial_state=states)))
    x = layers.Reshape((6, 2, 2))(x)
    x = layers.TimeDistributed(layers.SimpleRNN(3, name="inside"))(x)
    x = layers.RNN(layers.LSTMCell(3), name="cell")(x)
    return keras.Model(inputs, layers.Lambda(lambda x: 2 * x)(x)), draw(5, 6, 4)


def recurrent_types(model: keras.Model) -> list[type]:
    found = []
    for layer in model.layers:
        if isinstance(layer, (keras.Model, drop_ins.Stack)):
            found += recurrent_types(layer)
        elif isinstance(layer, (layers.RNN, layers.Bidirectional)):
            found.append(type(layer))
        elif isinstance(layer, layers.TimeDistributed):
            found.append(type(layer.layer))
    return found


def test_the_copy_computes_and_learns_what_the_model_does():
    model, inputs = sequential()
    # Both run eagerly, which is quicker than making their graphs.
    options = {"jit_compile": False, "run_eagerly": True}
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    targets = draw(len(inputs), model.output_shape[-1])
    model.fit(inputs, targets, verbose=0)
    fast = crnn.accelerate(model)
    fast.run_eagerly = True
    assert [variable.name for variable in fast.weights] == [v.name for v in model.weights]
    assert fast.optimizer is not model.optimizer
    for received, expected in zip(fast.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(received, expected)
    np.testing.assert_allclose(
        fast.predict(inputs, verbose=0), model.predict(inputs, verbose=0), atol=1e-5
    )
    # Dropout is the same, because its masks come from the seeds' states.
    histories = [
        each.fit(inputs, targets, epochs=2, shuffle=False, verbose=0).history
        for each in (fast, model)
    ]
    for name, expected in histories[1].items():
        np.testing.assert_allclose(histories[0][name], expected, rtol=1e-4)
    for received, expected in zip(fast.weights, model.weights, strict=True):
        np.testing.assert_allclose(received, expected, atol=1e-4)
    # The model itself still has Keras's layers.
    assert not any(issubclass(kind, DROP_INS) for kind in recurrent_types(model))


def outcomes(model: keras.Model) -> dict[str, str]:
    return {layer.name: layer.outcome for layer in crnn.acceleration_report(model).layers}


def test_the_report_and_the_layers_agree():
    model, _ = sequential()
    fast = crnn.accelerate(model)
    assert recurrent_types(fast) == [drop_ins.Bidirectional, drop_ins.GRU, drop_ins.SimpleRNN]
    assert type(fast.layers[1].backward_layer) is drop_ins.LSTM
    report = crnn.acceleration_report(fast)
    assert [layer.kind for layer in report.layers] == ["Bidirectional", "GRU", "SimpleRNN"]
    assert [layer.name for layer in report.layers] == [layer.name for layer in fast.layers[1:]]
    assert "in two ops: dropout of 'forward_lstm" in report.layers[0].outcome
    assert [layer.outcome for layer in report.layers[1:]] == ["runs fused"] * 2
    model, _ = functional()
    fast = crnn.accelerate(model)
    report = crnn.acceleration_report(fast)
    assert {layer.name.rpartition("/")[2]: layer.replaced for layer in report.layers} == {
        "first": True,
        "shared": True,
        "nested": True,
        "old": False,
        "inside": True,
        "cell": True,
    }
    for layer in report.layers:
        assert layer.outcome.startswith("runs fused" if layer.replaced else "left: ")
    nested = next(layer.name for layer in fast.layers if isinstance(layer, keras.Sequential))
    assert "activation='selu'" in outcomes(fast)[f"{nested}/old"]
    assert recurrent_types(fast) == [
        drop_ins.LSTM,
        drop_ins.LSTM,
        drop_ins.GRU,
        layers.GRU,
        drop_ins.SimpleRNN,
        drop_ins.RNN,
    ]


def test_a_report_of_a_model_that_was_not_accelerated():
    model, _ = functional()
    reasons = outcomes(model)
    assert reasons["first"] == reasons["cell"] == "left: accelerate was not called"
    own = keras.Sequential([keras.Input((5, 3)), crnn.CudnnLSTM(1, 2, name="own")])
    assert outcomes(own) == {"own": "left: it is this package's already"}
    none = keras.Sequential([keras.Input((3,)), layers.Dense(1)], name="none")
    assert repr(crnn.acceleration_report(none)) == "Recurrent layers of model 'none': none"
    with pytest.raises(TypeError, match="expected model to be a Keras model, but received LSTM"):
        crnn.acceleration_report(layers.LSTM(2))


def test_stacks():
    model, _ = stacked()
    fast = crnn.accelerate(model)
    names = [layer.name for layer in model.layers]
    assert outcomes(fast)[names[1]] == f"runs fused, in one op with {names[2]!r}"
    assert [
        (type(layer).__name__, [len(layer.layers)] if isinstance(layer, drop_ins.Stack) else [])
        for layer in fast.layers
    ] == [("Embedding", []), ("Stack", [2]), ("Stack", [3]), ("Stack", [2]), ("Dense", [])]
    assert [layer.name for layer in fast.layers[1:]] == [
        model.layers[index].name for index in (2, 5, 7, 8)
    ]
    assert all(layer.runs_fused for layer in fast.layers if isinstance(layer, drop_ins.Stack))
    plain = crnn.accelerate(model, stacks=False)
    assert [layer.name for layer in plain.layers] == [layer.name for layer in model.layers]
    model, _ = branched()
    fast = crnn.accelerate(model)
    assert {
        layer.name: [part.name for part in layer.layers]
        for layer in fast.layers
        if isinstance(layer, drop_ins.Stack)
    } == {
        "third": ["first", "second", "third"],
        "other_units_follow": ["reader", "other_units_follow"],
    }


def with_dropout(rates: list[float]) -> keras.Model:
    model = keras.Sequential([keras.Input((6, 3))])
    for rate in rates:
        model.add(layers.LSTM(4, return_sequences=True))
        if rate is not None:
            model.add(layers.Dropout(rate))
    model.add(layers.LSTM(4))
    model.add(layers.Dropout(0.1))
    return model


@pytest.mark.parametrize(
    "rates, sizes",
    [
        ([0.2], [3]),
        ([0.2, 0.2], [5]),
        ([0.0, None], [4]),
        ([0.2, 0.3], [3]),
        ([0.2, None], [3]),
        ([None, 0.2], [2]),
        ([None, 0.2, 0.2, None], [2, 3]),
        ([1.0], []),
    ],
)
def test_dropout_of_one_rate_is_part_of_a_stack(rates, sizes):
    model = with_dropout(rates)
    inputs = draw(5, 6, 3)
    fast = crnn.accelerate(model)
    stacks = [layer for layer in fast.layers if isinstance(layer, drop_ins.Stack)]
    assert [len(stack.layers) for stack in stacks] == sizes
    assert isinstance(fast.layers[-1], layers.Dropout)
    np.testing.assert_allclose(fast(inputs), model(inputs), atol=1e-6)
    for received, expected in zip(fast.variables, model.variables, strict=True):
        np.testing.assert_array_equal(received, expected)
    lines = list(outcomes(fast).values())
    for line in lines:
        assert not ("with other masks" in line and sizes == [])
    if sizes == [5]:
        dropouts = [repr(layer.name) for layer in model.layers if type(layer) is layers.Dropout]
        assert lines[0].endswith(f"and {', '.join(dropouts[:2])} between them with other masks")
        fast.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
        before = [variable.numpy() for variable in fast.trainable_variables]
        fast.fit(inputs, draw(5, 4), verbose=0)
        for variable, value in zip(fast.trainable_variables, before, strict=True):
            assert not np.array_equal(variable, value)


def test_dropout_in_a_functional_model():
    """If another layer also reads its input or its output, a dropout layer is in no stack."""
    inputs = keras.Input((6, 4))
    x = layers.GRU(4, return_sequences=True, name="first")(inputs)
    x = layers.Dropout(0.3, name="inner")(x)
    x = layers.GRU(4, return_sequences=True, name="second")(x)
    y = layers.Dropout(0.3, name="read")(x)
    z = layers.GRU(4, name="third")(y)
    model = keras.Model(inputs, [z, y])
    fast = crnn.accelerate(model)
    stack = fast.get_layer("second")
    assert [layer.name for layer in stack.layers] == ["first", "inner", "second"]
    values = draw(5, 6, 4)
    for received, expected in zip(fast(values), model(values), strict=True):
        np.testing.assert_allclose(received, expected, atol=1e-6)


@pytest.mark.usefixtures("on_cpu")
def test_dropout_in_a_stack_is_what_dropout_between_its_layers_would_be(tmp_path):
    """The masks are the op's: they differ from call to call, and the same seed repeats them."""
    parts = [drop_ins.GRU(4, return_sequences=True, dtype="float64") for _ in range(3)]
    dropouts = [layers.Dropout(0.4, seed=seed, dtype="float64") for seed in (5, 6)]
    stack = drop_ins.Stack([parts[0], dropouts[0], parts[1], dropouts[1], parts[2]])
    inputs = draw(5, 6, 3).astype("float64")
    stack.build(inputs.shape)
    for _ in range(2):
        seed = np.asarray(dropouts[0].seed_generator.state, np.int64)
        received = stack(inputs, training=True)
        expected = inputs
        for index, part in enumerate(parts):
            if index:
                mask = reference_masks.dropout_mask(seed, index - 1, 0.4, (6, 5, 4))
                expected = expected * mask.swapaxes(0, 1)
            expected = part(expected)
        np.testing.assert_allclose(received, expected, atol=1e-12)
    np.testing.assert_array_equal(stack(inputs), stack(inputs, training=False))
    model = keras.Sequential([keras.Input((6, 3), dtype="float64"), stack])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    assert not np.allclose(loaded(inputs, training=True), loaded(inputs))


def test_what_is_no_stack():
    lstm, gru, rnn = drop_ins.LSTM, drop_ins.GRU, drop_ins.SimpleRNN

    def sequences() -> keras.layers.Layer:
        return lstm(2, return_sequences=True)

    for parts, message in (
        ([], "there are none"),
        ([layers.LSTM(2)], "is none of cudnn_rnn_tf.keras's layers"),
        ([lstm(2), lstm(2)], "returns no sequences"),
        ([lstm(2, return_sequences=True), lstm(3)], "differ in units"),
        ([lstm(2, return_sequences=True), drop_ins.GRU(2)], "differ in class"),
        ([drop_ins.Bidirectional(sequences()), lstm(2)], "of different classes"),
        ([drop_ins.RNN([drop_ins.LSTMCell(2)] * 2)], "the list of cells of"),
        ([sequences(), lstm(2, use_bias=False)], "differ in use_bias"),
        ([rnn(2, return_sequences=True), rnn(2, activation="relu")], "differ in activation"),
        ([gru(2, return_sequences=True), gru(2, reset_after=False)], "differ in reset_after"),
        ([lstm(2, dropout=0.1)], "dropout of"),
        ([lstm(2, recurrent_dropout=0.1)], "recurrent_dropout of"),
        ([lstm(2, stateful=True)], "stateful of"),
        ([lstm(2, return_state=True)], "return_state of"),
        ([lstm(2, go_backwards=True)], "go_backwards of"),
        ([lstm(2, activity_regularizer="l2")], "activity_regularizer of"),
        (
            [drop_ins.Bidirectional(sequences(), activity_regularizer="l2", name="both")],
            "activity_regularizer of 'both'",
        ),
        ([lstm(2, activation="selu")], "runs as Keras runs it: activation='selu'"),
        ([drop_ins.Bidirectional(lstm(2), merge_mode="sum")], "merge_mode='sum'"),
        ([drop_ins.Bidirectional(lstm(2), dtype="float64")], "differ in dtype_policy"),
        (
            [
                drop_ins.Bidirectional(sequences()),
                drop_ins.Bidirectional(lstm(2, dtype="float64"), dtype="float32"),
            ],
            "differ in dtype_policy",
        ),
        ([lstm(2), layers.Dropout(0.1)], "dropout is not between two layers"),
        ([layers.Dropout(0.1, name="on_top"), lstm(2)], "not between two layers: ..on_top"),
        ([sequences(), layers.Dropout(0.1), layers.Dropout(0.1), lstm(2)], "not between two"),
        ([sequences(), layers.Dropout(0.1), sequences(), lstm(2)], "rates of dropout .* differ"),
        ([sequences(), layers.Dropout(1.0), lstm(2)], "rate=1.0"),
        ([sequences(), layers.Dropout(0.1, noise_shape=(None, 1, None)), lstm(2)], "noise_shape"),
        ([sequences(), layers.Dropout(0.1, dtype="float64"), lstm(2)], "differ in dtype_policy"),
        (
            [
                drop_ins.Bidirectional(sequences()),
                layers.Dropout(0.1),
                drop_ins.Bidirectional(lstm(2)),
            ],
            "between layers of two directions",
        ),
    ):
        with pytest.raises(
            ValueError, match=f"expected layers that run in one op, but .*{message}"
        ):
            drop_ins.Stack(parts)


def test_a_dry_run_returns_the_report_alone(capsys):
    model, _ = branched()
    weights = model.get_weights()
    report = crnn.accelerate(model, dry_run=True)
    fast = crnn.accelerate(model)
    assert not capsys.readouterr().out
    assert crnn.acceleration_report(fast) == report
    crnn.accelerate(model, verbose=True)
    assert capsys.readouterr().out == f"{report}\n"
    table = str(report).splitlines()
    assert len(table) == 1 + len(report.layers)
    for row, layer in zip(table[1:], report.layers, strict=True):
        assert row.split()[:2] == [layer.name, layer.kind] and row.endswith(layer.outcome)
    for received, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(received, expected)


def test_errors():
    with pytest.raises(TypeError, match="expected model to be a Keras model, but received LSTM"):
        crnn.accelerate(layers.LSTM(2))
    with pytest.raises(ValueError, match="to be built"):
        crnn.accelerate(keras.Sequential([layers.LSTM(2)]))
