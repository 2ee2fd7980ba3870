# SPDX-License-Identifier: BSD-3-Clause
"""Live migration: what is sent and what is left, and what each policy does to the guest meanwhile."""

import numpy as np
import pytest

from simlib.engine import compiled, reference
from simlib.engine.migration import degradation
from simlib.engine.simulate import simulate
from simlib.errors import HorizonError, InputError
from simlib.model.scenario import Scenario
from simlib.model.steps import Page
from simlib.workloads import build

COSTS = {
    "fault_exit": "1us", "fault_hold": "800ns", "line_transfer": "50ns", "line_local": "10ns", "clear_page": "30ns",
    "reacquire": "100ns", "flush": "5us", "flush_per_vcpu": "1us", "kick": "2us", "split_block": "20us",
    "split_alloc": "5us",
}  # fmt: skip
POLICIES = {
    "whole ioctl": {},
    "every word": {"clear_batch_pages": 64},
    "yield": {"yield_on": "contended", "yield_pages": 128},
    "regions": {"lock_regions": 4, "clear_batch_pages": 512},
    "eager, drop": {"eager_split": True, "split_alloc": "drop"},
    "eager, under lock": {"eager_split": True, "split_alloc": "under_lock"},
    "read lock": {"clear_lock": "read"},
}


def scenario(policy=None, costs=None, guest=None, **workload):
    return Scenario.parse(
        {
            "guest": {"vcpus": 4, "memory": "32M"} | (guest or {}),
            "policy": {"architecture": "x86-shadow"} | (policy or {}),
            "workload": {"kind": "migration", "link": "25Gbit/s", "warm_up": "2ms", "pass_limit": 2,
                         "downtime": "0ps", "clear_chunk": "8M"} | workload,
            "costs": COSTS if costs is None else costs,
        }
    )  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", ["lazy", "at_once", "at_get"])
def test_both_engines_run_every_policy_alike(policy, way):
    job = build(scenario(POLICIES[policy], guest={"memory": "8M", "vcpus": 2}, clear_when=way, pass_limit=1))
    assert compiled.run(job, 3, trace=400_000) == reference.run(job, 3, trace=400_000)


def test_without_a_guest_that_writes_one_pass_sends_everything_once():
    """Its vCPUs work on one page for longer than that takes."""
    result = simulate(scenario(access_interval="60s", pass_limit=30))
    pages = result.job.pages
    sending = pages * 4096 * 8 / 25e9
    assert result.metrics["passes"] == 1
    assert result.metrics["dirty_left"] == 0
    clear = 4 * (5e-6 + 4e-6) + pages / 64 * 30e-9  # four flushes; each word looks at its block's entry
    assert result.metrics["clear_cpu_time"] == pytest.approx(clear, rel=0.01)
    assert result.metrics["precopy_duration"] == pytest.approx(sending + clear, rel=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_clear_beside_the_sender_hide_their_time(threads):
    """They stay one chunk ahead, so that pre-copy lasts as long as the slower of the two."""
    small = scenario({"clear_batch_pages": 64}, guest={"memory": "8M", "vcpus": 2}, clear_chunk="1M",
                     clear_threads=threads, shared=True, access="uniform")  # fmt: skip
    job = build(small)
    assert job.thread_names[3:] == tuple(f"clear {i}" for i in range(threads))
    assert compiled.run(job, 3, trace=400_000) == reference.run(job, 3, trace=400_000)

    idle = simulate(scenario(access_interval="60s", pass_limit=30, clear_threads=threads))
    sending = idle.job.pages * 4096 * 8 / 25e9
    clear = (4 * (5e-6 + 4e-6)) * threads + idle.job.pages / 64 * 30e-9
    assert idle.metrics["clear_cpu_time"] == pytest.approx(clear, rel=0.05)  # two wait for each other
    assert idle.metrics["precopy_duration"] == pytest.approx(sending + clear / 4 / threads, rel=1e-3)


def test_clear_threads_need_parts_of_whole_words():
    with pytest.raises(InputError, match=r"workload\.clear_threads = 3: .* multiple of 256K .* change clear_chunk"):
        scenario(clear_threads=3)
    with pytest.raises(InputError, match=r"workload\.clear_threads = 2: they clear chunk by chunk, not at_once"):
        scenario(clear_threads=2, clear_when="at_once")


@pytest.mark.parametrize("workload", [{}, {"clear_threads": 2, "shared": True, "access": "uniform"}])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_write_is_lost(policy, workload, monkeypatch):
    """A page that can be written and is not in the log could lose a write; so could one of neither bitmap.

    When the run ends, every page whose entry is writable is dirty in the log: it is sent again, or at the end.
    """
    seen = {}
    original = reference.Simulation.run

    def spy(self):
        result = original(self)
        seen["pages"], seen["blocks"] = np.array(self.pages[: self.job.pages]), list(self.blocks)
        return result

    monkeypatch.setattr(reference.Simulation, "run", spy)
    job = build(scenario(POLICIES[policy], guest={"memory": "8M", "vcpus": 2}, **workload))
    reference.run(job, 5)
    pages = seen["pages"]
    in_tables = np.repeat([block == 0 for block in seen["blocks"]], job.block_pages)[: job.pages]
    writable = in_tables & (pages & 3 == Page.WRITABLE)
    assert writable.any()
    assert (pages[writable] & Page.DIRTY).all()


def test_letting_go_costs_most_where_every_fault_takes_the_lock_for_write():
    """Seed 001: the same batch, three ways of handling faults."""

    def price(policy):
        whole, batch = (
            simulate(scenario(policy | {"clear_batch_pages": n}, guest={"vcpus": 16, "memory": "512M"},
                              clear_chunk="16M", link="100Gbit/s", pass_limit=1)).metrics["clear_cpu_time"]
            for n in (0, 64)
        )  # fmt: skip
        return batch / whole

    tdp = {"architecture": "x86-tdp", "split_alloc": "under_lock"}
    lockless, read = price(tdp), price(tdp | {"write_protect_fault": "read"})
    write = price({"architecture": "x86-shadow", "eager_split": False})
    assert lockless < 1.2 < read < 3
    assert write > 10


def test_a_vcpu_that_is_kicked_loses_that_time():
    kicked, spared = (
        simulate(scenario(costs=COSTS | {"kick": cost}, policy={"architecture": "x86-tdp"}, clear_chunk="256K"))
        for cost in ("20us", "0ns")
    )
    assert kicked.metrics["guest_throughput"] < 0.95 * spared.metrics["guest_throughput"]


def test_the_curve_adds_up():
    result = simulate(scenario(link="5Gbit/s"))
    curve = degradation(result.scenario, result.job, result.raw)
    assert curve["throughput"].between(0, 1.02).all()
    assert (curve["degradation"] + curve["throughput"]).tolist() == pytest.approx([1] * len(curve))
    m = result.metrics
    assert m["seconds_above_99"] <= m["seconds_above_50"] <= m["seconds_above_10"] <= m["precopy_duration"] * 1.01
    assert 0 < m["clear_wait_time"] < m["clear_cpu_time"]


def test_what_get_found_is_left_if_it_is_not_sent():
    """Without manual protection GET has cleared the log of it: it stands in the bitmap only."""
    result = simulate(scenario(access_interval="60s", clear_when="at_get", downtime="60s"))
    assert result.metrics["passes"] == 0
    assert result.metrics["dirty_left"] == result.job.pages * 4096


def test_a_link_of_no_bandwidth_is_refused():
    with pytest.raises(
        InputError, match=r"workload\.link = 0Gbit/s: must be at least 1 bit/s; nothing could ever be sent"
    ):
        scenario(link="0Gbit/s")


def test_a_pass_that_could_not_end_is_refused_at_once():
    with pytest.raises(
        HorizonError, match=r"first pass alone would take 8590 s over a link of 32Mbit/s, .* faster link"
    ):
        simulate(scenario(guest={"memory": "32G"}, link="32Mbit/s", clear_chunk="1G"))
