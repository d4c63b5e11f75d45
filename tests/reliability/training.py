"""The example `char_lm.py` on a small text, as a program to kill, and what it must not lose."""

import importlib
import pathlib
import random
import sys
from typing import Any

import forks
import numpy as np
import tensorflow as tf
from absl import app

WORDS = "the tea that a rat ate at the table set on a stone near the eastern train to another state"
SETTINGS = {
    "num_units": 32,
    "embedding_dim": 16,
    "batch_size": 8,
    "seq_len": 24,
    "steps_per_epoch": 5,
    "epochs": 16,
    "learning_rate": 0.02,
    "sample_chars": 0,
    "check_baselines": False,
}
# TensorFlow stores a checkpoint's structure under this name. Its order varies, so it is not
# compared.
_STRUCTURE = "_CHECKPOINTABLE_OBJECT_GRAPH"

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
_char_lm = importlib.import_module("char_lm")


class Training:
    """Runs of one training program, all of which are to come to the same end.

    Args:
        directory: where the text, and the run that nothing disturbs, are kept.
    """

    def __init__(self, directory: pathlib.Path):
        rng = random.Random(0)
        words = [rng.choice(WORDS.split()) + rng.choice(["", "", "", ".\n"]) for _ in range(12_000)]
        self._text = directory / "text.txt"
        self._text.write_text(" ".join(words))
        self._reference = directory / "reference"
        done = self.start(self._reference, directory / "reference.log", keep_checkpoints=1000)
        if done.wait() != 0:
            raise RuntimeError(f"the run that nothing disturbs failed:\n{done.printed()}")
        self._saved: dict[int, dict[str, np.ndarray]] = {}

    def start(self, output_dir: pathlib.Path, log: pathlib.Path, **changed: Any) -> forks.Fork:
        settings = {**SETTINGS, "text": self._text, "output_dir": output_dir, **changed}
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        return forks.Fork(lambda: app.run(_char_lm.main, ["char_lm.py", *arguments]), log)

    def check_kept(self, output_dir: pathlib.Path, last_seen: int) -> int:
        """The newest checkpoint's step, 0 without one.

        Raises:
            AssertionError: if that is before `last_seen`, or anything in the checkpoint is not what
                the run that nothing disturbs had saved at that step.
        """
        step = newest_step(output_dir)
        assert step >= last_seen, f"step {last_seen} was saved; the newest now is {step}"
        if step == 0:
            return 0
        found = _tensors(output_dir, step)
        if step not in self._saved:
            self._saved[step] = _tensors(self._reference, step)
        expected = self._saved[step]
        assert found.keys() == expected.keys(), f"other variables at step {step}"
        for name, value in expected.items():
            assert value.tobytes() == found[name].tobytes(), f"{name} differs at step {step}"
        return step

    def check_finished(self, output_dir: pathlib.Path) -> None:
        """Fails unless the run has come to the end that it would have come to undisturbed."""
        last = SETTINGS["epochs"] * SETTINGS["steps_per_epoch"]
        assert self.check_kept(output_dir, last) == last
        histories = [directory / "history.jsonl" for directory in (output_dir, self._reference)]
        found, expected = (history.read_text() for history in histories)
        assert found == expected, f"{output_dir} tells another course"


def newest_step(output_dir: pathlib.Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    newest = tf.train.latest_checkpoint(output_dir / "checkpoints")
    return 0 if newest is None else int(newest.rpartition("-")[2])


def leftovers(output_dir: pathlib.Path) -> list[pathlib.Path]:
    """Files that were being written."""
    patterns = ("*.partial", "checkpoints/*_temp*", "checkpoints/checkpoint.tmp*")
    return [path for pattern in patterns for path in output_dir.glob(pattern)]


def _tensors(output_dir: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(output_dir / "checkpoints" / f"ckpt-{step}"))
    names = reader.get_variable_to_shape_map()
    return {name: np.asarray(reader.get_tensor(name)) for name in names if name != _STRUCTURE}
