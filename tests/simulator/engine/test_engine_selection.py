# SPDX-License-Identifier: BSD-3-Clause
"""Selection of the engine while the compiled one is not compiled."""

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
    monkeypatch.setattr(engine_selection._ReferenceEvents, "events", 0)
    return runs


def job_of(memory):
    return build(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": memory}}))


def test_a_small_run_uses_the_reference_engine_until_compiling_pays(began):
    job = job_of("2M")
    first = engine_selection.run(job)
    assert engine_selection._ReferenceEvents.events == first.events > 0
    engine_selection._ReferenceEvents.events = engine_selection.COMPILE_AFTER_EVENTS
    assert engine_selection.run(job) == first
    assert began == [reference, compiled]


def test_a_longer_run_uses_the_compiled_engine(began):
    engine_selection.run(job_of("32M"))
    assert began == [reference, compiled], "its events say so"
    engine_selection.run(job_of("128M"))
    assert began[2:] == [compiled], "its memory says so"
    assert engine_selection._ReferenceEvents.events == 0


def test_a_cached_engine_is_loaded_after_fewer_events(began, monkeypatch):
    monkeypatch.setattr(compiled, "is_compiled", lambda: True)
    job = job_of("2M")
    engine_selection.run(job)
    engine_selection.run(job)
    assert began == [reference, reference, compiled], "the second would take longer than loading"
    monkeypatch.setattr(compiled, "is_loaded", lambda: True)
    monkeypatch.setattr(engine_selection._ReferenceEvents, "events", 0)
    engine_selection.run(job)
    assert began[-1] is compiled
