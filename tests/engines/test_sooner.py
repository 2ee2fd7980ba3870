# SPDX-License-Identifier: BSD-3-Clause
"""Which engine runs a job while one of them is not compiled."""

import pytest

from simlib.engine import compiled, reference, sooner
from simlib.model.scenario import Scenario
from simlib.workloads import build


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
    monkeypatch.setattr(sooner._Spent, "events", 0)
    return runs


def job_of(memory):
    return build(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": memory}}))


def test_a_small_run_waits_for_no_compiler_until_compiling_pays(began):
    job = job_of("2M")
    first = sooner.run(job)
    assert sooner._Spent.events == first.events > 0
    sooner._Spent.events = sooner.PAYS
    assert sooner.run(job) == first
    assert began == [reference, compiled]


def test_a_longer_run_does_not(began):
    sooner.run(job_of("32M"))
    assert began == [reference, compiled], "its events say so"
    sooner.run(job_of("128M"))
    assert began[2:] == [compiled], "its memory says so"
    assert sooner._Spent.events == 0


def test_what_is_compiled_is_loaded_for_less(began, monkeypatch):
    monkeypatch.setattr(compiled, "is_compiled", lambda: True)
    job = job_of("2M")
    sooner.run(job)
    sooner.run(job)
    assert began == [reference, reference, compiled], "the second would take longer than loading"
    monkeypatch.setattr(compiled, "is_loaded", lambda: True)
    monkeypatch.setattr(sooner._Spent, "events", 0)
    sooner.run(job)
    assert began[-1] is compiled
