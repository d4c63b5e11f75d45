"""Writes text with a character model that `char_lm.py` exported.

Needs the SavedModel and nothing of the code that made it: importing cudnn_rnn_tf registers the op
inside.
"""

from collections.abc import Sequence

import tensorflow as tf
from absl import app, flags

import cudnn_rnn_tf  # noqa: F401

FLAGS = flags.FLAGS

flags.DEFINE_string("saved_model", None, "Directory of the SavedModel.", required=True)
flags.DEFINE_string("prompt", "\n", "What the text begins with.")
flags.DEFINE_integer("length", 400, "Characters to write.", lower_bound=0)
flags.DEFINE_float("temperature", 0.7, "Below 1 for likelier characters.", lower_bound=1e-3)
flags.DEFINE_integer("seed", 0, "Seed of the random numbers.")


def generate(directory: str, prompt: str, length: int, temperature: float, seed: int) -> str:
    """Returns the prompt and what the model writes after it."""
    # The signatures only live as long as the loaded object does.
    loaded = tf.saved_model.load(directory)
    step = loaded.signatures["step"]
    vocabulary = "".join(map(chr, loaded.signatures["vocabulary"]()["code_points"].numpy()))
    specs = step.structured_input_signature[1]
    states = {name: tf.zeros([1, *specs[name].shape[1:]], specs[name].dtype) for name in ("h", "c")}
    ids = [max(vocabulary.find(char), 0) for char in prompt or "\n"]
    text = prompt
    for index in range(length):
        states = step(ids=tf.constant([ids]), **states)
        logits = states.pop("logits")[:, -1] / temperature
        # Id 0, the unknown character, is left out, since it has no meaning for a reader.
        ids = [1 + int(tf.random.stateless_categorical(logits[:, 1:], 1, seed=[seed, index])[0, 0])]
        text += vocabulary[ids[0]]
    return text


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    print(generate(FLAGS.saved_model, FLAGS.prompt, FLAGS.length, FLAGS.temperature, FLAGS.seed))


if __name__ == "__main__":
    app.run(main)
