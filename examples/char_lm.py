"""Trains a character-level language model on real text, and puts it to use.

Two LSTM layers learn to predict the next character of Python's standard library, or of any other
text, by truncated backpropagation through time: each row of a batch is one stream of text whose
states carry over from step to step. A run that was killed goes on from its newest checkpoint, and
its results are the same as without the kill (to the last bit on a CPU).

At the end the newest checkpoint is restored into a fresh model and compared, a SavedModel is
exported and writes a sample in a process of its own, and the loss curve is drawn. The output
directory then holds:

    history.jsonl   bits per character of every training step and of the held-out text
    checkpoints/    what `tf.train.CheckpointManager` keeps
    saved_model/    for `generate.py`, or any other program
    loss.png, sample.txt, summary.json
    settings.json   what a resumed run must have in common with this one
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

# This must be set before TensorFlow is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import char_model
import char_text
import keras
import matplotlib.figure
import numpy as np
import tensorflow as tf
from absl import app, flags, logging

FLAGS = flags.FLAGS

flags.DEFINE_string("output_dir", "runs/char_lm", "Where everything is written and resumed from.")
flags.DEFINE_bool("restart", False, "Throw away what an earlier run left in the output directory.")
flags.DEFINE_string("text", None, "UTF-8 text file; by default the standard library's sources.")
flags.DEFINE_integer("max_chars", 3_000_000, "Characters of the text to use.", lower_bound=100)
flags.DEFINE_integer("num_layers", 2, "LSTM layers.", lower_bound=1)
flags.DEFINE_integer("num_units", 128, "Units per LSTM layer.", lower_bound=1)
flags.DEFINE_integer("embedding_dim", 64, "Size of a character's embedding.", lower_bound=1)
flags.DEFINE_float(
    "dropout", 0.1, "Dropout rate between the layers.", lower_bound=0.0, upper_bound=0.99
)
flags.DEFINE_enum(
    "dtype_policy",
    "float32",
    ["float32", "mixed_float16", "mixed_bfloat16"],
    "Keras's policy: what to compute in.",
)
flags.DEFINE_integer("batch_size", 32, "Streams of text.", lower_bound=1)
flags.DEFINE_integer("seq_len", 32, "Characters per stream and step.", lower_bound=1)
flags.DEFINE_integer(
    "steps_per_epoch",
    200,
    "Steps between checkpoints, before each of which the held-out text is evaluated.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "epochs", 5, "Epochs in all. Raise it to train a finished run on.", lower_bound=1
)
flags.DEFINE_float("learning_rate", 8e-3, "Adam's learning rate.", lower_bound=0.0)
flags.DEFINE_integer("seed", 1, "Seed of the weights, the dropout and the sample.", lower_bound=0)
flags.DEFINE_string("prompt", "\n", "What the sample begins with.")
flags.DEFINE_integer("sample_chars", 400, "Length of the sample; 0 for none.", lower_bound=0)
flags.DEFINE_float("temperature", 0.7, "Of the sample: low for likely text.", lower_bound=1e-3)

# A run and its continuation must have the same text, and agree in these flags.
_SETTINGS = (
    *("num_layers", "num_units", "embedding_dim", "dropout", "dtype_policy", "batch_size"),
    *("seq_len", "steps_per_epoch", "learning_rate", "seed"),
)


def claim_output_dir(corpus: char_text.Corpus) -> pathlib.Path:
    """Makes the output directory, or checks that an existing one belongs to this run.

    Raises:
        char_text.RunError: if it cannot be made, or holds a run with other settings.
    """
    directory = pathlib.Path(FLAGS.output_dir)
    path = directory / "settings.json"
    settings = {name: FLAGS[name].value for name in _SETTINGS}
    settings["text"] = corpus.digest()
    if not FLAGS.restart and path.exists():
        earlier = json.loads(path.read_text())
        changed = [name for name in settings if settings[name] != earlier.get(name)]
        if changed:
            raise char_text.RunError(
                f"{directory} holds a run that differs in {', '.join(changed)}: finish it with its "
                "own settings, choose another --output_dir, or throw it away with --restart"
            )
    else:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if FLAGS.restart:
                shutil.rmtree(directory / "checkpoints", ignore_errors=True)
            char_model.write_atomically(path, json.dumps(settings, indent=1) + "\n")
        except OSError as error:
            raise char_text.RunError(f"cannot write to --output_dir: {error}") from error
    return directory


def train(
    model: char_model.CharModel,
    corpus: char_text.Corpus,
    state: char_model.TrainingState,
    history: char_model.History,
) -> None:
    """Trains from the state's step to the end, and evaluates and saves in between."""

    def batches(ids: np.ndarray, first_step: int = 0) -> tf.data.Dataset:
        return char_text.stream_batches(ids, FLAGS.batch_size, FLAGS.seq_len, first_step)

    held_out = {
        "validation_data": batches(corpus.held_out),
        "validation_steps": (len(corpus.held_out) - 1) // (FLAGS.batch_size * FLAGS.seq_len),
    }
    recorder = char_model.Recorder(state, history)
    if not history.records:
        logs = model.evaluate(
            held_out["validation_data"],
            steps=held_out["validation_steps"],
            callbacks=[recorder],
            return_dict=True,
            verbose=0,
        )
        history.add(0, held_out_bits_per_char=logs["bits_per_char"])
    step = int(state.step)
    if step < FLAGS.epochs * FLAGS.steps_per_epoch:
        model.fit(
            batches(corpus.train, step),
            initial_epoch=step // FLAGS.steps_per_epoch,
            epochs=FLAGS.epochs,
            steps_per_epoch=FLAGS.steps_per_epoch,
            shuffle=False,
            callbacks=[recorder],
            verbose=1 if sys.stdout.isatty() else 2,
            **held_out,
        )


def make_model(corpus: char_text.Corpus, batch_size: int | None = None) -> char_model.CharModel:
    """Returns the model that the flags describe."""
    return char_model.CharModel(
        vocabulary_size=len(corpus.vocabulary),
        num_layers=FLAGS.num_layers,
        num_units=FLAGS.num_units,
        embedding_dim=FLAGS.embedding_dim,
        dropout=FLAGS.dropout,
        seed=FLAGS.seed,
        batch_size=batch_size,
    )


def restore_fresh_model(
    trained: char_model.CharModel, state: char_model.TrainingState, corpus: char_text.Corpus
) -> tuple[char_model.CharModel, float]:
    """Restores the newest checkpoint into a model without streams, as for serving it.

    Returns:
        The model, and the largest difference between its logits and the trained model's.

    Raises:
        RuntimeError: if a weight or an output is not the trained model's.
    """
    fresh = make_model(corpus)
    status = tf.train.Checkpoint(model=fresh).restore(state.newest)
    status.assert_existing_objects_matched().expect_partial()
    for before, after in zip(trained.weights, fresh.weights, strict=True):
        if not np.array_equal(before.numpy(), after.numpy()):
            raise RuntimeError(f"{after.path} came back from {state.newest} with other values")
    count = FLAGS.batch_size * FLAGS.seq_len
    ids = tf.reshape(corpus.held_out[:count], (FLAGS.batch_size, FLAGS.seq_len))
    state.reset_states()
    difference = float(tf.reduce_max(tf.abs(fresh(ids) - trained(ids))))
    # The same ops read the same numbers, but a GPU may add them up in another order, and it may
    # keep only TF32's 10 bits of a factor.
    tolerance = 5e-3 if FLAGS.dtype_policy == "float32" else 5e-2
    if not difference <= tolerance:
        raise RuntimeError(
            f"restored from {state.newest}, the model's logits differ by {difference} from those "
            f"of the trained one: more than {tolerance}"
        )
    return fresh, difference


def write_sample(saved_model: pathlib.Path) -> str:
    """Has the SavedModel write text in a process of its own, on the CPU.

    Raises:
        RuntimeError: if that fails.
    """
    command = [
        sys.executable,
        str(pathlib.Path(__file__).with_name("generate.py")),
        f"--saved_model={saved_model}",
        f"--prompt={FLAGS.prompt}",
        f"--length={FLAGS.sample_chars}",
        f"--temperature={FLAGS.temperature}",
        f"--seed={FLAGS.seed}",
    ]
    # This process may hold all memory of the GPUs, so the other one uses the CPU, which can run
    # what they trained.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode:
        raise RuntimeError(f"generate.py failed on {saved_model}:\n{done.stderr}")
    return done.stdout.removesuffix("\n")


def draw_curve(history: char_model.History, path: pathlib.Path) -> None:
    """Draws bits per character over steps."""
    figure = matplotlib.figure.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*history.curve("bits_per_char"), color="C0", linewidth=1, label="training, per step")
    axes.plot(
        *history.curve("held_out_bits_per_char"),
        color="C1",
        marker="o",
        label="held-out text",
    )
    axes.set(xlabel="step", ylabel="bits per character", ylim=(0, None), xlim=(0, None))
    axes.set_title(f"Character model: {FLAGS.num_layers} LSTM layers of {FLAGS.num_units} units")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def finish(
    model: char_model.CharModel,
    corpus: char_text.Corpus,
    state: char_model.TrainingState,
    history: char_model.History,
    directory: pathlib.Path,
) -> None:
    """Restores and exports the model, writes a sample, draws the curve, and prints a report."""
    fresh, difference = restore_fresh_model(model, state, corpus)
    saved_model = directory / "saved_model"
    char_model.export(fresh, corpus.vocabulary, saved_model)
    sample = write_sample(saved_model) if FLAGS.sample_chars else ""
    (directory / "sample.txt").write_text(sample, encoding="utf-8")
    draw_curve(history, directory / "loss.png")
    held_out = history.curve("held_out_bits_per_char")[1]
    summary = {
        "steps": int(state.step),
        "held_out_chars": len(corpus.held_out) - 1,
        "bits_before": held_out[0],
        "bits_after": held_out[-1],
        "restored_difference": difference,
        "checkpoint": state.newest,
    }
    char_model.write_atomically(directory / "summary.json", json.dumps(summary, indent=1) + "\n")
    print(
        f"""
Bits per character of {summary["held_out_chars"]:,} held-out characters
  before training        {summary["bits_before"]:.3f}
  after {summary["steps"]:>6,} steps     {summary["bits_after"]:.3f}

Checkpoint   {state.newest}
             restored into a fresh model; largest difference of a logit: {difference:.2g}
SavedModel   {saved_model}
Loss curve   {directory / "loss.png"}
Sample       {directory / "sample.txt"}, written by another process:
{"-" * 80}
{sample}
{"-" * 80}"""
    )


def run() -> None:
    """Runs the whole program.

    Raises:
        char_text.RunError: if the flags, the text or the output directory will not do.
    """
    started = time.monotonic()
    if FLAGS.text is None:
        text = char_text.read_standard_library(FLAGS.max_chars)
    else:
        text = char_text.read_file(FLAGS.text, FLAGS.max_chars)
    corpus = char_text.make_corpus(text, FLAGS.batch_size, FLAGS.seq_len)
    directory = claim_output_dir(corpus)
    keras.utils.set_random_seed(FLAGS.seed)
    keras.config.set_dtype_policy(FLAGS.dtype_policy)
    model = make_model(corpus, FLAGS.batch_size)
    model.compile(
        keras.optimizers.Adam(FLAGS.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    model.optimizer.build(model.trainable_variables)
    state = char_model.TrainingState(model, directory)
    resumed = not FLAGS.restart and state.restore()
    history = char_model.History(directory, int(state.step) if resumed else None)
    print(
        f"{len(corpus.train):,} characters to train on, {len(corpus.vocabulary)} different "
        f"ones; {model.count_params():,} weights; "
        + (f"resuming at step {int(state.step)}" if resumed else "starting anew"),
        flush=True,
    )
    if int(state.step) >= FLAGS.epochs * FLAGS.steps_per_epoch:
        print("Nothing left to train: raise --epochs, or begin anew with --restart.")
    train(model, corpus, state, history)
    finish(model, corpus, state, history, directory)
    print(f"Took {time.monotonic() - started:.0f} s.")


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    if not FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
        tf.get_logger().setLevel("WARNING")
    try:
        run()
    except char_text.RunError as error:
        sys.exit(f"char_lm.py: {error}")


if __name__ == "__main__":
    app.run(main)
