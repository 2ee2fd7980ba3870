# SPDX-License-Identifier: BSD-3-Clause
"""Instructions to nanoseconds: what the statistics take, the ratios, leave-one-out, and the priors made of them."""

import numpy as np
import pandas as pd
import pytest

from simlib.calibration import lab, translation
from simlib.decision.priors import load_priors


@pytest.fixture(scope="module")
def table():
    return translation.ratio_table()


@pytest.mark.parametrize("name", lab.LABS)
def test_the_statistics_take_as_much_wherever_the_lock_is_taken(name):
    """About 225 instructions on x86 for each time; and none where faults take no lock."""
    own = translation.statistics_own(name)
    assert 220 < own["letting go"] < 300
    if name == "x86-npt":
        assert abs(own["fault"]) < 2
    else:
        assert own["fault"] == pytest.approx(own["letting go"], rel=0.1)
    for counted in translation.instructions(name).values():
        assert 0 < counted.low <= counted.value <= counted.high


def test_each_architecture_left_out(table):
    """CLEAR and the exit translate within a factor of 2; holds do not: arm64's barriers are few instructions."""
    worst = table.groupby("kind")["factor"].max()
    assert worst["clear"] < 1.7
    assert worst["exit"] < 1.1
    assert 2 < worst["hold"] < 3
    assert np.isnan(worst["letting go"])


def test_a_translation_is_the_mean_of_the_logarithms_and_pooled_spread():
    rows = [("a", 1.0), ("a", 2.0), ("b", 3.0), ("b", 3.0)]
    given = pd.DataFrame(rows, columns=["kind", "ns_per_instruction"])
    found = translation.translate("a", 100, given)
    assert found.time_ns == pytest.approx(100 * np.sqrt(2))
    spread = np.sqrt(2 * (np.log(2) / 2) ** 2 / 2)
    assert found.factor == pytest.approx(np.exp(2.91999 * spread * np.sqrt(1.5)), rel=1e-4)


@pytest.mark.parametrize("kind", list(translation.KINDS))
def test_the_priors_of_riscv_are_translations(table, kind):
    prior = load_priors("riscv")[translation.KINDS[kind]]
    counted = translation.instructions("riscv")[kind].value
    found = translation.translate(kind, counted, table)
    assert prior.median == pytest.approx(found.time_ns * 1000, rel=0.02)
    assert prior.factor == pytest.approx(found.factor, rel=0.05)
    assert f"{counted:.0f} instructions" in prior.source
