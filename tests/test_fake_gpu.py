"""Code for GPUs on drivers and a cuDNN that only note what they are told."""

import pathlib
import shutil
import subprocess

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent

SESSION = [
    *("kernels/cudnn/session.cc", "kernels/cudnn/replay.cc", "kernels/cudnn/captured_graph.cc"),
    *("kernels/cudnn/calls.cc", "kernels/cudnn/exchange.cc", "kernels/cudnn/plan.cc"),
    *("kernels/cudnn/ptx.cc", "kernels/rnn_spec.cc", "kernels/cudnn/resident.cc"),
    *("kernels/cudnn/resident_kernel.cc", "kernels/cudnn/resident_source.cc"),
]


def compiled(directory: pathlib.Path, program: str, sources: list[str]) -> pathlib.Path:
    """The executable of a program and sources of the package's."""
    headers = pathlib.Path(tf.sysconfig.get_include(), "third_party", "gpus")
    if not shutil.which("g++"):
        pytest.skip("there is no g++ to compile the program with")
    if not headers.is_dir():
        pytest.skip("this TensorFlow came without its headers")
    subprocess.run(
        [
            *("g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}"),
            *("-isystem", headers / "cuda" / "include", "-isystem", headers / "cudnn" / "include"),
            ROOT / "tests" / "programs" / f"{program}.cc",
            *(ROOT / source for source in sources),
            *("-ldl", "-o", directory / program),
        ],
        check=True,
    )
    return directory / program


@pytest.mark.parametrize(
    ("program", "seeds", "sources"),
    [
        (
            "replay_on_fake_driver",
            25,
            [
                *("kernels/cudnn/replay.cc", "kernels/cudnn/captured_graph.cc"),
                "kernels/cudnn/ptx.cc",
            ],
        ),
        ("choices_in_a_file", 20, ["kernels/cudnn/choice.cc"]),
        (
            "backend_on_fake_gpu",
            100,
            [
                *("kernels/cudnn/cudnn_backend.cc", "kernels/cudnn/session.cc"),
                *("kernels/cudnn/replay.cc", "kernels/cudnn/captured_graph.cc"),
                *("kernels/cudnn/ptx.cc", "kernels/cudnn/choice.cc"),
            ],
        ),
        (
            "measure_on_fake_gpu",
            200,
            [
                *("kernels/cudnn/measure.cc", "kernels/cudnn/session.cc"),
                *("kernels/cudnn/replay.cc", "kernels/cudnn/captured_graph.cc"),
                "kernels/cudnn/ptx.cc",
            ],
        ),
        (
            "batch_major_on_fake_gpu",
            500,
            [
                *("kernels/cudnn/calls.cc", "kernels/cudnn/exchange.cc"),
                *("kernels/cudnn/plan.cc", "kernels/cudnn/ptx.cc", "kernels/rnn_spec.cc"),
                *("kernels/cudnn/resident.cc", "kernels/cudnn/resident_kernel.cc"),
                "kernels/cudnn/resident_source.cc",
            ],
        ),
        ("resident_on_fake_gpu", 100, ["kernels/cudnn/resident.cc", "kernels/rnn_spec.cc"]),
        (
            "resident_kernel_on_fake_gpu",
            500,
            ["kernels/cudnn/resident_kernel.cc", "kernels/cudnn/resident_source.cc"],
        ),
        ("many_shapes_on_fake_driver", 8, SESSION),
        ("workspaces_on_fake_gpu", 50, SESSION),
    ],
)
def test_program(tmp_path, program, seeds, sources):
    executable = compiled(tmp_path, program, sources)
    completed = subprocess.run([executable, str(seeds)], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout
    assert completed.stdout == f"{seeds} seeds passed\n"


def test_resident_kernels_compile(tmp_path):
    """CUDA's compiler needs no GPU."""
    nvrtc = pytest.importorskip("nvidia.cuda_nvrtc")
    (library,) = pathlib.Path(nvrtc.__path__[0], "lib").glob("libnvrtc.so.*")
    sources = ["kernels/cudnn/resident_kernel.cc", "kernels/cudnn/resident_source.cc"]
    executable = compiled(tmp_path, "compile_resident_kernels", [*sources, "kernels/rnn_spec.cc"])
    completed = subprocess.run([executable, library], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout
    assert completed.stdout == "23 kernels compiled\n"
