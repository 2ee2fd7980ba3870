# SPDX-License-Identifier: BSD-3-Clause
"""A simulated host with known costs, which prints the output of mmu_lock_contention_test."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from simlib.analysis.simulate import SimulationResult, run_scenario
from simlib.lab.host.facts import HostFacts
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario

FACTS = HostFacts(
    machine="x86_64",
    kernel="6.18.1",
    cpu="Simulated CPU",
    cpus=(0, 1),
    cores=2,
    sockets=1,
    threads_per_core=1,
    nodes={"0": (0, 1)},
    memory_bytes=64 * 2**20,
    governor="not stated",
    hypervisor=False,
    transparent_huge_pages="never",
    architecture="x86-shadow-paging",
    page_tables="shadow paging (NPT is off)",
)
"""The smallest host that can be measured: 8 MiB for each vCPU."""

COSTS = {
    "guest_access": "60ns", "fault_unlocked": "1500ns", "fault_hold": "700ns", "populate_block": "2us",
    "clear_page": "25ns", "clear_ioctl": "500ns", "flush": "400ns", "interrupt": "3us", "kick": "4us",
    "enable_page": "30ns", "line_transfer": "60ns", "reacquire": "120ns",
}  # fmt: skip
NOISE = 0.01
"""Standard deviation of a time's logarithm."""


@dataclass
class SimulatedHost:
    """A host that prints the test's output.

    - `emulated`: emulated instructions per access that it reports, unless the guest runs in user mode.
    - `patched`: true if its kernel has simlib's patches: statistics of mmu_lock, and the parameter of CLEAR's batch.
    """

    emulated: float = 0.0
    patched: bool = False
    runs: list[dict[str, Any]] = field(default_factory=list)
    batch: int = 0

    def output(self, test: dict[str, Any], batch: int = 0) -> str:
        """Return the test's output for its options, with `batch` pages per hold of CLEAR (0: the whole ioctl)."""
        self.runs.append(dict(test))
        self.batch = batch
        random = np.random.default_rng(len(self.runs))
        vcpus, pages = test.get("vcpus", 1), parse_size(test["memory_per_vcpu"]) // 4096
        chunk = test.get("chunk_pages", 0)
        lines: list[dict[str, Any]] = [{"type": "config", "version": 1, "vcpus": vcpus}]

        def ioctl(name: str, number: int, seconds: float, calls: int = 1, **more: int) -> None:
            length = seconds * float(np.exp(random.normal(0, NOISE))) * 1e9
            if name in ("probe", "probe_idle"):
                more["calls"], calls = calls, 1
            for call in range(calls):
                part = {"first_page": call * (pages * vcpus // calls), "pages": pages * vcpus // calls, **more}
                if "dirty" in more:
                    part["dirty"] = part["pages"]
                lines.append({"type": "ioctl", "name": name, "round": number, "thread": 0, "start_ns": 1,
                              "duration_ns": max(round(length / calls), 1), **part})  # fmt: skip

        workload: dict[str, Any] = {"iterations": test.get("rounds", 3)}
        if test.get("protect_at_enable"):
            workload["initially_set"] = False
        if chunk:
            workload["clear_chunk"] = chunk * 4096
        calls = -(-pages * vcpus // chunk) if chunk else 1
        rounds, gaps = range(1, test.get("rounds", 3) + 1), list[list[int]]()
        stalls = [[0] * len(rounds) for _ in range(vcpus)]
        if test.get("write_percent") == 0:
            call_ps = sum(self.ps(name) for name in ("clear_ioctl", "flush", "interrupt"))
            ioctl("get", 1, 1e-6, dirty=0)
            ioctl("clear", 1, (calls * call_ps + pages * self.ps("clear_page")) * 1e-12, calls, dirty=0)
            kick = round((self.ps("kick") + self.ps("guest_access")) / 1000)
            stalls[0], gaps = [kick] * len(rounds), [[kick - 1, kick + 1, calls]]
            lines += [
                {"type": "stat", "scope": "vm", "when": when, "name": f"remote_tlb_flush{what}", "value": value}
                for when, value in (("enabled", 0), ("end", calls))
                for what in ("", "_requests")
            ]
        elif test.get("parked"):
            kind = "lock_probe" if test.get("probe") else "dirty_log_perf_test"
            run = simulated(vcpus, pages, self.batch, json.dumps({**workload, "kind": kind}), test.get("seed", 1))
            lines += self.statistics(random, pages * vcpus * len(rounds))
            if not test.get("probe"):
                ioctl("populate", 0, run.value("populate_time"))
                ioctl("enable", 0, run.value("enable_time") or 1e-6)
            for number in rounds:
                ioctl("write", number, run.value(f"dirty_memory_time[{number}]"))
                if test.get("probe"):
                    ioctl("probe", number, run.value(f"dirty_memory_time[{number}]"),
                          round(run.value(f"lock_probes[{number}]")))  # fmt: skip
                    ioctl("probe_idle", number, 20000 * self.ps("clear_ioctl") * 1e-12, 20000)
                else:
                    ioctl("clear", number, run.value(f"clear_dirty_log_time[{number}]"), calls, dirty=0)
        else:
            workload |= {"kind": "clear_under_load", "iterations": 1, "pause": f"{test['pause_us']}us"}
            workload["preempted_vcpus"] = int(vcpus > 1)
            for number in rounds:
                seed = 100 * test.get("seed", 1) + number
                run = simulated(vcpus, pages, self.batch, json.dumps(workload), seed)
                ioctl("get", number, 1e-6, dirty=0)
                ioctl("clear", number, run.value("clear_dirty_log_time"), calls, dirty=0)
                stalls[0][number - 1] = round(run.value("longest_stall") * 1e9)
        constant = {"reads": 0, "longest": [], "gap_hist": gaps, "pause_longest_ns": [0] * len(rounds), "progress": []}
        lines += [
            {
                "type": "vcpu",
                "id": vcpu,
                "writes": pages,
                "longest_ns": max(round_stalls),
                "round_longest_ns": round_stalls,
                **constant,
            }
            for vcpu, round_stalls in enumerate(stalls)
        ]
        if self.emulated and not test.get("user"):
            lines.append({"type": "stat", "scope": "vcpu", "when": "end", "name": "insn_emulation",
                          "value": round(self.emulated * pages * vcpus)})  # fmt: skip
        lines.append({"type": "end", "ok": True})
        return "".join(json.dumps(line) + "\n" for line in lines)

    def statistics(self, random: np.random.Generator, faults: int) -> list[dict[str, Any]]:
        """Statistics of a patched kernel: faults and their holds of mmu_lock, each with 5 ns for reading the clock."""
        hold_ns = faults * (self.ps("fault_hold") / 1000 + 5) * float(np.exp(random.normal(0, NOISE)))
        counted = {"acquired": faults, "contended": 0, "wait_ns": 0, "hold_ns": round(hold_ns)}
        return [
            {"type": "stat", "scope": "vm", "when": when, "name": f"mmu_lock_fault_slow_write_{what}",
             "value": value if when == "end" else 0}
            for when in ("populated", "enabled", "end") for what, value in counted.items() if self.patched
        ]  # fmt: skip

    def ps(self, cost: str) -> int:
        """Return one of `COSTS`, ps."""
        return int(Scenario.parse({"costs": COSTS}).costs.given()[cost])


@cache
def simulated(vcpus: int, pages: int, batch: int, workload: str, seed: int) -> SimulationResult:
    """Simulate a guest of the host; the workload is JSON. Results are cached, as most tests measure the same guests."""
    scenario = Scenario.parse(
        {
            "host": {"cores": 2},
            "guest": {"vcpus": vcpus, "memory_per_vcpu": pages * 4096, "backing": "4k"},
            "policy": {
                "architecture": FACTS.architecture,
                "clear_drop_when": f"pages >= {batch}" if batch else "never",
            },
            "workload": json.loads(workload),
            "costs": COSTS | {"fault_jitter": 0.2, "others": "0ns"},
        }
    )
    return run_scenario(scenario, seed=seed)
