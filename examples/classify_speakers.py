"""Tells nine speakers apart by how they say two Japanese vowels: recordings of different lengths.

The data set, JapaneseVowels, comes with the package sktime, which
`pip install -r examples/requirements.txt` installs. Its authors' classifier was right in 94.1 % of
the test recordings, and a hidden Markov model in 96.2 % (M. Kudo, J. Toyama and M. Shimbo:
Multidimensional curve classification using passing-through regions, 1999).

    python examples/classify_speakers.py --output=runs/classify_speakers.png
"""

import argparse
import importlib.util
import pathlib
import time

import keras
import matplotlib.figure
import numpy as np

import cudnn_rnn_tf.keras


def recordings(split: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns recordings [time, 12], of 7 to 29 steps, and their speakers, from 0 to 8."""
    folder = pathlib.Path(importlib.util.find_spec("sktime").origin).parent
    text = (folder / f"datasets/data/JapaneseVowels/JapaneseVowels_{split}.ts").read_text()
    series, speakers = [], []
    for line in text.partition("@data")[2].split():
        *channels, speaker = line.split(":")
        series.append(np.array([channel.split(",") for channel in channels], float).T)
        speakers.append(int(speaker) - 1)
    return series, np.array(speakers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=pathlib.Path, default="runs/classify_speakers.png")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--stock", action="store_true", help="train with Keras's own layers")
    flags = parser.parse_args()
    keras.utils.set_random_seed(0)
    layers = keras.layers if flags.stock else cudnn_rnn_tf.keras  # the one change

    (train, speakers), (test, test_speakers) = recordings("TRAIN"), recordings("TEST")
    mean, deviation = np.concatenate(train).mean(0), np.concatenate(train).std(0)
    padded, test_padded = (
        keras.utils.pad_sequences(
            [(each - mean) / deviation for each in part], dtype="float32", padding="post"
        )
        for part in (train, test)
    )

    model = keras.Sequential([keras.Input((None, 12)), keras.layers.Masking()])
    model.add(layers.Bidirectional(layers.LSTM(100)))
    model.add(keras.layers.Dropout(0.5))
    model.add(keras.layers.Dense(9, "softmax"))
    model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy")
    model.fit(padded, speakers, 27, verbose=0)  # The first epoch also traces the model.
    start = time.perf_counter()
    model.fit(padded, speakers, 27, epochs=flags.epochs - 1, verbose=0)
    print(f"seconds of training after the first epoch: {time.perf_counter() - start:.2f}")
    told = model.predict(test_padded, verbose=0).argmax(-1)
    print(f"speakers of {len(test)} recordings: {np.mean(told == test_speakers):.1%} are right")

    counts = np.zeros((9, 9), int)
    np.add.at(counts, (test_speakers, told), 1)
    axes = (figure := matplotlib.figure.Figure(figsize=(5, 4.5), layout="constrained")).subplots()
    axes.imshow(counts, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts):
        color = "white" if count > counts.max() / 2 else "black"
        axes.text(column, row, count or "", ha="center", va="center", color=color)
    axes.set(xlabel="speaker that the model tells", ylabel="speaker", xticks=range(9))
    axes.set_yticks(range(9))
    flags.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(flags.output, dpi=80)


if __name__ == "__main__":
    main()
