"""Times steps that take turns."""

import time
from collections.abc import Callable

from benchmarks.rows import DRAWS

WARM_UP_SECONDS, SAMPLE_SECONDS, SAMPLES = 0.2, 0.05, 7


# Runs a step, which is given its number.
StepFunction = Callable[[int], None]


def sample_in_turns(
    steps: dict[str, StepFunction],
    wait: Callable[[], None],
    fewest: int = DRAWS,
    samples_of_each: int = SAMPLES,
) -> dict[str, list[float]]:
    """Milliseconds of a step of each variant, some times.

    A sample has at least `fewest` steps, or one step if that takes longer than a sample should.
    """

    def seconds(step: StepFunction, count: int) -> float:
        start = time.perf_counter()
        for index in range(count):
            step(index)
        wait()
        return (time.perf_counter() - start) / count

    counts = {}
    for variant, step in steps.items():
        deadline = time.perf_counter() + WARM_UP_SECONDS
        seconds(step, 1)
        if seconds(step, 1) > SAMPLE_SECONDS:
            counts[variant] = 1
            continue
        seconds(step, 2 * fewest)
        while time.perf_counter() < deadline:
            seconds(step, fewest)
        counts[variant] = max(fewest, int(SAMPLE_SECONDS / seconds(step, fewest)))
    samples: dict[str, list[float]] = {variant: [] for variant in steps}
    for _ in range(samples_of_each):
        for variant, step in steps.items():
            samples[variant].append(round(1e3 * seconds(step, counts[variant]), 5))
    return samples
