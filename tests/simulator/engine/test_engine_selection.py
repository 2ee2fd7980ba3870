# SPDX-License-Identifier: BSD-3-Clause
"""Which engine runs a job while one of them is not compiled."""

import pytest

from simlib.model.scenario import Scenario
from simlib.simulator.engine import compiled, engine_selection, reference
from simlib.simulator.workloads import build


@pytest.fixture
def began(monkeypatch):
    """The engines that began a run, in turn; nothing is loaded or compiled."""
    runs = []

    def noted(engine):
        real = engine.run

        def run(*arguments, **options):
            runs.append(engine)
            return real(*arguments, **options)

        return run

    for engine in (compiled, reference):
        monkeypatch.setattr(engine, "run", noted(engine))
    for known in ("is_loaded", "is_compiled"):
        monkeypatch.setattr(compiled, known, lambda: False)
    monkeypatch.setattr(engine_selection._Spent, "events", 0)
    return runs


def job_of(memory):
    return build(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": memory}}))


def test_a_small_run_waits_for_no_compiler_until_compiling_pays(began):
    job = job_of("2M")
    first = engine_selection.run(job)
    assert engine_selection._Spent.events == first.events > 0
    engine_selection._Spent.events = engine_selection.PAYS
    assert engine_selection.run(job) == first
    assert began == [reference, compiled]


def test_a_longer_run_does_not(began):
    engine_selection.run(job_of("32M"))
    assert began == [reference, compiled], "its events say so"
    engine_selection.run(job_of("128M"))
    assert began[2:] == [compiled], "its memory says so"
    assert engine_selection._Spent.events == 0


def test_what_is_compiled_is_loaded_for_less(began, monkeypatch):
    monkeypatch.setattr(compiled, "is_compiled", lambda: True)
    job = job_of("2M")
    engine_selection.run(job)
    engine_selection.run(job)
    assert began == [reference, reference, compiled], "the second would take longer than loading"
    monkeypatch.setattr(compiled, "is_loaded", lambda: True)
    monkeypatch.setattr(engine_selection._Spent, "events", 0)
    engine_selection.run(job)
    assert began[-1] is compiled
