"""The GPUs that `docs/guides/gpu.md` has a table of and `cudnn-rnn-tf info` reads."""

import re

COLUMNS = (
    *("GPU", "compute capability", "half types", "TF32", "float32 without TF32"),
    "how it was tried",
)
# A name such as RTX 30 stands for the whole series; the card in parentheses has the row's numbers.
ROWS = (
    ("T4", "7.5", "float16: 768", "no", "384", "imitated"),
    ("RTX 20 (RTX 2080 Ti)", "7.5", "float16: 800", "no", "400", "compiled"),
    ("A100", "8.0", "1536", "1600", "1016", "imitated"),
    ("A30", "8.0", "1152", "1152", "768", "compiled"),
    ("A10", "8.6", "1152", "1152", "672", "compiled"),
    ("RTX 30 (RTX 3090)", "8.6", "1280", "1312", "672", "compiled"),
    ("L4", "8.9", "960", "960", "672", "imitated"),
    ("L40S", "8.9", "1280", "1408", "768", "compiled"),
    ("RTX 40 (RTX 4090)", "8.9", "1280", "1408", "768", "imitated"),
    ("H100, H200", "9.0", "2112", "2112", "1152", "run"),
    ("B200", "10.0", "2048", "2048", "1184", "compiled"),
    ("B300", "10.3", "2048", "2048", "1184", "compiled"),
    ("RTX 50 (RTX 5090)", "12.0", "1360", "1360", "768", "compiled"),
)


def row_of(device_name: str, compute_capability: str) -> dict[str, str]:
    """Returns a GPU's row, each column's title with its value; an empty one if there is no row.

    Args:
        device_name: as TensorFlow names the GPU, such as "NVIDIA A100-SXM4-40GB".
        compute_capability: such as "8.0".
    """
    for cells in ROWS:
        row = dict(zip(COLUMNS, cells, strict=True))
        if row["compute capability"] == compute_capability and _is_named(row["GPU"], device_name):
            return row
    return {}


def _is_named(names: str, device_name: str) -> bool:
    for name in re.split(r", | \(|\)", names):
        series = r"\d\d" if re.fullmatch(r"RTX \d\d", name) else ""
        if name and re.search(rf"\b{re.escape(name)}{series}(?!\d)", device_name):
            return True
    return False
