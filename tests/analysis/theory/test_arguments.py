# SPDX-License-Identifier: BSD-3-Clause
"""Every public function refuses a bad argument in one sentence: its name, its value, the rule, a hint."""

import dataclasses
import inspect
import math

import numpy as np
import pytest

from simlib._lib.errors import InputError
from simlib.analysis import theory
from studies.arm64 import scalability

CASE = theory.Batching(pages=64, work=1e-9, reacquire=1e-6, vcpus=2, think=1e-3, service=1e-6)
GOOD = {
    "amdahl": {"n": [1, 2], "serial": 0.5},
    "batch_costs": {"case": CASE, "batches": [64.0]},
    "best_batch": {"case": CASE, "weight": 1.0, "smallest": 64},
    "birth_death": {"arrival_rates": [1.0], "service_rates": [1.0]},
    "closed_lock": {"n": 2, "think": 1.0, "service_of_state": lambda _: 1.0},
    "fit_amdahl": {"n": [1, 2], "throughput": [1.0, 1.5]},
    "fit_universal_scalability": {"n": [1, 2, 4], "throughput": [1.0, 1.5, 2.0]},
    "from_time_per_vcpu_work": {"n": [1, 2], "time": [1.0, 1.5]},
    "machine_repairman": {"n": 2, "think": 1.0, "service": 1.0},
    "square_root_batch": {"case": CASE, "weight": 1.0},
    "universal_scalability": {"n": [1, 2], "contention": 0.5, "coherency": 0.1},
}
FUNCTIONS = {name: getattr(theory, name) for name in theory.__all__ if inspect.isfunction(getattr(theory, name))} | {
    name: value
    for name, value in vars(scalability).items()
    if inspect.isfunction(value) and value.__module__ == scalability.__name__ and not name.startswith("_")
}
"""Public functions of the closed forms: those of simlib, and the scalability laws of the arm64 study."""

COUNTS = [0, -1, 1.5, 2.0, True, "2", None, math.nan]
TIMES = [-1e-9, math.inf, math.nan, "1", None, True]
VECTORS = [[], [[1.0]], [-1.0], [math.nan], [math.inf], ["x"], None, 1.0]
SHARES = [-0.1, 1.1, math.nan, None, True]


def bad_arguments():
    for function, arguments in GOOD.items():
        for name, value in arguments.items():
            if isinstance(value, theory.Batching):  # checks its own fields: test_batching.py
                continue
            if callable(value):
                bad = [lambda _: -1.0, lambda _: math.nan, lambda _: None]
            elif isinstance(value, list):
                bad = VECTORS
            elif isinstance(value, int):
                bad = COUNTS
            else:
                bad = SHARES if name == "serial" else TIMES
            for wrong in bad:
                yield pytest.param(function, name, wrong, id=f"{function}-{name}-{wrong!r:.12}")


def test_every_public_function_is_swept():
    assert set(FUNCTIONS) == set(GOOD)
    for function, arguments in GOOD.items():
        FUNCTIONS[function](**arguments)


@pytest.mark.parametrize(("function", "changes"), [*((name, {}) for name in GOOD), ("closed_lock", {"think": 0.0})])
def test_the_arrays_of_a_result_cannot_be_changed(function, changes):
    result = FUNCTIONS[function](**GOOD[function] | changes)
    if dataclasses.is_dataclass(result):
        arrays = [value for value in vars(result).values() if isinstance(value, np.ndarray)]
        assert [array.flags.writeable for array in arrays] == [False] * len(arrays)


@pytest.mark.parametrize(("function", "name", "wrong"), list(bad_arguments()))
def test_bad_argument(function, name, wrong):
    with pytest.raises(InputError) as caught:
        FUNCTIONS[function](**{**GOOD[function], name: wrong})
    assert caught.value.what.startswith(name)
    assert caught.value.rule.startswith("must be")
    assert caught.value.hint


def test_a_cycle_without_time_is_refused():
    with pytest.raises(InputError, match="must not all be 0"):
        theory.machine_repairman(2, 0.0, 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.birth_death([1.0], [1.0, 1.0]), r"len\(service_rates\) = 2: must be 1"),
        (lambda: theory.birth_death([1.0], [0.0]), r"service_rates\[0\] = 0.0: must be finite and above 0"),
        (lambda: theory.closed_lock(2, 0.0, lambda _: 0.0), r"service_of_state\(2\) = .*must not all be 0"),
        (lambda: scalability.fit_amdahl([1, 2], [1.0]), r"len\(throughput\) = 1: must equal len\(n\), 2"),
        (lambda: scalability.fit_amdahl([2, 2, 2], [1, 1, 1]), "at least 2 different values to fit 2 parameters"),
        (lambda: scalability.fit_universal_scalability([1, 2, 2], [1, 1, 1]), "at least 3 different values"),
    ],
)
def test_arguments_that_do_not_fit_together(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_numpy_scalars_are_accepted():
    lock = theory.machine_repairman(np.int64(2), np.float64(1.0), np.float32(1.0))
    assert lock.throughput == pytest.approx(0.8)
