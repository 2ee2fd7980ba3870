# SPDX-License-Identifier: BSD-3-Clause
"""Conservation checks: random migrations and selftests, checked by `witness`.

    python checks/conservation.py 10000

runs this number of scenarios on the compiled engine, prints its progress, and prints a summary at the end; `make
conservation` runs it. Scenario number n is the same on every host.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from witness import Account, InvariantError, Mark, Setting, ThrottleRule, Witness

from simlib.analysis.simulate import SimulationResult
from simlib.model.architectures import ARCHITECTURES
from simlib.model.costs import Costs
from simlib.model.grammar import leaves
from simlib.model.host import Host
from simlib.model.job import Job
from simlib.model.locks import LOCKS, Discipline
from simlib.model.pagetable import PageTable
from simlib.model.policy import Policy
from simlib.model.scenario import Guest, Scenario
from simlib.model.workload import Workload
from simlib.simulator.engine import compiled
from simlib.simulator.engine.result import ACTIVITIES, EVENTS, LEDGER, EngineResult
from simlib.simulator.workloads import build
from simlib.simulator.workloads.dirty_log import DirtyLog
from simlib.simulator.workloads.migration import page_time

ROOM = 1_000_000
"""Largest number of ledger entries of a run; the runs of these scenarios have fewer."""

Pick = Callable[[Sequence[Any]], Any]
"""Function that selects a value of several: hypothesis's choice, or that of a generator."""

US, MS = 10**6, 10**9

PARTS = ("pages >= 128", "pages >= 64", "pages >= 192", "pages >= 320", "pages >= 512", "held >= 1ns", "held >= 3us",
         "held > 20us", "waiters >= 1", "waiters < 2", "vcpus >= 1", "vcpus > 1", "blocks >= 1",
         "pages >= adaptive(64, 256)", "pages >= adaptive(128, 1024)")  # fmt: skip
"""Parts of strategies."""


def clear_drop_when(pick: Pick) -> str:
    """Condition that ends a hold: never, or a combination of up to three comparisons."""
    parts = [pick(PARTS)]
    if pick((False, False, False, True)):
        return "never"
    for _ in range(pick((0, 0, 1, 2))):
        # A thread has at most one adaptive batch.
        adaptive = any("adaptive" in part for part in parts)
        others = [part for part in PARTS if "adaptive" not in part or not adaptive]
        parts += [pick(("and ", "or ", "or not ")), pick(others)]
        parts = [f"({' '.join(parts)})"]
    return parts[0]


def throttled(pick: Pick, when: str, interval: int, page_size: int) -> dict[str, Any]:
    """Throttling of a migration's guest, if any, with times of the order of 64 of its accesses.

    The dirty limit needs a guest that fills its rings repeatedly.
    """
    rule = pick(("none", "qemu", "cloud-hypervisor"))
    if rule == "none":
        return {}
    time = 64 * interval
    if when == "ring":
        return {
            "throttle": "qemu-dirty-limit",
            "throttle_slice": 300 * US,
            "throttle_check_period": 0,
            "clear_threads": 0,
            "throttle_sync": MS,
            "shared": True,
            "dirty_limit": pick((1, 3_000)),
            "access_interval": US,
            "ring_entries": 256,
            "reap_every": 0,
            "pass_limit": 2,
            "downtime": 0,
            "write_percent": 100,
            "link": page_size * 8 * 10**12 // 6_000_000,
        }
    return {"throttle": rule, "throttle_slice": pick((time, time // 8)), "throttle_check_period": pick((0, 0, time)),
            "throttle_sync": pick((time, 4 * time, 0)), "throttle_initial": pick((0, 60, 1)),
            "clear_threads": 0}  # fmt: skip


def any_scenario(pick: Pick, most_pages: int = 800) -> Scenario:
    """Migration, or selftest that clears, with any policy; a vCPU has at most `most_pages` pages, or a single block."""
    kind = pick(("migration",) * 8 + ("clear_under_load", "dirty_log_perf_test"))
    page_size = pick((4096, 4096, 16384))
    backing = pick(("4k", "4k", "hugetlb_2mb"))
    block = page_size // 8
    unit = 64 if backing == "4k" else block
    vcpus = pick((2, 1, 3, 4) if unit < 1024 else (2, 1))
    units = pick([n for n in (5, 3, 1, 2, 4, 7, 12) if n == 1 or n * unit <= most_pages])
    memory_words = vcpus * units * unit // 64
    chunk = pick([n for n in (3, 2, 1, 5, 7, None) if (n or 0) <= memory_words])
    migrates = kind == "migration"
    when = pick(("lazy", "lazy", "lazy", "at_once", "at_get", "ring", "ring")) if migrates else "lazy"
    divided = {"migration": (chunk or memory_words) * (when == "lazy"), "clear_under_load": memory_words}.get(kind, 0)
    helpers = pick([n for n in (0, 0, 1, 2, 3) if not n or (divided and divided % n == 0)])
    # Some guests write each page many times per pass, others write only a few pages.
    interval = pick((3 * US + 1, 1_000_001, 20 * US, 200 * US, 40 * US))
    name = pick(sorted(ARCHITECTURES))
    modes = ("lockless", "read", "write") + ("default",) * (name not in ("s390", "ppc-radix"))
    short = (None, 0, 1, 1_000, 47_000, 600_000)
    costs = {cost: pick(short) for cost in Costs.__dataclass_fields__ if cost != "fault_jitter"}
    if not migrates:
        costs["guest_access"] = interval
    return Scenario(
        host=Host(cores=pick((64, 2)), sockets=pick((1, 2)), line_transfer_remote=pick((None, 0, 200_000))),
        guest=Guest(
            vcpus=vcpus,
            memory_per_vcpu=units * unit * page_size,
            page_size=page_size,
            backing=backing,
            memslot_aligned=pick((True, True, False)),
        ),
        policy=Policy(
            architecture=name,
            lock=pick(sorted(LOCKS)),
            write_protect_fault=pick(modes),
            translation_fault=pick(modes),
            split_fault=pick(("read", "write")),
            clear_lock=pick(("write", "read", "lockless")),
            clear_drop_when=clear_drop_when(pick),
            get_drop_when=clear_drop_when(pick),
            fault_lock_sections=pick((0, 1, 2)),
            eager_split=pick((None, True, False)),
            split_alloc=pick(("default", "under_lock", "drop", "under_read_lock")),
            lock_regions=pick((1, 1, 1, 2, 3, 5)) if when != "ring" else 1,
            dirty_tracking=pick(("write_protect", "pml", "pml", "dbm") if when != "ring" else ("write_protect", "pml")),
            log_buffer=pick((20, 1, 3, 60)),
        ),
        workload=replace(
            Workload(
                kind=kind,
                iterations=pick((2, 1, 3)),
                write_percent=pick((100, 100, 50, 7)),
                initially_set=pick((True, False)),
                clear_chunk=chunk and 64 * chunk * page_size,
                pause=pick((30 * US, 0, 300 * US)),
                access=pick(("uniform", "sequential", "zipf")),
                access_interval=interval,
                shared=pick((False, True)),
                warm_up=pick((70 * US, 0)),
                link=page_size * 8 * 10**12 // pick((330_000, 3_300_000, 33_000)),
                clear_when=when,
                ring_entries=pick((128, 256)),
                reap_every=pick((500 * US, 0)),
                downtime=pick((0, 0, 0, 10 * US)),
                pass_limit=pick((3, 2, 4, 3, 1)),
                timeout=pick((10**12, 10**12, 10**12, 10**12, 0, 200 * US)),
                slow_fault_every=pick((0, 0, 2)),
                clear_threads=helpers,
                cpu_use=pick((1.0, 1.0, 0.5, 0.1)) if migrates else 1.0,
            ),
            **(throttled(pick, when, interval, page_size) if migrates else {}),
        ),
        costs=Costs(**costs, fault_jitter=pick((None, 0.3, 1.5))),
    )


# -- input of the witness ------------------------------------------------------------------------------


def setting_of(scenario: Scenario) -> Setting:
    """Properties of a scenario that the witness needs."""
    guest, workload, kernel = scenario.guest, scenario.workload, DirtyLog(scenario)
    migrates = workload.kind == "migration"
    return Setting(
        kind=workload.kind,
        pages=guest.pages,
        pages_per_vcpu=guest.pages_per_vcpu,
        vcpus=guest.vcpus,
        rounds=workload.pass_limit if migrates else workload.iterations,
        block_pages=PageTable(guest.page_size).pages_per_block(),
        blocks=guest.mapped_as_blocks,
        splits_first=kernel.splits_eagerly,
        write_percent=workload.write_percent,
        shared=migrates and workload.shared,
        initially_set=kernel.initially_set,
        page_ps=page_time(scenario) if migrates else 0,
        warm_up=workload.warm_up,
        downtime=workload.downtime,
        timeout=workload.timeout,
        helpers=workload.clear_threads,
        dirty_bits=kernel.tracking.dirty_bits,
        buffer=kernel.buffer_entries,
        rings=kernel.ring_entries > 0,
        throttle_rule=throttle_rule(scenario),
        interval=workload.access_interval if workload.cpu_use < 1 else 0,
        work=round(workload.cpu_use * workload.access_interval),
    )


def throttle_rule(scenario: Scenario) -> ThrottleRule | None:
    """Parameters of the guest's throttle."""
    rule, ring = scenario.workload.throttling, scenario.workload.ring_entries
    if rule is None:
        return None
    return ThrottleRule(*(getattr(rule, name) for name in ThrottleRule._fields if name != "ring"), ring=ring)


def ledger_of(result: EngineResult) -> Iterator[tuple[int, int, str, int, int]]:
    """Ledger of a run, with names of the kinds."""
    for time_ps, thread, kind, page, count in result.ledger.tolist():
        yield time_ps, thread, LEDGER[kind], page, count


def marks_of(job: Job, result: EngineResult) -> list[Mark]:
    """Stamps of a run in order, with the number of scans before each, from the trace."""
    events = result.trace[:, 2]
    scans = np.cumsum(events == EVENTS.index("scan"))
    marks = []
    for row in np.flatnonzero(events == EVENTS.index("stamp")).tolist():
        index = int(result.trace[row, 3])
        stamp, bitmap = job.stamps[index], int(result.stamp_thread[index, len(ACTIVITIES)])
        marks.append(Mark(stamp.phase, stamp.round, int(result.stamp_ps[index]), int(scans[row]), bitmap))
    return marks


def examine(scenario: Scenario, job: Job, result: EngineResult) -> tuple[Account, Witness]:
    """Check the invariants of a run with a trace and a ledger. Raises `InvariantError`."""
    setting, marks = setting_of(scenario), marks_of(job, result)
    witness = Witness(setting)
    account = witness.replay(ledger_of(result), marks)
    witness.times(result.thread_ps.tolist(), result.thread_end_ps.tolist(), ACTIVITIES.index("idle"), marks)
    if setting.migrates:
        metrics = SimulationResult(scenario, job, result, 0, 1.0, ()).metrics
        measured = metrics["passes"], metrics["dirty_left"], metrics["converged"]
        expected = account.passes, account.left * scenario.guest.page_size, account.left <= setting.downtime_pages
        witness.require(measured == expected, f"passes, bytes left, converged: {measured}, not {expected}")
    return account, witness


# -- coverage ------------------------------------------------------------------------------------------

CLASSES = (
    "batch that does not divide the chunk", "chunk that does not divide the memory", "hold bounded in time",
    "adaptive batch", "tests for waiters", "never drops", "several holds per chunk", "sparse pass", "dense pass",
    "nothing collected", "regions", "regions that chunks do not divide", "clear threads", "lazy", "at once", "at get",
    "ring", "initially set", "not initially set", "blocks", "blocks split by writes", "eager split", "shared memory",
    "read-only pages", "lockless faults", "written between CLEAR and SEND", "pages left", "several passes",
    "switched over for the downtime", "clear_under_load", "dirty_log_perf_test", "log buffers", "full log buffers",
    "dirty bits alone", "full rings", "runs of several entries", "rings behind log buffers", "throttled",
    "throttled again", "throttled by windows", "GET within a pass", "sleeping vCPUs", "dirty limit",
    "sleeps at a full ring", "idle vCPUs", "vCPUs that catch up", "sleeps of idle vCPUs",
)  # fmt: skip
"""Classes of scenarios that are counted."""


def classes(scenario: Scenario, job: Job, result: EngineResult, account: Account) -> Iterator[str]:
    """Classes of a scenario, of `CLASSES`, by its settings and its result."""
    guest, policy, workload = scenario.guest, scenario.policy, scenario.workload
    setting, kernel = setting_of(scenario), DirtyLog(scenario)
    rule = setting.throttle_rule
    conditions = leaves(policy.get_drop_when if workload.clear_when == "at_get" else policy.clear_drop_when)
    batches = [leaf.least for leaf in conditions if getattr(leaf, "quantity", "") == "pages"]
    names = {getattr(leaf, "quantity", type(leaf).__name__.lower()) for leaf in conditions}
    migrates = workload.kind == "migration"
    left = int((result.trace[:, 2] == EVENTS.index("leave")).sum())
    resets = int(result.ledger[result.ledger[:, 2] == LEDGER.index("reset"), 4].sum())
    chunked = not migrates or workload.clear_when in ("lazy", "at_once")
    held = chunked and workload.clear_when != "ring"
    later = account.collected[1:] if migrates else []
    last_gets = [n for n in account.collected[account.passes :] if migrates]
    facts = {
        "batch that does not divide the chunk": chunked and any(kernel.chunk % batch for batch in batches),
        "chunk that does not divide the memory": chunked and setting.pages % kernel.chunk > 0,
        "hold bounded in time": held and "held" in names,
        "adaptive batch": held and "adaptive" in names,
        "tests for waiters": held and bool(names & {"waiters", "vcpus"}),
        "never drops": held and "neverdrop" in names,
        "several holds per chunk": chunked and min(batches, default=kernel.chunk) < kernel.chunk and (
            " and " not in str(policy.clear_drop_when)
        ),
        "sparse pass": any(0 < n < setting.pages / 8 for n in later),
        "dense pass": any(n > setting.pages / 2 for n in later),
        "nothing collected": any(n == 0 for n in later),
        "regions": policy.lock_regions > 1 and kernel.region_pages < setting.pages,
        "regions that chunks do not divide": chunked and kernel.region_pages < setting.pages and (
            kernel.region_pages % kernel.chunk > 0
        ),
        "clear threads": workload.clear_threads > 0,
        workload.clear_when.replace("_", " "): migrates,
        "initially set": setting.initially_set,
        "not initially set": not setting.initially_set,
        "blocks": setting.blocks,
        "blocks split by writes": account.split > 0,
        "eager split": setting.splits_first,
        "shared memory": setting.shared and guest.vcpus > 1,
        "read-only pages": workload.write_percent < 100,
        "lockless faults": bool(result.lock_stats[job.locks == Discipline.LOCKLESS, :, 0].sum()),
        "written between CLEAR and SEND": account.raced > 0,
        "pages left": account.left > 0,
        "several passes": account.passes > 1,
        "switched over for the downtime": bool(last_gets),
        workload.kind: not migrates,
        "log buffers": account.logged > 0 and kernel.buffer_entries > 0,
        "full log buffers": account.full > 0,
        "dirty bits alone": account.logged > 0 and not kernel.buffer_entries,
        "full rings": bool(left) and kernel.ring_entries > 0 and not kernel.buffer_entries,
        "runs of several entries": account.runs > 0 and account.runs < resets,
        "rings behind log buffers": account.runs > 0 and kernel.buffer_entries > 0,
        "throttled": account.throttle > 1,
        "throttled again": rule is not None and account.throttle > max(1, rule.initial),
        "throttled by windows": rule is not None and rule.window > 0 and account.sleeps > 0,
        "GET within a pass": account.gets_within_pass > 0,
        "sleeping vCPUs": account.sleeps > 0,
        "dirty limit": rule is not None and rule.limit > 0 and account.throttle > 0,
        "sleeps at a full ring": account.ring_sleeps > 0,
        "idle vCPUs": account.idles > 0,
        "vCPUs that catch up": account.late > 0 and account.idles > 0,
        "sleeps of idle vCPUs": account.idle_sleeps > 0,
    }  # fmt: skip
    return (name for name, holds in facts.items() if holds)


# -- runs ----------------------------------------------------------------------------------------------


def scenario_number(number: int) -> tuple[Scenario, int]:
    """Return scenario number n and its seed."""
    generator = random.Random(number)  # noqa: S311  # not for secrets
    return any_scenario(generator.choice), generator.randrange(2**63)


def check_number(number: int) -> tuple[int, str, list[str]]:
    """Run scenario number n; return its number, the invariant that it violates, if any, and its classes."""
    scenario, seed = scenario_number(number)
    job = build(scenario)
    result = compiled.run(job, seed, trace=ROOM, ledger=ROOM)
    try:
        account, _ = examine(scenario, job, result)
    except InvariantError as violation:
        return number, str(violation), []
    return number, "", list(classes(scenario, job, result, account))


def main(scenarios: int, processes: int = 2) -> int:
    """Run scenarios; return 1 if an invariant is violated or a class is not covered."""
    start, violated, covered = time.monotonic(), 0, Counter[str]()
    check_number(0)  # compiles the engine
    with ProcessPoolExecutor(processes) as pool:
        for done, (number, fault, names) in enumerate(pool.map(check_number, range(scenarios), chunksize=20), 1):
            covered.update(names)
            if fault:
                violated += 1
                print(f"scenario {number}: {fault}\n{scenario_number(number)[0].to_toml()}\n", flush=True)
            if done % max(1, scenarios // 20) == 0:
                print(f"{done} scenarios, {violated} violated, {time.monotonic() - start:.0f} s", flush=True)
    for name in CLASSES:
        print(f"{covered[name]:7}  {name}")
    missing = [name for name in CLASSES if not covered[name]]
    print(f"{scenarios} scenarios, {violated} violated" + (f"; not covered: {', '.join(missing)}" if missing else ""))
    return 1 if violated or missing else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
