"""The pages of results: what they say is what their data say, in a form that readers know."""

import argparse
import dataclasses
import json
import re
import statistics
import xml.etree.ElementTree

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import (
    gallery,
    gpu_doors,
    gpu_fit,
    gpu_rule,
    gpu_tests,
    loops,
    model_list,
    models,
    models_page,
    pages,
    tensorflow_steps,
    timing,
)
from benchmarks.rows import Row

RESULTS = pages.RESULTS
WITH_PAGES = (models_page, gpu_rule, gpu_tests, gpu_fit, gpu_doors, loops)


def test_pages_and_plots_are_those_of_the_data_in_the_repository(tmp_path):
    modules = {each.__name__.split(".")[1].removesuffix("_page"): each for each in WITH_PAGES}
    modules |= {"cpu_doors": gpu_doors, "networks": models_page}
    for name, module in modules.items():
        data = RESULTS / f"{name}.jsonl"
        assert data.with_suffix(".md").read_text() == module.page(data)
        if hasattr(module, "plot"):
            module.plot(data, tmp_path / "plot.svg")
            assert data.with_suffix(".svg").read_text() == (tmp_path / "plot.svg").read_text()
    lines = (RESULTS / "gallery.jsonl").read_text().splitlines()
    table = gallery.table([json.loads(line) for line in lines])
    assert f"\n\n{table}\n" in (RESULTS.parents[1] / "docs/gallery.md").read_text()


def tables(page: str) -> list[list[list[str]]]:
    """Returns the cells of each table, with its titles first."""
    found = re.findall(r"^\|.*\n\|---.*\n(?:\|.*\n?)*", page, re.MULTILINE)
    return [
        [line.strip("| ").split(" | ") for line in table.splitlines() if "|---" not in line]
        for table in found
    ]


def test_a_plot_leaves_out_what_was_not_measured(tmp_path):
    path = tmp_path / "plot.svg"
    series = {"as Keras": [2.0, None], "as PyTorch": [0.5, 8.0]}
    pages.plot_ratios(path, "times as fast", ["LSTM 1, B2", "GRU <3>, B4"], series)
    first = path.read_text()
    for word in ("LSTM 1, B2", "GRU &lt;3&gt;, B4", "as Keras", "times as fast", "0.5×", "8×"):
        assert f">{word}</text>" in first
    # The means are 2 and 2.
    assert re.findall(r'"number">([\d.]+)<', first) == ["2", "2", "2", "0.5", "8"]
    assert xml.etree.ElementTree.fromstring(first).tag.endswith("svg")
    bars = [float(x) for x in re.findall(r'<rect x="([\d.]+)" y="\d+" width="[\d.]+" h', first)][2:]
    one = float(re.search(r'class="one" d="M([\d.]+)', first)[1])
    assert [x < one for x in bars] == [False, False, False, True, False]
    pages.plot_ratios(path, "times as fast", ["LSTM 1, B2", "GRU <3>, B4"], series)
    assert path.read_text() == first


@pytest.mark.usefixtures("on_cpu")
def test_steps_of_benchmarks_take_draws_in_turns():
    row = Row("lstm", 1, 3, 1, 2, 5, "float32", False)
    layer = keras.layers.LSTM(3, return_sequences=True)

    def call(inputs, mask, training):
        return layer(inputs, mask=mask, training=training)

    def step_of(row, *arguments):
        return tensorflow_steps.step_of(row, call, lambda: layer.trainable_variables, *arguments)

    masks = [tf.sequence_mask([n, 5], 5) for n in (1, 4)]
    step = step_of(row, masks)
    # Keras repeats the last output where the mask leaves steps out.
    different = [
        int((np.diff(step(index)[0], axis=0) != 0).any(axis=1).sum()) for index in range(3)
    ]
    assert different == [0, 3, 0]
    training = dataclasses.replace(row, training=True)
    for draws in (masks, [None]):
        step = step_of(training, draws)
        step(0), step(1)


# What another program found for these models, in milliseconds of a training step.
YARDSTICKS = {"deepspeech": 9.78, "elmo": 1.17, "lpcnet": 8.16, "dtln": 12.73, "bonito-sup": 40.72}
YARDSTICKS |= {"mlperf-rnnt-post": 5.94, "medaka": 6.80, "recbole-gru4rec": 0.17}


def test_models_of_the_list_have_known_yardsticks():
    for name, rows, core in (("models", 44, 22), ("networks", 82, 30)):
        listed = [model for model in model_list.models() if model.list == name]
        assert (len(listed), sum(model.core for model in listed)) == (rows, core)
        titles = {model.title or models_page.network(model) for model in listed}
        assert len(titles) == rows
    of_list = {model.name: model for model in model_list.models()}
    assert len(of_list) == 44 + 82
    for name, milliseconds in YARDSTICKS.items():
        assert 1e3 * of_list[name].least_seconds(True) == pytest.approx(milliseconds, abs=0.006)
    chain = [of_list["dtln"].least_seconds(training) for training in (True, False)]
    assert chain[0] == 2 * chain[1]


@pytest.mark.usefixtures("on_cpu")
def test_a_model_is_measured_by_each_system(monkeypatch):
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 0.001)
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.001)
    model = next(model for model in model_list.models() if model.name == "recbole-gru4rec")
    row = dataclasses.replace(model.row, units=4, inputs=3, batch=2, time=5)
    found = {
        (line["system"], line["variant"], line["training"]): len(line["ms"])
        for system in ("cudnn_rnn_tf", "torch", "keras")
        for line in models.measure(model._replace(row=row), system)
    }
    ways = [("cudnn_rnn_tf", "layer"), ("torch", "packed"), ("torch", "padded")]
    ways += [("keras", "cuDNN")]
    assert found == {(*way, training): models.SAMPLES for way in ways for training in (True, False)}
    # On a GPU, Keras runs float32 by cuDNN too.
    model = model._replace(row=dataclasses.replace(row, type="float32"))
    ways = [[*models.variants(model, "keras", on_cpu)] for on_cpu in (False, True)]
    assert ways == [["cuDNN"], ["compiled"]]
    (line,) = models.measure(model._replace(row=row), "cudnn_rnn_tf", of_memory=True)
    assert line["training"] and line["peak_bytes"] is None and "ms" not in line


@pytest.mark.usefixtures("on_cpu")
def test_padding_in_front_is_measured_beside_keras_without_cudnn(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 0.001)
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.001)
    monkeypatch.setattr(gpu_doors, "PADDING_ROWS", [Row("gru", 1, 4, 2, 2, 5, "float32", True)])
    data = tmp_path / "gpu_doors.jsonl"
    of_others = (RESULTS / data.name).read_text().splitlines()
    data.write_text("\n".join(line for line in of_others if "compiled" not in line) + "\n")
    options = {"padding": True, "device": "cpu", "only": "", "commit": "unknown", "output": data}
    step_of, compiles = gpu_doors.step_of, []
    monkeypatch.setattr(
        gpu_doors, "step_of", lambda *options: compiles.append(options[-1]) or step_of(*options)
    )
    gpu_doors.measure(argparse.Namespace(**options))
    assert compiles == [False, True, False, True]
    measured = json.loads(data.read_text().splitlines()[-1])["ms"]
    of_each = [measured[f"{system}, in front"] for system in gpu_doors.PADDED]
    keras, compiled, *own = map(statistics.median, of_each)
    doors, _, padding = tables(gpu_doors.page(data))
    assert len(doors) == 16 and padding[1][0] == "bidirectional GRU 4, B2 T5, float32, training"
    assert padding[1][1:3] == [f"{min(keras, compiled) / ms:.1f}" for ms in own]


def test_page_of_models_compares_with_the_faster_library(tmp_path):
    def line(model, system, variant, milliseconds, training=True):
        measured = {"ms": [milliseconds] * 3, "peak_bytes": 2_000_000, "training": training}
        return {"model": model, "system": system, "variant": variant} | measured

    failed = {"model": "elmo", "system": "torch", "variant": "process", "failed": "killed"}
    lines = [
        {"environment": {"GPU": "NVIDIA H200, 1.2; NVIDIA H200, 1.2"}},
        line("deepspeech", "cudnn_rnn_tf", "layer", 39.11),
        line("deepspeech", "cudnn_rnn_tf", "layer", 39.11, training=False),
        line("deepspeech", "torch", "packed", 90),
        line("deepspeech", "torch", "padded", 80),
        line("deepspeech", "keras", "cuDNN", 100),
        line("elmo", "cudnn_rnn_tf", "layer", 10),
        failed,
        line("isaac-allegro", "torch", "padded", 1),
        failed | {"model": "isaac-allegro"},
        line("isaac-allegro", "torch", "padded", 3),
        line("isaac-allegro", "cudnn_rnn_tf", "layer", 4),
    ]
    path = tmp_path / "models.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = models_page.page(path)
    models_page.plot(path, path.with_suffix(".svg"))
    of_training, of_inference = tables(page)
    elmo, isaac, deepspeech = of_training[1:]  # Those of which little is known come first.
    assert [*elmo[:2], *elmo[4:]] == ["ELMo", "–", "10", "–", "–", "0% / – / –", "2 / – / –"]
    assert [isaac[1], *isaac[4:7]] == ["0.75", "4", "3 (padded)", "–"]
    assert deepspeech[1:3] == ["2.05", "25%"]
    assert deepspeech[4:7] == ["39.1", "80 (padded)", "100 (cuDNN)"]
    assert deepspeech[-1] == "2 / 2 / 2" and of_inference[0][-1] == "spread"
    assert of_inference[1][4:7] == ["39.1", "–", "–"]
    assert "training 1.24 (least 0.75) over 2;" in page and "2 × NVIDIA H200, driver 1.2" in page
    assert (
        "* elmo, PyTorch, process, training: killed" in page
        and "isaac" not in page.split("## What failed")[1]
    )
    plot = path.with_suffix(".svg").read_text()
    assert ">Mozilla DeepSpeech</text>" in plot and ">ELMo<" not in plot and ">0.75</text>" in plot
    assert xml.etree.ElementTree.fromstring(plot).tag.endswith("svg")
    # Of a CPU, there is no yardstick, and sizes are others.
    path.write_text("".join(json.dumps(one) + "\n" for one in [{"environment": {}}, *lines[1:]]))
    of_training, *_ = tables(models_page.page(path))
    assert "share" not in of_training[0] and "B8 T100, float32" in of_training[3][2]


def test_page_of_networks_tells_lengths_from_full_length(tmp_path):
    path = tmp_path / "networks.jsonl"
    lines = [{"environment": {"GPU": "NVIDIA H200, 1.2"}}]
    for ending, milliseconds in (("float32", 4.0), ("tf32-lengths", 2.0)):
        name = "lstm-512-b64-t200-" + ending
        for system, factor in (("cudnn_rnn_tf", 1), ("keras", 3)):
            ms = [factor * milliseconds, factor * milliseconds * 1.1, factor * milliseconds]
            line = {"model": name, "system": system, "variant": "a", "ms": ms}
            lines += [line | {"training": training} for training in (True, False)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = models_page.page(path)
    title, full, lengths = tables(page)[0]
    assert title[:3] == ["network", "times as fast", "share"] and "network" not in title[1:]
    assert full[1:4] == ["3.00", "–", "4"] and full[-1] == "10% / – / 10%"
    assert full[0] == "LSTM 512, B64 T200, float32"
    assert lengths[0] == "LSTM 512, B64 T200, tf32, lengths"
    assert page.count("training 3.00 (least 3.00) over 1; inference 3.00") == 2


def test_networks_of_the_rule_are_random_and_its_page_counts_what_is_lost(tmp_path):
    networks = gpu_rule.networks(7, 150)
    assert networks == gpu_rule.networks(7, 150) != gpu_rule.networks(8, 150)
    rows = [row for row, _ in networks]
    for field, values in {"type": gpu_rule.TYPES, "mode": gpu_rule.MODES}.items():
        assert {getattr(row, field) for row in rows} == set(values)
    assert all(16 <= row.units <= 2560 and 1 <= row.batch <= 2048 for row in rows)
    assert all(model_list.flops_of(row) <= gpu_rule.MOST_FLOPS for row in rows)
    lines = [{"environment": {"GPU": "one", "seed": "7"}}]
    for (row, has_lengths), chosen in zip(networks, [1.04, 1.1, 1.3], strict=False):
        ms = {"auto": [1.5 * chosen], "persistent": [chosen], "standard": [2.0, 1.0, 3.0]}
        ms["persist_static"] = [1.0]
        line = dataclasses.asdict(row) | {"chosen": "persistent", "refused": {}, "ms": ms}
        lines.append(line | {"lengths": has_lengths})
    path = tmp_path / "rule.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = gpu_rule.page(path)
    shares, losses = tables(page)
    assert shares[1] == ["all", "1 of 3 (33.3%)", "2 of 3 (66.7%)"]
    assert [row[1] for row in losses[1:]] == ["1.30", "1.10"]
    assert "1.500 times as long in the median, and 1.50 to 1.50 times in nine" in page


@pytest.mark.usefixtures("on_cpu")
def test_a_network_of_the_rule_is_measured_by_each_algorithm(monkeypatch):
    row = Row("gru", 2, 5, 2, 3, 6, "float32", True)
    log = "1 cudnn_rnn_tf: LSTM: standard\n"
    monkeypatch.setattr(gpu_rule, "_logged", lambda call: call() or log)
    line = gpu_rule.measure(row, has_lengths=True)
    assert line["chosen"] == "standard"
    assert set(line["ms"]) == {"auto", *gpu_rule.fixed_algorithms()} and not line["refused"]
    assert (line["units"], line["training"], line["lengths"]) == (5, True, True)
    assert set(gpu_rule.measure(row, False, only_compile=True)) == set(line) - {"ms", "read"}
