"""The character model, and the state that a training run of it can be resumed from."""

import contextlib
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from char_text import RunError

import cudnn_rnn_tf as crnn


class CharModel(keras.Model):
    """Predicts every next character: an embedding, a stack of LSTM layers and a dense layer.

    Its loss is reported as `bits_per_char`.

    Args:
        vocabulary_size: number of characters.
        num_layers: LSTM layers.
        num_units: units per LSTM layer.
        embedding_dim: size of a character's embedding.
        dropout: rate between the LSTM layers.
        seed: of the dropout.
        batch_size: streams, if the model is to carry states from call to call.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        num_layers: int,
        num_units: int,
        embedding_dim: int,
        dropout: float,
        seed: int,
        batch_size: int | None = None,
    ):
        super().__init__()
        self.embedding = keras.layers.Embedding(vocabulary_size, embedding_dim)
        self.lstm = crnn.CudnnLSTM(
            num_layers,
            num_units,
            dropout=dropout,
            seed=seed,
            return_state=True,
            stateful=batch_size is not None,
        )
        self.dense = keras.layers.Dense(vocabulary_size, dtype="float32")
        self.bits_per_char = keras.metrics.Mean("bits_per_char")
        self.build((batch_size, None))

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.embedding.build(input_shape)
        self.lstm.build((*input_shape, self.embedding.output_dim))
        self.dense.build((*input_shape, self.lstm.num_units))

    def call(self, ids: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.advance(ids, training=training)[0]

    def advance(
        self, ids: tf.Tensor, states: Sequence[tf.Tensor] | None = None, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the logits, and the states h and c at the end."""
        outputs, h, c = self.lstm(self.embedding(ids), initial_state=states, training=training)
        return self.dense(outputs), h, c

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        ids, targets = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(ids, targets, self(ids, training=True))
            scaled_loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._logs(loss)

    def test_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        ids, targets = data
        return self._logs(self.compute_loss(ids, targets, self(ids, training=False)))

    def _logs(self, loss: tf.Tensor) -> dict[str, tf.Tensor]:
        bits = loss / math.log(2)
        self.bits_per_char.update_state(bits)
        return {"bits_per_char": bits}

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.bits_per_char]


class TrainingState:
    """The state of a run: weights, optimizer, place in the text, and the streams' states.

    The LSTM layer's states are in no checkpoint of a model, and here they are.

    Args:
        model: the model, compiled and built.
        directory: of the run.
    """

    def __init__(self, model: CharModel, directory: pathlib.Path):
        self.step = tf.Variable(0, dtype=tf.int64)
        self._lstm, self._directory = model.lstm, directory / "checkpoints"
        h, c = (state.value for state in model.lstm.states)
        self._checkpoint = tf.train.Checkpoint(
            model=model, optimizer=model.optimizer, step=self.step, h=h, c=c
        )
        self._manager = tf.train.CheckpointManager(self._checkpoint, self._directory, max_to_keep=3)

    def read_states(self) -> list[tf.Tensor]:
        return [tf.identity(state.value) for state in self._lstm.states]

    def write_states(self, values: list[tf.Tensor]) -> None:
        for state, value in zip(self._lstm.states, values, strict=True):
            state.assign(value)

    def reset_states(self) -> None:
        self._lstm.reset_state()

    @property
    def newest(self) -> str | None:
        """The path of the newest checkpoint; None if there is none."""
        return tf.train.latest_checkpoint(self._directory)

    def restore(self) -> bool:
        """Restores everything from the newest checkpoint; returns whether there is one."""
        if self.newest is None:
            return False
        self._checkpoint.restore(self.newest).assert_consumed()
        return True

    def save(self) -> None:
        """Writes a checkpoint."""
        self._manager.save(checkpoint_number=self.step)


class History:
    """The bits per character of a run, in a file to which lines of JSON are added.

    Args:
        directory: of the run.
        last_step: the checkpoint's step. Later lines are dropped, since the run repeats them.
            None to begin anew.

    Raises:
        RunError: if steps before the checkpoint are missing.
    """

    def __init__(self, directory: pathlib.Path, last_step: int | None):
        self.records: list[dict[str, float]] = []
        path = directory / "history.jsonl"
        if last_step is not None:
            for line in path.read_text().splitlines() if path.exists() else ():
                # The last line may be incomplete if the run was killed.
                with contextlib.suppress(json.JSONDecodeError):
                    self.records.append(json.loads(line))
            self.records = [record for record in self.records if record["step"] <= last_step]
            if len(self.curve("bits_per_char")[0]) != last_step:
                raise RunError(
                    f"{path} does not have all the {last_step} steps of the newest checkpoint: "
                    "begin anew with --restart"
                )
        lines = [json.dumps(record) + "\n" for record in self.records]
        write_atomically(path, "".join(lines))
        self._file = open(path, "a", buffering=1)

    def add(self, step: int, **bits: float) -> None:
        self.records.append({"step": step, **bits})
        self._file.write(json.dumps(self.records[-1]) + "\n")

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Returns steps and values of "bits_per_char" or "held_out_bits_per_char"."""
        points = [(record["step"], record[name]) for record in self.records if name in record]
        return [step for step, _ in points], [bits for _, bits in points]


class Recorder(keras.callbacks.Callback):
    """Counts the steps, writes the history, and saves a checkpoint after each epoch."""

    def __init__(self, state: TrainingState, history: History):
        super().__init__()
        self._state, self._history = state, history
        self._carried: Any = None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        step, bits = int(self._state.step.assign_add(1)), float(logs["bits_per_char"])
        if not math.isfinite(bits):
            raise RunError(f"the loss is {bits} at step {step}: lower --learning_rate")
        self._history.add(step, bits_per_char=bits)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        bits = float(logs["val_bits_per_char"])
        # The history is written before the checkpoint, so that it has all steps of every
        # checkpoint.
        self._history.add(int(self._state.step), held_out_bits_per_char=bits)
        self._state.save()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        # The held-out text is read from fresh states. Training then goes on with the states it had.
        self._carried = self._state.read_states()
        self._state.reset_states()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._state.write_states(self._carried)


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes a file that is never seen half-written."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def export(model: CharModel, vocabulary: str, directory: pathlib.Path) -> None:
    """Writes a SavedModel that any program can make text with.

    It has two signatures. "step" takes `ids`, int32 [batch, time], and the states `h` and `c`,
    zeros to begin with, and returns `logits` [batch, time, characters] and the new `h` and `c`.
    "vocabulary" returns each id's `code_points`.
    """
    h_shape, c_shape = model.lstm.state_shape(None)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, "ids"),
            tf.TensorSpec(h_shape, model.lstm.compute_dtype, "h"),
            tf.TensorSpec(c_shape, model.lstm.compute_dtype, "c"),
        ]
    )
    def step(ids, h, c):
        return dict(zip(("logits", "h", "c"), model.advance(ids, (h, c)), strict=True))

    @tf.function(input_signature=[])
    def code_points():
        return {"code_points": tf.constant([ord(char) for char in vocabulary])}

    module = tf.Module()
    module.model = model
    tf.saved_model.save(module, directory, {"step": step, "vocabulary": code_points})
