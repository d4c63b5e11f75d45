"""Tests how gradients and inference use recurrent dropout."""

import dataclasses

import pytest
import random_configs
import test_second_order

pytestmark = pytest.mark.usefixtures("on_cpu")

CASES = [
    random_configs.with_recurrent_dropout(case) for case in random_configs.random_cases(24, seed=7)
]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.config.num_units < 42][:8], ids=str
)
def test_gradient_of_the_gradient(case):
    test_second_order.check_second_gradients(case)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES[:8], ids=str)
def test_out_of_training_it_does_nothing(case, dtype):
    """Results and gradients are the same to the bit as without recurrent dropout."""
    data = random_configs.draw_data(case, dtype)
    results = [
        random_configs.run_ops(
            dataclasses.replace(
                case,
                config=dataclasses.replace(case.config, recurrent_dropout=rate),
                is_training=False,
            ),
            data,
        )
        for rate in (0.0, 0.3)
    ]
    assert random_configs.bits(results[0]) == random_configs.bits(results[1])
