# SPDX-License-Identifier: BSD-3-Clause
"""Steps: their declarations, the checks of a job, its listing, and the manual's tables."""

from pathlib import Path

import numpy as np
import pytest

from simlib._lib.errors import InputError
from simlib.model.job import Job
from simlib.model.program import REGION, Lock, Program
from simlib.model.scenario import Scenario
from simlib.model.steps import EXTENTS, Mode, Quantity, Scan, Step
from simlib.model.throttle import QEMU
from simlib.simulator.engine import compiled, reference
from simlib.simulator.workloads import build

DOCS = Path(__file__).parents[2] / "docs"


def job_of(rows, **fields):
    rows = [[*row, *[0] * (6 - len(row))] for row in rows]
    return Job(np.array(rows), np.zeros(1, int), np.array([[0, 64]]), np.zeros(1, int), 0, 0, 0, np.zeros(1, int),
               throttle=QEMU, **fields)  # fmt: skip


def test_the_manual_has_every_step_and_quantity_as_it_is_declared():
    page = (DOCS / "steps.md").read_text(encoding="utf-8")
    for step in Step:
        arguments = ", ".join(map(documented, step.arguments)) or "none"
        assert f"| `{step.name}` | {step.meaning} | {arguments} |" in page
    for quantity in Quantity:
        name = " ".join(f"`{item.name}`" for item in (quantity, quantity.argument) if item is not None)
        assert f"| {name} | {quantity.meaning} |" in page
    first = [next(member.name for member in kind if member.shared) for kind in (Step, Quantity)]
    stated = "`{}` and the steps below it are *shared*, and so are `{}` and the quantities below it."
    assert stated.format(*first) in page


def documented(argument):
    """An argument in the manual's table; a sentence of the page explains arguments without a range."""
    plain = ("at least 0", "a step", f"one of the job's {argument.name}s")
    limits = argument.range().removeprefix("one of the job's ").replace("at least", "from")
    return f"`{argument.name}`" + ("" if argument.range() in plain or argument.words is Quantity else f" ({limits})")


def out_of_range(argument):
    """Return a value one below the range, and one above it if it has an end."""
    above = 99 if isinstance(argument.below, str) else argument.below
    above = len(argument.words) if argument.words is not None else above
    return [argument.least - 1, *([above] if above is not None else [])]


CASES = [(step, column, value) for step in Step for column, argument in enumerate(step.arguments)
         for value in out_of_range(argument)]  # fmt: skip


@pytest.mark.parametrize(("step", "column", "value"), CASES)
def test_an_argument_out_of_its_range_is_named(step, column, value):
    row = [int(step), *(max(argument.least, 0) for argument in step.arguments)]
    row[1 + column] = value
    with pytest.raises(InputError) as caught:
        job_of([[Step.WAKE], row, [Step.WAKE], [Step.END]], stamps=())
    name = step.arguments[column].name
    assert str(caught.value).startswith((f"job.steps[1] ({step.name}).{name} = {value}: must be", "job = SLEEP"))


@pytest.mark.parametrize("quantity", [q for q in Quantity if q.argument is not None])
def test_an_argument_of_a_quantity_out_of_its_range_is_named(quantity):
    for value in out_of_range(quantity.argument):
        if value < -1:
            continue  # refused for every argument
        with pytest.raises(InputError, match=rf"\(TEST\)\.{quantity.argument.name} = {value}: must be"):
            job_of([[Step.TEST, 0, quantity, value, 1], [Step.END]])


@pytest.mark.parametrize("scope", [1, 2])
def test_locks_of_threads_and_regions_must_all_exist(scope):
    with pytest.raises(InputError, match=r"\(TAKE\).lock = 0: needs more locks than the job has \(1\)"):
        Job(np.array([[Step.TAKE, 0, 1, scope, 0, 0], [Step.END, 0, 0, 0, 0, 0]]), np.zeros(2, int),
            np.array([[0, 64]] * 2), np.zeros(1, int), 0, 0, 0, np.zeros(2, int), pages=128)  # fmt: skip


def test_no_skip_leaves_its_extent():
    """Advance beyond the extent, a batch that does not divide its chunk, a skip in a short remainder."""
    p = Program()
    with p.thread():
        with p.loop(until=REGION.done()), p.extent(3 * 64) as chunk:
            with p.loop(until=chunk.done()), p.extent(2 * 64) as batch:
                p.advance(1000, batch)
                p.scan(Scan.COLLECT)
            p.skip(chunk)
        p.back(REGION)
    job = Job(p.steps(), np.zeros(1, int), np.array([[0, 7 * 64]]), np.zeros(1, int), 0, 0, 0, np.zeros(1, int),
              pages=8 * 64)  # fmt: skip
    reached = [(engine.run(job, ledger=99).ledger[:, 3] // 64).tolist() for engine in (reference, compiled)]
    assert reached == [[2, 3, 5, 6, 7]] * 2


def test_too_deep_extents_and_unplaced_labels_are_refused():
    p = Program()

    def nest(depth):
        if depth:
            with p.extent(64):
                nest(depth - 1)

    with pytest.raises(InputError, match=f"must not have more than {EXTENTS - 1} nested extents"), p.thread():
        nest(EXTENTS)
    q = Program()
    with q.thread():
        with q.block() as block:
            block.leave()
        block.end.row = None
    with pytest.raises(InputError, match=r"program = a label: was never placed; call leave\(\) only inside the loop"):
        q.steps()


def test_every_workload_has_a_listing_with_its_names():
    for kind in ("dirty_log_perf_test", "clear_under_load", "eager_split", "migration", "zap"):
        job = build(
            Scenario.parse({"workload": {"kind": kind}, "costs": {"guest_access": "1us", "clear_page": "30ns"}})
        )
        text = job.listing()
        assert len([line for line in text.splitlines() if line[:3].strip().isdigit()]) == len(job.steps)
        assert "vcpu 0:" in text
        assert "# fault: missing page" in text
        assert "mmu_lock, write" in text


def test_the_listing_of_a_lockless_update_has_the_target_of_its_retry():
    p = Program()
    with p.thread(), p.holding(Lock(0, Mode.WRITE)):
        p.hold(1000)
    lockless = Job(p.steps(), np.zeros(1, int), np.zeros((1, 2), int), np.array([3]), 0, 0, 0, np.zeros(1, int))
    assert "drop      mmu_lock, write, L0" in lockless.listing()
