# SPDX-License-Identifier: BSD-3-Clause
"""The 2013 series' times of GET: their possible explanations, the model, and the walk of the lab's prototype.

The lab counts instructions (docs/lab.md), which are not used as times: only the ratio of instructions per page of its
two walks, without and with the lock, is used. The walk without the lock is fitted to the lab's cells under load, the
only cells of that walk. The cells with the lock check the model, and nothing is fitted to them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from simlib.analysis.predict import evaluate
from simlib.lab.hardware.instructions import cost_estimate, instruction_costs
from simlib.lab.hardware.load import medians
from simlib.lab.hardware.machines import lab_case, lab_scenario
from simlib.measurements import load
from simlib.measurements.fits import CostEstimate, complete
from simlib.model.pagetable import WORD_PAGES
from simlib.model.scenario import Scenario
from simlib.simulator.engine import compiled
from simlib.simulator.engine.result import LEDGER, PS
from simlib.simulator.workloads import build
from studies.lockless import kernbench
from studies.study import shipped_fit, student_t

EXPERIMENT = "lockless-write-protect"
"""Experiment of the lab with and without the lock, in ``data/collected/switches-*``."""

GRID = (45.0, 65.0)
"""Instructions per page at which the model is run to fit the walk without the lock."""

SEEDS = range(1, 4)
"""Seeds of the simulator; results are medians over them."""

VCPUS = 12
"""CPUs of the 2013 series' host, and vCPUs of its kernbench guest; the guest of the GETs is not stated."""


@dataclass(frozen=True)
class Walk:
    """Instructions of write-protecting a page in the lab: values with the ends of their intervals.

    - `locked`: with the lock, from cells with a parked vCPU (`simlib.lab.hardware.instructions`).
    - `lockless`: without the lock, one parameter.
    - `observations`: number of observations to which `lockless` was fitted.
    """

    locked: tuple[float, float, float]
    lockless: tuple[float, float, float]
    observations: int

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Ratio of instructions without the lock to those with it, and its interval."""
        value = self.lockless[0] / self.locked[0]
        return value, self.lockless[1] / self.locked[2], self.lockless[2] / self.locked[1]


def lab_rows(kind: str) -> pd.DataFrame:
    """Rows of the experiment in one of the lab's tables (``ioctls``, ``locks``, ``stalls``), with ``lockless``."""
    rows = load(f"switches-{kind}").rows(f"experiment == '{EXPERIMENT}'")
    return rows.assign(lockless=rows["switches"].str.endswith("=Y"))


def _lab_cases(*lockless_pages: float) -> list[Scenario]:
    """Scenarios of the lab's cell: with the lock, and without it for each number of instructions per page."""
    estimate = cost_estimate(instruction_costs("x86-shadow"), "x86-shadow")
    case = estimate.apply(lab_case("x86-shadow", lab_rows("ioctls").iloc[0]))
    lockless = case.changed({"policy": {"clear_lock": "lockless"}})
    return [case, *(lockless.with_costs(lockless_page=1000 * page) for page in lockless_pages)]


_ROUNDS = ("clear_dirty_log_time[1]", "clear_dirty_log_time[2]")


def fit_walk() -> Walk:
    """Fit the instructions per page of the walk without the lock, by least squares on logarithms over rounds and seeds.

    The interval combines the scatter of the observations with the model's error in the lab's other cells under load
    (the discrepancy of the shipped fit), which is common to all observations.
    """
    page = instruction_costs("x86-shadow").query("name == 'clear_page'")[["value", "low", "high"]]
    value, low, high = page.to_numpy(dtype=float)[0].tolist()
    model = np.log(medians(_lab_cases(*GRID)[1:], _ROUNDS, SEEDS))
    clears = lab_rows("ioctls").query("lockless and name == 'clear'")
    rounds, logs = clears["round"].to_numpy() - 1, np.log(clears["total_time_ns"].to_numpy(dtype=float) * 1e-9)

    def residuals(page: float) -> NDArray[np.float64]:
        predicted = np.array([np.interp(page, GRID, of_round) for of_round in model.T])
        return np.asarray(logs - predicted[rounds])

    best = float(optimize.minimize_scalar(lambda p: float((residuals(p) ** 2).sum()), bounds=GRID).x)
    slope = float(np.mean(residuals(best - 1) - residuals(best + 1)) / 2)  # of the logarithm, per instruction
    dof = len(logs) - 1
    scatter = float((residuals(best) ** 2).sum() / dof / len(logs))
    discrepancy = shipped_fit(lab_scenario("x86-shadow")).estimate.discrepancy
    half = student_t(dof) * float(np.sqrt(scatter + discrepancy**2)) / slope
    return Walk((value, low, high), (best, best - half, best + half), len(logs))


_THOUSANDS_PER_S = 1e6
"""Thousands of instructions in a second of the lab's clock, which counts each instruction as a nanosecond."""

HOLDS = "mmu_lock taken by CLEAR"
_RANGE = ["median", "min", "max"]


def lab_comparison(walk: Walk) -> pd.DataFrame:
    """Compare the lab's cells with the model.

    Returns: ``lock``, ``what``, ``unit`` (instructions of all CPUs), ``lab``, ``lab_low``, ``lab_high`` (median over
    three seeds and their range), ``model``, ``error``, ``determined`` (the walk without the lock was fitted to it).
    """
    cases = _lab_cases(walk.lockless[0])
    model = _THOUSANDS_PER_S * medians(cases, (*_ROUNDS, "longest_stall"), SEEDS)
    clears, stalls = lab_rows("ioctls").query("name == 'clear'"), lab_rows("stalls")
    acquisitions = lab_rows("locks").query("phase == 'rounds' and site == 'clear'")
    rows = []
    for lock, simulated in zip(("mmu_lock", "none"), model.tolist(), strict=True):
        lockless = lock == "none"
        times = clears[clears["lockless"] == lockless].set_index("round")["total_time_ns"]
        longest = stalls[stalls["lockless"] == lockless].groupby("seed")["longest_stall_in_clear_ns"].max()
        holds = acquisitions[acquisitions["lockless"] == lockless].groupby("seed")["acquisitions"].sum()
        names = ("first CLEAR", "second CLEAR", "longest stall")
        for what, values, value in zip(names, (times[1], times[2], longest), simulated, strict=True):
            lab = (_THOUSANDS_PER_S * (values * 1e-9)).agg(_RANGE)
            rows.append((lock, what, "thousand instructions", *lab, value, lockless and what != "longest stall"))
        counted = holds.reindex(longest.index, fill_value=0).agg(_RANGE)
        rows.append((lock, HOLDS, "count", *counted, 0.0 if lockless else cases[0].workload.iterations, False))
    columns = ["lock", "what", "unit", "lab", "lab_low", "lab_high", "model", "determined"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(error=np.where(frame["lab"] == frame["model"], 0.0, frame["model"] / frame["lab"] - 1))


GUEST_TYPES: dict[str, dict[str, dict[str, str]]] = {
    "EPT, pages": {"policy": {"architecture": "x86-shadow"}, "guest": {"backing": "4k"}},
    "EPT, blocks at first": {"policy": {"architecture": "x86-shadow"}, "guest": {"backing": "thp"}},
    "EPT off": {"policy": {"architecture": "x86-shadow-paging"}, "guest": {"backing": "4k"}},
}
"""Guests of the shadow MMU: no fault takes the lock; faults take it until blocks are split; all faults take it."""

BEFORE = {"lock": "ticket", "get_flush": "under_lock", "enable_blocks": "drop"}
"""Policy of x86 in 2013 (Linux 3.11: kvm_vm_ioctl_get_dirty_log, spte_write_protect); spinlocks were ticket locks."""

AFTER = {"lock": "ticket", "clear_lock": "lockless", "enable_blocks": "protect"}
"""Policy of the 2013 series."""

SETTINGS = tuple(itertools.product(("3G", "12G"), ("200ns", "2us"), ("5ms", "50ms")))
"""Values of memory, access interval of a vCPU, and userspace's pause between GETs; the mail states none of them."""


def get_scenario(guest: str, memory: str, interval: str, pause: str, vcpus: int = VCPUS, rounds: int = 4) -> Scenario:
    """Scenario of `rounds` GETs with a guest of `GUEST_TYPES` that writes random pages, with x86's published costs."""
    return Scenario.parse(
        {"host": {"name": "x86-published"}, "cost_group": "shadow", "policy": GUEST_TYPES[guest]["policy"],
         "guest": {"vcpus": vcpus, "memory": memory} | GUEST_TYPES[guest]["guest"],
         "workload": {"kind": "get_dirty_log", "iterations": rounds, "pause": pause, "warm_up": "100us",
                      "access": "uniform", "shared": True, "access_interval": interval},
         "costs": {"enable_page": "0ns"}}  # the log is enabled before the first timed GET
    )  # fmt: skip


def published_costs() -> CostEstimate:
    """Calibrated costs of the published x86 host (data/fits/x86-published.json)."""
    return shipped_fit(get_scenario("EPT off", "3G", "1us", "5ms")).estimate


_GET = ("get_dirty_log_time", "get_wait_time", "dirty_pages")


def simulate_settings(walk: Walk) -> pd.DataFrame:
    """Simulate GET before and after the 2013 series for `GUEST_TYPES` and `SETTINGS`.

    Returns: ``guest``, ``memory``, ``interval``, ``pause``; ``before_s`` and ``after_s``: mean time of a GET if a page
    takes as long without the lock as with it; ``after_lab_s``: if its time is scaled by the lab's ratio; ``ratio``,
    ``ratio_lab``: after over before; ``page_ratio``: ``ratio`` per dirty page; ``dirty_ratio``: dirty pages after over
    before; ``wait_s``: mean wait of a GET for the lock, before.
    """
    estimate, cases = published_costs(), []
    page = float(np.exp(estimate.logs[estimate.names.index("clear_page[shadow]")]))
    settings = [(guest, *setting) for guest, setting in itertools.product(GUEST_TYPES, SETTINGS)]
    for setting in settings:
        case = estimate.apply(get_scenario(*setting))
        lockless = case.changed({"policy": AFTER})
        same_cost, lab = (lockless.with_costs(lockless_page=ratio * page) for ratio in (1.0, walk.ratio[0]))
        cases += [case.changed({"policy": BEFORE}), same_cost, lab]
    runs = evaluate(cases, pages_per_vcpu=None)
    means = [[run.value(name) / run.scenario.workload.iterations for name in _GET] for run in runs]
    (before, wait, pages), (after, _, later), (lab, _, _) = np.reshape(means, (-1, 3, len(_GET))).transpose(1, 2, 0)
    return pd.DataFrame(settings, columns=["guest", "memory", "interval", "pause"]).assign(
        before_s=before, after_s=after, after_lab_s=lab, wait_s=wait, ratio=after / before, ratio_lab=lab / before,
        page_ratio=after / before * pages / later, dirty_ratio=later / pages,
    )  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """Requirements that the 2013 series' two means impose on a mechanism.

    - `means`: published means of GET.
    - `page`: time of write-protecting a page under the lock on the published host, with its interval, s.
    - `flush`: time of flushing the TLBs of `VCPUS` vCPUs on that host, s.
    - `ratio`: time per page of the walk without the lock over that with it, taken from the lab's instructions.
    """

    means: kernbench.Means
    page: tuple[float, float, float]
    flush: float
    ratio: float

    @property
    def wait_per_vcpu(self) -> float:
        """Hold of each vCPU, s, if each is ahead of GET in the queue once, and their holds add up to the saved time."""
        return self.means.saved / VCPUS

    @property
    def walk(self) -> float:
        """Time of the walk before the series, s, if the walk without the lock takes `ratio` of it."""
        return self.means.saved / (1 - self.ratio)


def budget(walk: Walk) -> Budget:
    """Compute the requirements of the 2013 series' means."""
    estimate = published_costs()
    costs = estimate.apply(get_scenario("EPT off", "3G", "1us", "5ms")).costs
    index = estimate.names.index("clear_page[shadow]")
    half = student_t(estimate.dof) * float(np.sqrt(estimate.covariance[index, index]))
    value = float(np.exp(estimate.logs[index])) * PS
    flush = ((costs.flush or 0) + VCPUS * (costs.flush_per_vcpu or 0)) * PS
    page = (value, value * float(np.exp(-half)), value * float(np.exp(half)))
    return Budget(kernbench.get_means(), page, flush, walk.ratio[0])


def rewalks(scenario: Scenario) -> dict[str, float]:
    """Number of rmap changes during GET's walk of that rmap, if every fault changed one: counted and expected.

    The guest accesses random pages (``access = "uniform"``), so one in 64 faults on the word that is being walked hits
    the page that is being walked.

    Returns: ``walked``: pages; ``faults`` during GET's walks; ``counted``: those on the walked word, over 64;
    ``expected``: equation 2.6 of docs/page-table-walks.md.
    """
    scenario = complete(scenario)
    time, _, kind, page, dirty = compiled.run(build(scenario), 1, ledger=8_000_000).ledger.T
    costs = scenario.costs
    page_ps = (costs.lockless_page if scenario.policy.clear_lock == "lockless" else costs.clear_page) or 0
    cleared = np.flatnonzero((kind == LEDGER.index("clear")) & (dirty > 0))
    faults = np.flatnonzero((kind == LEDGER.index("write")) & (dirty == 1))
    begin, end = time[cleared], time[cleared] + dirty[cleared] * page_ps
    walk = np.searchsorted(begin, time[faults], side="right") - 1
    during = (walk >= 0) & (time[faults] < end[walk])
    same = during & (page[faults] // WORD_PAGES == page[cleared[walk]] // WORD_PAGES)
    pages, walked = scenario.guest.pages, float(dirty[cleared].sum())
    rate = float(during.sum()) / max(1, int((end - begin).sum()))
    return {"walked": walked, "faults": float(during.sum()), "counted": float(same.sum()) / WORD_PAGES,
            "expected": walked * page_ps * rate / pages}  # fmt: skip


def rewalk_table() -> pd.DataFrame:
    """Results of `rewalks` for guests of two sizes whose vCPUs fault continuously."""
    rows = []
    for memory, rounds in (("3M", 1000), ("48M", 200)):
        case = get_scenario("EPT off", memory, "1us", "100us", rounds=rounds)
        case = published_costs().apply(case).changed({"policy": {"clear_lock": "lockless"}})
        case = case.with_costs(lockless_page=case.costs.clear_page or 0)  # the same cost as with the lock
        rows.append({"memory": memory, "gets": rounds, **rewalks(case)})
    return pd.DataFrame(rows)


def hypotheses(requirements: Budget, ratio: tuple[float, float, float], simulated: pd.DataFrame) -> pd.DataFrame:
    """Candidate explanations of GET's 4.2 ms: what each requires, the evidence, and the measurement that would test it.

    Returns: ``hypothesis``, ``needs``, ``known``, ``verdict`` (``excluded``: short by a factor of 100; ``possible``:
    the requirement occurs in the model or the lab; ``open``: no published evidence), ``decisive``.

    - `ratio`: ratio of the lab's walks (`Walk.ratio`).
    - `simulated`: as `simulate_settings` returns it.
    """
    means, saved, walk, page = requirements.means, requirements.means.saved, requirements.walk, requirements.page[0]
    wait = float(simulated["wait_s"].max())
    fewer = simulated[simulated["dirty_ratio"] <= means.ratio]["guest"].unique().tolist()
    rows = [
        ("GET no longer waits for the lock",
         f"{1e3 * saved:.1f} ms of waiting: each of {VCPUS} vCPUs ahead of GET in the queue holds the lock for "
         f"{1e6 * requirements.wait_per_vcpu:.0f} µs",
         "ticket locks are first come, first served, and GET takes the lock once; in the model, its mean wait is at "
         f"most {1e6 * wait:.0f} µs",
         "excluded" if saved > 100 * wait else "open", "lock_stat: wait and hold time of mmu_lock by call site"),
        ("TLBs are flushed outside of the lock", f"{1e3 * saved:.1f} ms of flushing saved",
         f"GET flushes once either way: {1e6 * requirements.flush:.0f} µs for {VCPUS} vCPUs on the published host",
         "excluded" if saved > 100 * requirements.flush else "open", "function time of kvm_flush_remote_tlbs"),
        ("the walk itself became faster: another walk of the rmap, one atomic operation per SPTE update",
         f"a page takes at most {means.ratio:.2f} of its former time; with the lab's ratio, the old walk "
         f"takes {1e3 * walk:.1f} ms ({1e-3 * walk / page:.0f} thousand pages at {1e9 * page:.0f} ns)",
         f"the lab's prototype (another kernel, another walk) executes {ratio[0]:.2f} ({ratio[1]:.2f} to "
         f"{ratio[2]:.2f}) of the instructions; instructions are not time, and cache misses remain",
         "possible" if ratio[1] < means.ratio else "excluded",
         "time of the new walk with the lock held around it, on the mail's host"),
        ("GET found fewer dirty pages", f"{means.ratio:.2f} of the pages",
         f"in the model, this occurs while huge pages are split ({', '.join(fewer) or 'for no guest'}): write faults "
         "split the remaining large SPTEs, each with a flush under the lock, and the guest is slower. In other cases, "
         f"GET finds as many pages or more (ratio: at most {simulated['dirty_ratio'].max():.2f})",
         "possible" if fewer else "excluded", "bits set in the bitmap of each GET"),
        ("GET was preempted: 12 vCPUs and GET share 12 CPUs",
         f"preemption for {1e3 * saved:.1f} ms more before the series than after it",
         "a thread that holds or waits for a spinlock is not preempted, but the walk without the lock may be",
         "open", "perf sched: run delay of the thread"),
        ("one slow run before", f"nine runs as short as after the series, and one of {1e3 * means.outlier:.0f} ms",
         "the mail does not state the spread", "open", "the twenty individual times"),
        ("other code holds mmu_lock for milliseconds (MMU notifier, zapping)",
         f"such a hold at nearly every GET, with {1e3 * saved:.1f} ms of it left on average",
         "no published hold of a fault is nearly as long; the mail does not state what else ran", "open",
         "lock_stat: longest hold by call site"),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["hypothesis", "needs", "known", "verdict", "decisive"])
