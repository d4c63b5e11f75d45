"""A cell that is added by the rows of architecture.md's table runs on CPUs and on the fake GPU."""

import shutil
import subprocess

import cxx
import emulated_layers
import pytest
import test_persistent_kernels

# This is what a plain cell with tanh computes, in other words.
CELL = """
struct Toy : CellShape<1> {
  static constexpr bool kBoundsH = true;

  template <typename F, typename V>
  static void Forward(const F& f, const V* z, V* h, V*, V* kept) {
    *h = kept[0] = f.OneMinus(f.OneMinus(f.Activate(z[0])));
  }
  template <typename Factor>
  using Factors = Factor;
  template <typename F, typename V>
  static typename F::Factor Prepare(const F& f, const V* kept, V, V, V) {
    return f.Product(f.OneMinus(kept[0]), f.OneMinus(-kept[0]));
  }
  template <typename Factor, typename V>
  static void Backward(const Factor& slope, V dh, V*, V*, V* dz) { dz[0] = dh * slope; }
};
"""
# The files that have rows of cells, with the row before the new one.
ROWS = [
    ("cells/cells.h", '#include "rnn.h"\n', '#include "toy.h"\n'),
    ("cells/cells.h", "LstmPeephole, LstmLayerNorm, GruLayerNorm", ", Toy"),
    ("rnn_spec.h", "  kGruLayerNorm,\n", "  kToy,\n"),
    ("rnn_spec.cc", "-1, kNormsOfGru}}", ', Row<Toy>{{RnnMode::kToy, "toy", "Toy", kOneGate}}'),
]
PROGRAM = """
#include <cmath>
#include "kernels/cpu/norm_loops.h"
#include "kernels/rnn_spec.h"
int main() {
  using namespace cudnn_rnn_tf;
  using Functions = baseline::CellFunctions<double>;
  const auto& toy = baseline::MakeCellKernels<double, Functions>(
      baseline::AllCells())[static_cast<int>(RnnMode::kToy)];
  double gate = 0.3, h = 0.0, dh = 2.0;
  CellRow<double> row = {};
  row.gates = &gate, row.h = &h, row.dh = &dh;
  toy.forward(1, row);
  toy.backward(1, row);
  const double y = std::tanh(0.3);
  if (std::abs(h - y) > 1e-15 || std::abs(gate - 2.0 * (1.0 - y * y)) > 1e-14) return 1;

  const auto& zoned = baseline::MakeCellKernels<double, Functions>(
      baseline::ZoneoutCells())[static_cast<int>(RnnMode::kToy)];
  double before = -0.5, share = 0.25;
  row.h_before = &before, row.zones = &share;
  gate = 0.3;
  zoned.forward(1, row);
  return std::abs(h - (0.25 * before + 0.75 * y)) < 1e-15 ? 0 : 2;
}
"""


@pytest.mark.slow
def test_a_file_and_four_rows_add_a_cell(tmp_path, monkeypatch):
    root = tmp_path / "root"
    for folder in ("kernels", "tests/programs"):
        shutil.copytree(cxx.ROOT / folder, root / folder)
    (root / "kernels/cells/toy.h").write_text(CELL)
    (root / "toy.cc").write_text(PROGRAM)
    for name, before, row in ROWS:
        text = (root / "kernels" / name).read_text()
        assert text.count(before) == 1
        (root / "kernels" / name).write_text(text.replace(before, before + row))
    simd = ("-DCRNN_SIMD_NAME=baseline", "-DCRNN_SIMD_BYTES=16", "-Wno-psabi")
    command = ["g++", "-std=c++17", "-O1", *simd, f"-I{root}", root / "toy.cc"]
    subprocess.run([*command, root / "kernels/rnn_spec.cc", "-o", root / "toy"], check=True)
    subprocess.run([root / "toy"], check=True)

    flags = [flag.replace(str(cxx.ROOT), str(root)) for flag in cxx.KERNEL_FLAGS]
    monkeypatch.setattr(cxx, "KERNEL_FLAGS", flags)
    monkeypatch.setattr(cxx, "ROOT", root)
    monkeypatch.setattr(emulated_layers, "ROOT", root)
    monkeypatch.setattr(emulated_layers, "cell_macro", lambda *_: "-DCELL=Toy")
    shape = next(shape for shape in emulated_layers.SHAPES if shape.rnn_mode == "rnn_tanh")
    test_persistent_kernels.test_kernels_agree_with_the_reference(shape, True, tmp_path)
