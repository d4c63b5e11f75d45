"""A model of recurrent layers behind an embedding with a mask, and the time that `fit` takes."""

import time
from typing import Any

# Each is this package's layers, its drop-ins, an accelerated model, Keras's layers, or no recurrent
# layers at all.
SYSTEMS = ("this package", "drop-in", "accelerated", "Keras", "no recurrent layers")
# With CHECK_ROWS, the optimizer looks for overflows only in those rows of the embedding's gradient
# that the batch uses.
CHECK_ROWS = "mixed_float16, check of used rows"
# With COMPILED, XLA compiles the steps.
COMPILED = "jit_compile=True"
VOCABULARY, CLASSES, BATCH, STEPS, BATCHES, EPOCHS = 20000, 20, 64, 200, 60, 4


def recurrent(system: str, cell: str, layers: int, units: int, directions: int) -> list[Any]:
    """Makes the recurrent layers, to be called one after the other."""
    import keras

    import cudnn_rnn_tf as crnn

    if system == "no recurrent layers":
        return []
    if system == "this package":
        direction = "bidirectional" if directions == 2 else "unidirectional"
        return [getattr(crnn, f"Cudnn{cell}")(layers, units, direction=direction)]
    source = crnn.keras if system == "drop-in" else keras.layers
    made = []
    for _ in range(layers):
        # Keras's default, an orthogonal matrix, takes long to make.
        layer = getattr(source, cell)(
            units, return_sequences=True, recurrent_initializer="glorot_uniform"
        )
        made.append(source.Bidirectional(layer) if directions == 2 else layer)
    return made


def fit(system: str, policy: str) -> dict[str, Any]:
    """Trains a tagger, whose sequences have different lengths, with `model.fit`.

    Returns:
        {"ms": the mean milliseconds of a step, for each epoch}.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    class CheckRows(keras.mixed_precision.LossScaleOptimizer):
        def check_finite(self, grads):
            return super().check_finite(
                [grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad in grads]
            )

    keras.mixed_precision.set_global_policy(policy.partition(",")[0])
    adam = keras.optimizers.Adam()
    rng = np.random.default_rng(0)
    ids = rng.integers(1, VOCABULARY, (BATCHES * BATCH, STEPS)).astype("int32")
    for row, length in zip(ids, rng.integers(STEPS // 4, STEPS + 1, len(ids)), strict=True):
        row[length:] = 0
    labels = rng.integers(0, CLASSES, ids.shape).astype("int32")
    data = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(BATCH).cache().prefetch(4)

    tokens = keras.Input((None,), dtype="int32")
    values = keras.layers.Embedding(VOCABULARY, 128, mask_zero=True)(tokens)
    for layer in recurrent(system, "LSTM", 2, 256, 2):
        values = layer(values)
    model = keras.Model(tokens, keras.layers.Dense(CLASSES, dtype="float32")(values))
    if system == "accelerated":
        model = crnn.accelerate(model)
    optimizer = CheckRows(adam) if policy == CHECK_ROWS else adam
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=policy.endswith(COMPILED) or "auto")
    model.fit(data, verbose=0)
    milliseconds = []
    for _ in range(EPOCHS):
        start = time.perf_counter()
        model.fit(data, verbose=0)
        milliseconds.append(1e3 * (time.perf_counter() - start) / BATCHES)
    return {"ms": milliseconds}
