# SPDX-License-Identifier: BSD-3-Clause
"""No write of the guest is lost, and no page is sent twice: every run is checked by a witness.

The witness (`witness`) knows KVM's rules, not simlib's steps: its input is the log of page writes and scans.
"""

import ast
from collections import Counter
from pathlib import Path

import pytest
import witness
from conservation import CLASSES, ROOM, any_scenario, classes, examine, ledger_of, marks_of, setting_of
from engine_strategies import SEEDS, examples
from hypothesis import given
from hypothesis import strategies as st
from witness import NON_SCANS, InvariantError, Witness

from simlib.analysis.simulate import SimulationResult
from simlib.model.scenario import Scenario
from simlib.model.steps import Block, Page
from simlib.simulator.engine import compiled, reference
from simlib.simulator.workloads import build


@st.composite
def scenarios(draw, most_pages=800):
    return any_scenario(lambda choices: draw(st.sampled_from(list(choices))), most_pages)


def test_no_scenario_breaks_an_invariant():
    """And each class of scenarios that could violate one is among them."""
    covered = Counter()

    @given(scenario=scenarios(), seed=SEEDS)
    @examples(500)
    def holds(scenario, seed):
        job = build(scenario)
        result = compiled.run(job, seed, trace=ROOM, ledger=ROOM)
        account, _ = examine(scenario, job, result)
        covered.update(classes(scenario, job, result, account))

    holds()
    if examples.most is None:
        assert not [name for name in CLASSES if covered[name] < 3], covered


@given(scenario=scenarios(most_pages=192), seed=SEEDS)
@examples(40)
def test_both_engines_and_the_witness_agree(scenario, seed):
    """For the reference engine, the witness's log and bitmap are also compared with the pages at the end."""
    job = build(scenario)
    simulation = reference.Simulation(job, seed, ROOM, ROOM, None)
    slow, fast = simulation.run(), compiled.run(job, seed, trace=ROOM, ledger=ROOM)
    assert slow == fast, slow.differences(fast)
    _, replayed = examine(scenario, job, slow)
    pages = range(job.pages)

    def has(words, page):
        return bool(words[page // 64] >> page % 64 & 1)

    state, size = simulation.memory.pages, job.block_pages
    assert [has(replayed.log, p) for p in pages] == [state[p] & Page.DIRTY > 0 for p in pages]
    assert [has(replayed.bitmap, p) for p in pages] == [state[p] & Page.COLLECTED > 0 for p in pages]
    blocks = simulation.memory.blocks
    writable = [
        blocks[p // size] == Block.WRITABLE or (blocks[p // size] == Block.TABLE and state[p] & 3 == Page.WRITABLE)
        for p in pages
    ]
    assert [has(replayed.writable, p) for p in pages] == writable


# -- batches that do not divide their chunk ------------------------------------------------------------

COSTS = {"fault_unlocked": "1us", "fault_hold": "800ns", "line_transfer": "50ns", "clear_page": "30ns",
         "reacquire": "100ns", "flush": "5us", "flush_per_vcpu": "1us"}  # fmt: skip


def sparse_migration(clear_drop_when, chunk, costs=None, **more):
    """Migrate in three passes a guest that writes a few pages in each; `more`: keys of the workload."""
    scenario = Scenario.parse(
        {
            "guest": {"vcpus": 2, "memory": "12M", "backing": "4k"},
            "policy": {"architecture": "x86-shadow-paging", "clear_drop_when": clear_drop_when},
            "workload": {"kind": "migration", "clear_chunk": chunk, "access": "uniform", "shared": True,
                         "access_interval": "40us", "initially_set": False, "pass_limit": 3, "downtime": "0ps", **more},
            "costs": costs or {},
        }
    )  # fmt: skip
    job = build(scenario)
    result = compiled.run(job, 1, trace=ROOM, ledger=ROOM)
    account, _ = examine(scenario, job, result)
    return account, SimulationResult(scenario, job, result, 1, 1.0, ()).metrics


BATCHES = ["pages >= 64", "pages >= 128", "pages >= 192", "pages >= 320", "held >= 1us", "pages >= adaptive(64, 1024)",
           "pages >= 512 or waiters >= 1", "never"]  # fmt: skip


@pytest.mark.parametrize("chunk", ["768K", "3M", "5M"])
def test_a_batch_changes_nothing_but_time(chunk):
    """If CLEAR takes no time, every batch sends the same pages in the same time, whether it divides the chunk or not.

    A chunk of 768K has 192 pages, one of 3M, which `choose-batch --chunk 3M` takes, 768, one of 5M 1280.
    """
    runs = [sparse_migration(clear_drop_when, chunk) for clear_drop_when in BATCHES]
    (account, metrics), *others = runs
    assert account.sent == [3072, *account.collected[1:]]
    assert account.passes == 3
    assert 0 < account.sent[2] < account.sent[1] < 3072 / 8
    assert [other for other, _ in others] == [account] * len(others)
    assert {m["precopy_duration"] for _, m in others} == {metrics["precopy_duration"]}


@pytest.mark.parametrize("chunk", ["768K", "3M", "5M"])
@pytest.mark.parametrize("clear_drop_when", BATCHES)
def test_pre_copy_is_sending_and_clearing(clear_drop_when, chunk):
    account, metrics = sparse_migration(clear_drop_when, chunk, COSTS)
    sending = sum(account.sent) * 4096 * 8 / 25e9
    assert account.passes == 3
    assert account.cleared[:3] == account.collected
    enabling = 5e-6 + 2 * 1e-6  # the flush after all pages were write-protected
    assert metrics["precopy_duration"] == pytest.approx(enabling + sending + metrics["clear_cpu_time"], rel=1e-9)


@pytest.mark.parametrize(
    "more",
    [pytest.param({"clear_when": "lazy"}, id="faults"),
     pytest.param({"clear_when": "ring", "ring_entries": 1024}, id="faults, ring"),
     pytest.param({"throttle": "qemu", "throttle_initial": 80, "throttle_slice": "10us",
                   "throttle_check_period": "0ps"}, id="sleeps")],
)  # fmt: skip
def test_a_vcpu_that_faults_or_sleeps_has_emptied_its_log_buffer(more):
    """Some blocks are split late, so that faults come while other pages are in a log buffer."""
    scenario = Scenario.parse(
        {
            "guest": {"vcpus": 2, "memory": "12M", "backing": "hugetlb_2mb"},
            "policy": {"architecture": "x86-tdp", "dirty_tracking": "pml", "eager_split": False},
            "workload": {"kind": "migration", "clear_chunk": "4M", "access": "zipf", "shared": True,
                         "zipf_exponent": 1.5, "access_interval": "3us", "pass_limit": 6, "downtime": "0ps",
                         "link": "40Gbit/s", **more},
            "costs": COSTS | {"dirty_set": "80ns", "log_exit": "1us", "log_entry": "20ns", "kick": "1us"},
        }
    )  # fmt: skip
    for seed in range(4):
        job = build(scenario)
        result = compiled.run(job, seed, trace=ROOM, ledger=ROOM)
        account, _ = examine(scenario, job, result)
        assert account.logged > 0
        assert account.faults > 0
        assert (account.sleeps > 0) == ("throttle" in more)


def test_helper_threads_clear_their_parts_before_they_are_sent():
    """Each of two threads has four words of each chunk."""
    account, _ = sparse_migration("pages >= 64", "2M", COSTS, access_interval="3us", clear_threads=2)
    assert account.cleared[:3] == account.collected
    assert min(account.cleared[1:3]) > 3072 / 8


# -- the witness detects violations --------------------------------------------------------------------


def a_run(**throttle):
    """Migrate 12 words with two vCPUs, small enough to check the ledger by hand; `throttle`: fields of a throttle."""
    scenario = Scenario.parse(
        {
            "guest": {"vcpus": 2, "memory": "3M", "backing": "4k"},
            "policy": {"architecture": "x86-shadow-paging", "clear_drop_when": "pages >= 64"},
            "workload": {"kind": "migration", "clear_chunk": "768K", "access_interval": "3us", "warm_up": "10us",
                         "pass_limit": 3, "downtime": "0ps", **throttle},
            "costs": COSTS,
        }
    )  # fmt: skip
    job = build(scenario)
    result = compiled.run(job, 1, trace=ROOM, ledger=ROOM)
    examine(scenario, job, result)
    return setting_of(scenario), list(ledger_of(result)), marks_of(job, result)


def forget(kind):
    """Remove the first entry of that kind that found something."""

    def change(ledger, marks):
        row = next(n for n, e in enumerate(ledger) if e[2] == kind and e[4] > 0)
        scans = sum(e[2] not in NON_SCANS for e in ledger[:row])
        del ledger[row]
        if kind not in NON_SCANS:
            marks[:] = [mark._replace(scans=mark.scans - (mark.scans > scans)) for mark in marks]

    return change


def alter(kind, **fields):
    """Change the last entry of that kind."""

    def change(ledger, marks):
        row = max(n for n, e in enumerate(ledger) if e[2] == kind)
        time, thread, _, page, count = ledger[row]
        entry = {"thread": thread, "page": page, "count": count} | fields
        ledger[row] = (time, entry["thread"], kind, entry["page"], entry["count"])

    return change


def stop_early(ledger, marks):
    del marks[-1]


def unsend(ledger, marks):
    place = next(n for n, mark in enumerate(marks) if mark.phase == "sent")
    marks[place] = marks[place]._replace(bitmap=1)


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        pytest.param(forget("write"), "the scan must find|pages in the bitmap|without a fault", id="unlogged write"),
        pytest.param(forget("send"), "is unsent after the pass|pages in the bitmap", id="unsent word"),
        pytest.param(
            forget("clear"), "a writable page faulted|was not cleared after GET", id="sent before it was cleared"
        ),
        pytest.param(forget("collect"), "pages in the bitmap|was in the log", id="GET that skips a word"),
        pytest.param(alter("collect", count=65), "the scan must find", id="wrong count"),
        pytest.param(alter("clear", thread=0), "that must not", id="a vCPU that clears"),
        pytest.param(alter("send", page=7), "within a word", id="unaligned scan"),
        pytest.param(alter("write", page=0, thread=1), "a page of another vCPU", id="stray write"),
        pytest.param(stop_early, "when .*left.* was due", id="no end"),
        pytest.param(unsend, "1 pages in the bitmap", id="a page left behind"),
    ],
)
def test_the_witness_detects_a_violation(change, invariant):
    setting, ledger, marks = a_run()
    change(ledger, marks)
    with pytest.raises(InvariantError, match=invariant):
        Witness(setting).replay(ledger, marks)


def write_asleep(ledger, marks):
    """Move the first write after a vCPU's sleep into the sleep."""
    at, (time, vcpu, *_) = next((n, e) for n, e in enumerate(ledger) if e[2] == "pause")
    row = next(n for n, e in enumerate(ledger) if n > at and e[1:3] == (vcpu, "write"))
    ledger[row] = (time + 1, *ledger[row][1:])


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        pytest.param(alter("throttle_check", page=11), "the throttle is", id="another throttle"),
        pytest.param(alter("throttle", count=1), "vCPUs sleep for", id="a shorter sleep"),
        pytest.param(alter("pause", count=7), "no throttle requires", id="a sleep without a throttle"),
        pytest.param(forget("pause"), "before it slept|in its sleep", id="no sleep"),
        pytest.param(write_asleep, "in its sleep", id="a write during a sleep"),
    ],
)
def test_the_witness_detects_a_missing_sleep(change, invariant):
    setting, ledger, marks = a_run(
        throttle="qemu", throttle_slice="60us", throttle_check_period="0ps", throttle_sync="100us", link="10Gbit/s"
    )
    change(ledger, marks)
    with pytest.raises(InvariantError, match=invariant):
        Witness(setting).replay(ledger, marks)


def write_early(ledger, marks):
    """Move the write after a time of idleness to its end."""
    at, (time, vcpu, _, _, idle) = next((n, e) for n, e in enumerate(ledger) if e[2] == "pace" and e[4] > 0)
    row = next(n for n, e in enumerate(ledger) if n > at and e[1:3] == (vcpu, "write"))
    ledger[row] = (time + idle, *ledger[row][1:])


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        pytest.param(alter("pace", count=1), "its next access is due at", id="another due time"),
        pytest.param(forget("pace"), "its next access is due at", id="an access without a due time"),
        pytest.param(write_early, "before it had computed", id="a write without computing"),
    ],
)
def test_the_witness_detects_a_vcpu_that_idles_too_little_or_too_much(change, invariant):
    setting, ledger, marks = a_run(cpu_use=0.3)
    change(ledger, marks)
    with pytest.raises(InvariantError, match=invariant):
        Witness(setting).replay(ledger, marks)


def test_the_witness_knows_no_steps():
    """The witness does not repeat errors of the model, of a program or of an engine: it imports none of them."""
    modules = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(Path(witness.__file__).read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert modules == {"__future__", "collections.abc", "dataclasses", "typing"}
