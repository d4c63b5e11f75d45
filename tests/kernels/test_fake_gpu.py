"""Tests code for GPUs with fakes of drivers and cuDNN, which only record calls."""

import os
import pathlib
import re
import subprocess

import pytest
from cxx import COMPILER, GPU_BACKEND, ROOT, compiled, objects_of
from sanitize import FIXED_ADDRESSES

from benchmarks import gpu_rule

GRAPHS = [f"kernels/gpu/{name}.cc" for name in ("graph", "graph_cache", "recording")]
NETWORK = ["kernels/param_layout.cc", "kernels/rnn_spec.cc"]
DIVISION = [f"kernels/gpu/persistent/{name}.cc" for name in ("division", "step_cost")]


def output_of(*command: str | pathlib.Path, **environment: str) -> str:
    completed = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.mark.parametrize(
    ("program", "seeds", "sources"),
    [
        ("graphs_on_fake_driver", 2, GRAPHS),
        (
            "backend_on_fake_gpu",
            300,
            [
                *("kernels/rnn_backend.cc", "kernels/gpu/session.cc", *NETWORK),
                *(f"kernels/gpu/{name}.cc" for name in ("algorithm_rule", "gpu_plan")),
                "kernels/gpu/gpu_backend.cc",
                *("kernels/gpu/device_limits.cc", "kernels/keras_layout.cc"),
            ],
        ),
    ],
)
@pytest.mark.slow
def test_program(tmp_path, program, seeds, sources):
    executable = compiled(tmp_path, program, sources)
    assert output_of(executable, str(seeds)) == f"{seeds} seeds passed\n"


def test_rule_of_random_networks(tmp_path):
    """What the rule names can run; how fast it is, the next test asks."""
    sources = ["kernels/gpu/algorithm_rule.cc", "kernels/rnn_spec.cc"]
    executable = compiled(tmp_path, "rule_of_random_networks", sources)
    assert output_of(executable) == "well\n"


# Networks that cuDNN lacks, by mode, units, batch, type and zoneout, and how many times as long as
# the persistent kernels single steps took to train 24 steps on an H200.
OF_STEPS = {
    "lstm_layer_norm, 512, 256, float16, 0": 1.27,
    "gru_layer_norm, 512, 128, float16, 0": 1.50,
    "lstm, 1024, 256, float16, 0.1": 0.96,
    "lstm, 512, 512, tf32, 0.1": 1.17,
    "gru, 1024, 128, float16, 0.1": 1.10,
    "gru, 1536, 32, float16, 0.1": 1.14,
    "rnn_tanh, 688, 512, float32, 0.1": 0.41,
    "lstm_peephole, 512, 1024, float16, 0": 1.20,
    "lstm_peephole, 1400, 200, float16, 0": 0.62,
    "lstm_peephole, 512, 256, float32, 0": 1.12,
}


def choices_of(tmp_path: pathlib.Path, networks: list[str]) -> list[list[str]]:
    """Returns what tests/programs/choices_of_networks.cc says of networks."""
    executable = compiled(tmp_path, "choices_of_networks", GPU_BACKEND)
    lines = "\n".join(networks)
    completed = subprocess.run(
        [executable], input=lines, capture_output=True, text=True, check=True
    )
    return [line.split() for line in completed.stdout.splitlines()]


def test_single_steps_run_where_they_are_faster(tmp_path):
    lines = ["{} 1 {} 1 {} 24 {} 1 0 {}".format(*network.split(", ")) for network in OF_STEPS]
    are_steps = [choices[-1] == "1" for choices in choices_of(tmp_path, lines)]
    assert are_steps == [times < 1.0 for times in OF_STEPS.values()]


def test_rule_is_held_to_measurements(tmp_path):
    """Of random networks, what the rule takes is hardly ever slower than what it could take."""
    rows, _ = gpu_rule.read(ROOT / "benchmarks" / "results" / "gpu_rule.jsonl")
    assert len(rows) > 400
    fields = ("mode", "layers", "units", "directions", "batch", "time", "type")
    networks = [
        " ".join(str(row[field]) for field in fields) + f" {row['training']:d} {row['lengths']:d} 0"
        for row in rows
    ]
    wrong, far = [], []
    for row, name, choices in zip(rows, networks, choices_of(tmp_path, networks), strict=True):
        times = row["ms"]
        chosen = times[next(choice for choice in choices if choice in times)]
        lost = chosen / gpu_rule.best(row)[0]
        text = f"{name}: {chosen:.3f} of {times}"
        wrong += [text] * (lost > 1.05)
        far += [text] * (lost > 1.2)
    assert len(wrong) <= 0.05 * len(rows), wrong
    assert not far, far


def test_calls_of_warm_passes(tmp_path):
    """A warm pass asks little of the driver and the heap, and failures that pass are forgotten."""
    sources = [source for source in GPU_BACKEND if not str(source).endswith("gpu/libraries.cc")]
    executable = compiled(tmp_path, "calls_of_warm_passes", sources)
    assert output_of(executable, CUDNN_RNN_TF_KERNEL_CACHE="").count("+") == 8


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0, 8),
        pytest.param(8, 24, marks=pytest.mark.slow),
        pytest.param(24, 400, marks=[pytest.mark.slow, pytest.mark.thorough]),
    ],
)
def test_persistent_kernels_compile_for_all_gpus(tmp_path, first, last):
    """CUDA's compiler needs no GPU. It says where a kernel has too few registers.

    All kernels take an hour of one core.
    """
    nvrtc = pytest.importorskip("nvidia.cuda_nvrtc")
    (library,) = pathlib.Path(nvrtc.__path__[0], "lib").glob("libnvrtc.so.*")
    sources = ["kernels/rnn_spec.cc", *COMPILER, *DIVISION]
    executable = compiled(tmp_path, "compile_persistent_kernels", sources)
    compiled_all = rf"{last - first} of \d+ kernels compiled\n"
    assert re.fullmatch(compiled_all, output_of(executable, library, str(first), str(last)))


def test_kernels_on_fake_gpus(tmp_path):
    """Which division of a layer is compiled, what becomes of failures, and what is imitated."""
    sources = sorted((ROOT / "kernels" / "gpu" / "persistent").glob("*.cc"))
    sources += ["kernels/gpu/device_limits.cc", "kernels/gpu/product.cc", "kernels/rnn_backend.cc"]
    sources += NETWORK
    executable = compiled(tmp_path, "kernels_on_fake_gpu", sources)
    for imitated in ("", "T4", "A100", "RTX 5090", "H100", "A1000", "A100,"):
        output = output_of(executable, CUDNN_RNN_TF_IMITATE_GPU=imitated)
        assert output == f"kernels run as {imitated or 'what they are'} should\n"
    # The guide's table says up to how many units the GPUs have room for.
    sizes = output_of(executable, "sizes")
    guide = (ROOT / "docs" / "guides" / "gpu.md").read_text()
    for name, *counts in (line.split(", ") for line in sizes.splitlines()):
        (row,) = re.findall(rf"^\| .*\b{name}\b.*\| \d+\.\d \|(.*)$", guide, re.MULTILINE)
        if "no |" in row:  # There is no TF32.
            del counts[1]
        assert re.findall(r"\b\d{3,4}\b", row) == counts, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "sources"),
    [
        ("graphs_on_fake_driver", GRAPHS),
        (
            "caches_in_many_threads",
            [
                *("kernels/gpu/persistent/kernel.cc", *DIVISION, "kernels/gpu/session.cc"),
                *("kernels/rnn_backend.cc", *NETWORK, *COMPILER),
            ],
        ),
    ],
)
def test_locks(tmp_path, program, sources):
    """ThreadSanitizer reports what threads of a process use without a lock."""
    executable = compiled(tmp_path, program, sources, "-fsanitize=thread", "-g1")
    # There are no files, whose use would order what threads do.
    output_of(*FIXED_ADDRESSES, executable, CUDNN_RNN_TF_KERNEL_CACHE="")


STUBS = {
    "cudnn": "nvidia/cudnn/lib/libcudnn.so.9",
    "cublas": "nvidia/cublas/lib/libcublas.so.12",
    "cublas13": "nvidia/cu13/lib/libcublas.so.13",
    "nvrtc": "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
    "cuda": "driver/libcuda.so.1",
}


def make_stub(folder: pathlib.Path, library: str, nvrtc: int = 9) -> pathlib.Path:
    """A library in which all functions of a table in libraries.h do nothing.

    NVRTC says that its version is 12 and a minor one, `nvrtc`.
    """
    header = (ROOT / "kernels" / "gpu" / "libraries.h").read_text()
    (table,) = re.findall(
        rf"define CRNN_{library.upper().rstrip('13')}_FUNCTIONS\(F\)((?:.*\\\n)+.*\n)", header
    )
    names = re.findall(r"F\((\w+)\)", table)
    # The driver exports some under the names of newer versions.
    versions = ["", "_v2", "_v3"] if library == "cuda" else [""]
    functions = [
        f"long {name}{version}(void) {{ return 91900; }}"
        for name in names
        for version in versions
        if name != "nvrtcVersion"
    ]
    functions.append(f"int nvrtcVersion(int* a, int* b) {{ *a = 12; *b = {nvrtc}; return 0; }}")
    folder.mkdir(exist_ok=True)
    source = folder / f"{library}.c"
    source.write_text("\n".join(functions))
    path = folder / STUBS[library]
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ("-shared", "-fPIC", f"-Wl,-soname,{path.name}")
    subprocess.run(["gcc", *options, source, "-o", path], check=True)
    return path


@pytest.mark.parametrize(
    ("loaded", "has_package"),
    [
        *(("cudnn cublas", True), ("cudnn", True), ("cublas", True), ("cudnn cublas", False)),
        ("cublas cublas13", True),
    ],
)
def test_libraries_among_pips_packages(tmp_path, loaded, has_package):
    """TensorFlow loads some of pip's libraries by their paths; the others lie beside them.

    An NVRTC of the system that is too old neither hides pip's nor is used. The newest cuBLAS that
    is loaded is used, or the newest that there is.
    """
    executable = compiled(tmp_path, "libraries_in_packages", ["kernels/gpu/libraries.cc"])
    libraries = [library for library in STUBS if has_package or library != "nvrtc"]
    stubs = {library: make_stub(tmp_path, library) for library in libraries}
    system = make_stub(tmp_path / "system", "nvrtc", nvrtc=1).parent
    folders = f"{stubs['cuda'].parent}:{system}"
    paths = [stubs[library] for library in loaded.split()]
    expected = (
        f"loaded, NVRTC 12.9, libcublas.so.{12 if loaded.endswith('cublas') else 13}\n"
        if has_package
        else "the package's own kernels need cuBLAS and NVRTC: NVRTC must be of version 12.3 or "
        "newer, but libnvrtc.so.12 has version 12.1\n"
    )
    assert output_of(executable, *paths, LD_LIBRARY_PATH=folders) == expected


def test_compiled_code_in_files(tmp_path):
    executable = compiled(
        tmp_path, "compiled_code_in_files", ["kernels/gpu/compiled_code_cache.cc"]
    )
    done = subprocess.run([executable, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout == "files hold what they should\n"
    assert done.stderr.count(f"kernels are not kept in {tmp_path / 'a' / 'b'}, since") == 1


def test_sequences_lie_within_the_buffers(tmp_path):
    gpu = ROOT / "kernels" / "gpu"
    options = ("-DIS_FLOAT", "-Wno-unused-function", "-Wno-unknown-pragmas")
    options = (f"-I{gpu}", f"-I{gpu}/persistent", *options)
    output_of(compiled(tmp_path, "sequences_on_fake_device", [], *options))


@pytest.mark.slow
def test_nothing_is_destroyed_at_exit(tmp_path):
    """Threads may use what is static until the process ends."""
    objects = objects_of(tmp_path, GPU_BACKEND)
    symbols = output_of("nm", "-A", "--undefined-only", *objects).splitlines()
    assert any("__cxa_guard_acquire" in symbol for symbol in symbols)
    assert [symbol for symbol in symbols if "__cxa_atexit" in symbol] == []
