# SPDX-License-Identifier: BSD-3-Clause
"""Settings that the April 2024 mail does not state: the stored grid against simulations and Bayes's rule by hand."""

import numpy as np
import pandas as pd
import pytest

from simlib.measurements.fits import find_fit
from simlib.model.quantities import format_bandwidth, format_duration, format_size
from studies.migrations import settings
from studies.x86 import hosts


def _never_cancel(*_):
    """Never end a simulation early."""


@pytest.fixture(scope="module")
def table():
    return settings.load_grid()


@pytest.mark.parametrize("row", [31, 127, 443])
def test_the_stored_grid_equals_a_simulation(table, row):
    """``checks/shipped.py`` writes the grid."""
    chosen = {name: table.iloc[row][name] for name in settings.SETTINGS}
    chosen = {name: value.item() if hasattr(value, "item") else value for name, value in chosen.items()}
    assert chosen == settings.grid()[row]
    stored = table.iloc[row][[settings.column(n) for n in settings.NUMBERS]].to_numpy(dtype=float)
    assert stored == pytest.approx(
        settings.changes(chosen, find_fit(hosts.configurations()).estimate, _never_cancel), rel=1e-4, abs=1e-5
    )


def test_the_shipped_settings_are_about_as_likely_as_the_likeliest(table):
    workload = hosts.configurations().workload
    shipped = {
        "access_interval": format_duration(workload.access_interval), "write_percent": workload.write_percent,
        "link": format_bandwidth(workload.link), "pass_limit": workload.pass_limit,
        "clear_chunk": format_size(workload.clear_chunk), "clear_threads": workload.clear_threads,
    }  # fmt: skip
    weighted = settings.posterior(table)
    chosen = weighted[(weighted[list(shipped)] == pd.Series(shipped)).all(axis=1)]["weight"]
    assert len(chosen) == 1
    assert chosen.iloc[0] > weighted["weight"].max() / 2


def test_weights_are_bayess_rule(table):
    few = table.iloc[[31, 127, 443]].reset_index(drop=True)
    weights = settings.posterior(few, without=4)["weight"].to_numpy()
    observed, likelihoods = settings.published(), []
    for row in few.to_dict("records"):
        terms = [np.exp(-0.5 * ((row[settings.column(n)] - log) / (0.03 + 0.1 * abs(log))) ** 2)
                 for i, (n, log) in enumerate(zip(settings.NUMBERS, observed, strict=True)) if i != 4]  # fmt: skip
        likelihoods.append(np.prod(terms))
    assert weights == pytest.approx(np.array(likelihoods) / sum(likelihoods))


def test_seven_of_the_nine_numbers_are_predictions(table):
    """Configuration 3 determines the settings that the mail does not state; its CPU time of CLEAR is missed."""
    nine = settings.predictive(table).set_index(["configuration", "metric"])
    assert (nine["low"] < nine["published"]).all()
    others = nine[nine["role"] != "predicted"]
    assert others["role"].to_dict() == {(3, "dirty_left"): "not determined", (3, "clear_cpu_time"): "missed"}
    assert 4500 < nine.loc[3, "clear_cpu_time"]["high"] < nine.loc[3, "clear_cpu_time"]["published"]
