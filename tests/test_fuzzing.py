# SPDX-License-Identifier: BSD-3-Clause
"""Ten thousand mutated inputs, and arbitrary text; ``make fuzz`` tries a million."""

from __future__ import annotations

from random import Random

import fuzzing
from hypothesis import given, settings
from hypothesis import strategies as st

from simlib._lib.reading import parse_json, parse_toml
from simlib.measurements import import_text, importers
from simlib.measurements.condition import parse_condition
from simlib.model import quantities, strategy
from simlib.model.scenario import FILE, Scenario
from simlib.ui.explorer.state import ExplorerState

READERS = (
    quantities.parse_duration, quantities.parse_size, quantities.parse_bandwidth, parse_condition, strategy.strategy,
    ExplorerState.from_query, lambda text: Scenario.parse(parse_toml(text, "a.toml", FILE)),
    lambda text: parse_json(text, "a.json", "JSON"),
    *(lambda text, kind=kind: import_text(kind, text) for kind in importers.KINDS),
)  # fmt: skip


def test_mutated_inputs_are_read_or_refused():
    faults = fuzzing.try_inputs(0, 10_000)
    assert not faults, "\n".join(f"input {fault.number} ({fault.target}): {fault.text}" for fault in faults[:3])


@settings(max_examples=200)
@given(text=st.text(max_size=80))
def test_any_text_is_read_or_refused(text):
    for read in READERS:
        with fuzzing.expect_refusal(b""):
            read(text)


def test_a_reader_that_raises_is_reported(monkeypatch):
    def bad(_random: Random) -> bytes:
        raise KeyError("unexpected")

    monkeypatch.setattr(fuzzing, "TARGETS", {bad: 1})
    assert [fault.target for fault in fuzzing.try_inputs(5, 2)] == ["bad", "bad"]
