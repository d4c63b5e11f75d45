"""The text of the character model: where it comes from, and its batches."""

import collections
import dataclasses
import hashlib
import os
import pathlib
import sysconfig
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# This stands for every character that is too rare to have an id of its own.
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_HELD_OUT_PARTS = 25
_RAREST = 100_000
# These directories hold installed packages, tests and generated tables, not the library itself.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "encodings", "pydoc_data"}


class RunError(Exception):
    """The run cannot go on. The message is for the user."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text as character ids, one part to train on and one held out.

    Attributes:
        vocabulary: the character of each id.
        train: int32 ids.
        held_out: int32 ids of the text's end.
    """

    vocabulary: str
    train: np.ndarray
    held_out: np.ndarray

    def digest(self) -> str:
        """Returns a fingerprint of the whole corpus."""
        digest = hashlib.sha256(self.vocabulary.encode())
        for ids in (self.train, self.held_out):
            digest.update(ids.tobytes() + b"|")
        return digest.hexdigest()


def read_standard_library(max_chars: int) -> str:
    """Returns the sources of this Python's standard library, one after another.

    The files come in an order that depends on their names only and mixes the packages, so that
    the end of the text is like the rest of it.

    Raises:
        RunError: if there are none.
    """
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    names = []
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if name not in _SKIPPED]
        below = pathlib.Path(directory).relative_to(root)
        names += [below / name for name in files if name.endswith(".py")]
    names.sort(key=lambda name: hashlib.sha256(name.as_posix().encode()).digest())
    parts, size = [], 0
    for name in names:
        if size >= max_chars:
            break
        parts.append((root / name).read_text(encoding="utf-8", errors="replace"))
        size += len(parts[-1])
    if not parts:
        raise RunError(f"there are no Python sources in {root}: name a text with --text")
    return "".join(parts)[:max_chars]


def read_file(path: str, max_chars: int) -> str:
    """Returns the start of a UTF-8 text file.

    Raises:
        RunError: if it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(max_chars)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read the text {path}: {error}") from error


def make_corpus(text: str, batch_size: int, seq_len: int) -> Corpus:
    """Splits a text and turns it into ids.

    The held-out part is cut to a length that `batch_size` streams read to the end in steps of
    `seq_len`, so that evaluation predicts each of its characters but the first exactly once.

    Raises:
        RunError: if the text is too short for a batch of the held-out part.
    """
    split = len(text) - len(text) // _HELD_OUT_PARTS
    batch_chars = batch_size * seq_len
    held_out_size = (len(text) - split - 1) // batch_chars * batch_chars + 1
    if held_out_size <= 1:
        raise RunError(
            f"the text has {len(text)} characters, but batches of {batch_size} x {seq_len} need at "
            f"least {(batch_chars + 1) * _HELD_OUT_PARTS}: take a longer text, or lower "
            "--batch_size or --seq_len"
        )
    counts = collections.Counter(text[:split])
    common = sorted(char for char, count in counts.items() if count * _RAREST >= split)
    vocabulary = UNKNOWN + "".join(common).replace(UNKNOWN, "")
    id_of = {char: index for index, char in enumerate(vocabulary)}
    ids = np.fromiter((id_of.get(char, 0) for char in text), np.int32, len(text))
    return Corpus(vocabulary, ids[:split], ids[split : split + held_out_size])


def stream_batches(
    ids: Sequence[int] | np.ndarray, batch_size: int, seq_len: int, first_step: int = 0
) -> tf.data.Dataset:
    """Returns endless batches in which every row goes on where it stopped in the batch before.

    The text is a ring with `batch_size` readers spread over it. What a reader gets in a step
    depends only on its row and on the step, so a run can be resumed at any step.

    Args:
        ids: the text.
        batch_size: rows of a batch.
        seq_len: characters per step.
        first_step: where to start.

    Returns:
        A data set of inputs and targets, the latter one character ahead.
    """
    text = tf.constant(ids, tf.int32)
    size, distance = len(ids), (len(ids) - 1) // batch_size

    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        starts = tf.range(batch_size, dtype=tf.int64) * distance + step * seq_len
        places = starts[:, tf.newaxis] + tf.range(seq_len + 1, dtype=tf.int64)
        chars = tf.gather(text, places % size)
        return chars[:, :-1], chars[:, 1:]

    return tf.data.Dataset.counter(first_step).map(batch).prefetch(2)
