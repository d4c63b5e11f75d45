"""Tells names, keywords, strings and comments apart in Python code, character by character.

The sequences are lines of code of different lengths, from the sources that come with Keras, and the
right tags come from Python's own tokenizer. `Embedding` makes a mask of the padding, which a
bidirectional LSTM and the loss leave out.

    python examples/tag_source.py --output=runs/tag_source.png
"""

import argparse
import keyword
import pathlib
import time
import tokenize

import keras
import matplotlib.figure
import numpy as np

import cudnn_rnn_tf.keras

COLORS = ("#999999", "black", "#7d3c98", "#b9770e", "#1e8449", "#2471a3")
# The tags of some kinds of tokens. Names have the tag 1, keywords 2, and all other characters 0.
TAGS = {"NUMBER": 3, "STRING": 4, "FSTRING_START": 4, "FSTRING_MIDDLE": 4, "COMMENT": 5}
LONGEST = 80


def tagged_lines(path: pathlib.Path) -> list[tuple[str, list[int]]]:
    """Returns a file's lines, except those of long strings, with a tag for each character."""
    lines = path.read_text(encoding="utf-8").splitlines()
    tags = [[0] * len(line) for line in lines]
    with tokenize.open(path) as file:
        for kind, text, (row, begin), (last_row, end), _ in tokenize.generate_tokens(file.readline):
            is_name = kind == tokenize.NAME
            tag = 1 + keyword.iskeyword(text) if is_name else TAGS.get(tokenize.tok_name[kind], 0)
            if last_row > row:
                tags[row - 1 : last_row] = [[]] * (last_row - row + 1)
            elif tag and tags[row - 1]:
                tags[row - 1][begin:end] = [tag] * (end - begin)
    return [both for both in zip(lines, tags, strict=True) if 0 < len(both[1]) <= LONGEST]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=pathlib.Path, default="runs/tag_source.png")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--stock", action="store_true", help="train with Keras's own layers")
    flags = parser.parse_args()
    keras.utils.set_random_seed(0)
    layers = keras.layers if flags.stock else cudnn_rnn_tf.keras  # the one change
    files = sorted(pathlib.Path(keras.__file__).parent.glob("src/layers/**/*.py"))
    lines = list(dict(line for path in files for line in tagged_lines(path)).items())
    lines = [lines[i] for i in np.random.permutation(len(lines))[: flags.lines]]
    codes = [[min(ord(character), 127) for character in text] for text, _ in lines]
    lengths = np.array([len(text) for text in codes])
    characters = keras.utils.pad_sequences(codes, LONGEST, padding="post")
    tags = keras.utils.pad_sequences([tags for _, tags in lines], LONGEST, padding="post")

    model = keras.Sequential([keras.Input((None,), dtype="int32")])
    model.add(keras.layers.Embedding(128, 16, mask_zero=True))
    model.add(layers.Bidirectional(layers.LSTM(64, return_sequences=True)))
    model.add(keras.layers.Dense(6, "softmax"))
    model.compile(keras.optimizers.Adam(5e-3), "sparse_categorical_crossentropy")
    test = len(lines) // 10
    model.fit(characters[test:], tags[test:], 64, verbose=2)  # This also traces the model.
    start = time.perf_counter()
    model.fit(characters[test:], tags[test:], 64, epochs=2, verbose=2)
    print(f"seconds of training after the first epoch: {time.perf_counter() - start:.2f}")
    told = model.predict(characters[:test], verbose=0).argmax(-1)
    is_right = (told == tags[:test])[np.arange(LONGEST) < lengths[:test, None]]
    print(f"tags of {test} lines that were held out: {is_right.mean():.1%} are right")

    axes = matplotlib.figure.Figure(figsize=(10, 6), layout="constrained").subplots()
    for row, (text, _) in enumerate(lines[: min(test, 25)]):
        for column, character in enumerate(text):
            axes.text(column, row, character, color=COLORS[told[row, column]], family="monospace")
            if told[row, column] != tags[row, column]:
                axes.plot([column, column + 0.8], [row + 0.3] * 2, color="red")
    axes.set(xlim=(0, LONGEST), ylim=(25, -1), xlabel="character (wrong tags are underlined)")
    axes.set_ylabel("line of code that was held out")
    flags.output.parent.mkdir(parents=True, exist_ok=True)
    axes.figure.savefig(flags.output, dpi=80)


if __name__ == "__main__":
    main()
