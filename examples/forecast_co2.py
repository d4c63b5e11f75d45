"""Forecasts the carbon dioxide in the air over Mauna Loa, whose record statsmodels brings with it.

From the last four years, month by month, an LSTM tells the next twelve months. It is tried on the
last ten years of the record, which it has not seen, beside the forecast that the next year will be
as the last one was. `pip install -r examples/requirements.txt` installs statsmodels.

    python examples/forecast_co2.py --output=runs/forecast_co2.png
"""

import argparse
import pathlib
import time

import keras
import matplotlib.figure
import numpy as np
import statsmodels.datasets

import cudnn_rnn_tf.keras

PAST, AHEAD, HELD_OUT = 48, 12, 120  # Months.


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=pathlib.Path, default="runs/forecast_co2.png")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--stock", action="store_true", help="train with Keras's own layers")
    flags = parser.parse_args()
    keras.utils.set_random_seed(0)
    layers = keras.layers if flags.stock else cudnn_rnn_tf.keras  # the one change

    weekly = statsmodels.datasets.co2.load_pandas().data["co2"]
    monthly = weekly.interpolate().resample("MS").mean()
    windows = np.lib.stride_tricks.sliding_window_view(monthly.to_numpy(), PAST + AHEAD)
    now = windows[:, PAST - 1 : PAST]  # Inputs and targets are differences from this month.
    past, future = windows[:, :PAST, None] - now[..., None], windows[:, PAST:] - now
    begin_test = len(windows) - (HELD_OUT - AHEAD + 1)
    train = slice(0, begin_test - AHEAD + 1)  # Its targets end before the held-out years.

    model = keras.Sequential([keras.Input((PAST, 1)), layers.LSTM(32), keras.layers.Dense(AHEAD)])
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    model.fit(past[train], future[train], verbose=0)  # The first epoch also traces the model.
    start = time.perf_counter()
    model.fit(past[train], future[train], epochs=flags.epochs - 1, verbose=0)
    print(f"seconds of training after the first epoch: {time.perf_counter() - start:.2f}")

    forecasts = model.predict(past[begin_test:], verbose=0)
    as_last_year = past[begin_test:, -AHEAD:, 0] - past[begin_test:, -AHEAD - 1, :]
    error, naive = (
        np.sqrt(np.mean((told - future[begin_test:]) ** 2)) for told in (forecasts, as_last_year)
    )
    print(f"ten years, twelve months ahead: off by {error:.2f} ppm; as last year: {naive:.2f} ppm")

    axes = (figure := matplotlib.figure.Figure(figsize=(9, 4), layout="constrained")).subplots()
    shown = monthly[-HELD_OUT - PAST :]
    axes.plot(shown.index, shown, color="#bbbbbb", linewidth=3, label="measured")
    for start in range(begin_test, len(windows), AHEAD):
        dates = monthly.index[start + PAST : start + PAST + AHEAD]
        line = axes.plot(dates, now[start] + forecasts[start - begin_test], color="#2471a3")
    line[0].set_label("forecast, a year at a time")
    axes.set_xlabel("year")
    axes.set_ylabel("CO₂, parts per million")
    axes.legend()
    flags.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(flags.output, dpi=80)


if __name__ == "__main__":
    main()
