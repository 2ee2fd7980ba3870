# SPDX-License-Identifier: BSD-3-Clause
"""The selection keeps its promise: correct at least as often as stated, over problems made to be hard."""

import numpy as np
import pytest

from simlib.decision import select_best
from simlib.errors import InputError

PROBLEMS = 600
CONFIDENCE = 0.9


def problem(number):
    """Means in the least favourable configuration, and noise of unequal size with a common part."""
    rng = np.random.default_rng([7, number])
    k = int(rng.integers(2, 13))
    zone = float(rng.uniform(0.5, 2.0))
    means = np.full(k, zone)
    best = int(rng.integers(k))
    means[best] = 0.0
    own, common = rng.uniform(0.3, 3.0, k), float(rng.uniform(0, 3))

    def sample(replication, alive):
        one = np.random.default_rng([11, number, replication])
        shared, noise = one.normal(), one.normal(size=k)
        return (means + common * shared + own * noise)[alive]

    return k, zone, best, sample


def test_correct_selections_are_at_least_as_many_as_stated():
    """600 problems in which every other alternative is worse by exactly the zone; one-sided 99.9 % binomial margin."""
    right = 0
    for number in range(PROBLEMS):
        k, zone, best, sample = problem(number)
        found = select_best(k, sample, zone, confidence=CONFIDENCE, first=12)
        assert not found.exhausted
        right += found.best == best
    assert right / PROBLEMS >= CONFIDENCE


def test_common_random_numbers_save_replications():
    rng = np.random.default_rng(3)
    shared = rng.normal(size=5000) * 5
    own = rng.normal(size=(5000, 4))
    means = np.array([0.0, 1, 1, 2])
    common = select_best(4, lambda n, alive: (means + shared[n] + own[n])[alive], 0.5)
    apart = select_best(4, lambda n, alive: (means + 5 * own[n] + own[n - 1])[alive], 0.5)
    assert common.best == apart.best == 0
    assert len(common.samples) < 0.2 * len(apart.samples)


def test_what_is_far_worse_is_dropped_at_once_however_noisy():
    """Its noise is in proportion to its mean; without screening, its region would be left after 20 000 replications."""
    rng = np.random.default_rng(9)
    noise = rng.normal(1, 0.3, size=(100, 2))
    found = select_best(2, lambda n, alive: (np.array([1.0, 1000.0]) * noise[n])[alive], zone=0.02, limit=100)
    assert np.isnan(found.samples[16:, 1]).all()
    assert not found.exhausted


def test_what_is_as_good_is_said():
    """Two that do not differ, one that is worse by far: the interval of the first lies in the zone."""
    rng = np.random.default_rng(5)
    noise = rng.normal(size=(2000, 3)) * 0.1
    means = np.array([1.0, 1.0, 9.0])
    found = select_best(3, lambda n, alive: (means + noise[n])[alive], zone=0.5)
    table = found.table()
    assert table["as_good"].tolist() == [True, True, False]
    assert (table["low"] <= table["difference"]).all()
    assert table.loc[2, "low"] > 0.5


def test_a_limit_ends_it_without_the_guarantee():
    noise = np.random.default_rng(1).normal(size=(50, 2))
    found = select_best(2, lambda n, alive: noise[n][alive], zone=0.001, limit=40)
    assert found.exhausted
    assert len(found.samples) == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [({"zone": 0.0}, "indifference zone = 0.0: must be above 0"),
     ({"confidence": 1.0}, "confidence = 1.0: must lie between"), ({"first": 1}, "first replications = 1: must be")],
)  # fmt: skip
def test_bad_arguments_are_named(change, message):
    with pytest.raises(InputError, match=message):
        select_best(**{"alternatives": 2, "sample": lambda n, alive: np.zeros(2), "zone": 1.0} | change)
    with pytest.raises(InputError, match=r"replication 0 = \[nan, 0.0\]: must give 2 finite numbers"):
        select_best(2, lambda n, alive: np.array([np.nan, 0.0]), 1.0)
