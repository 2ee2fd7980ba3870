# SPDX-License-Identifier: BSD-3-Clause
"""The 2013 series' time of GET beside the model: what it can be made of, and what the lab's prototype says of the walk.

The lab counts instructions (docs/lab.md), and nothing here takes them for time: of its two walks, with the lock and
without, only the ratio of instructions a page is used. The walk without the lock is determined from cells under load,
which are those that the lab has; the cells with the lock, of which nothing is determined, check the model.
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
from studies.study import shipped_fit, student

EXPERIMENT = "lockless-write-protect"
"""The lab's cells with and without the lock, in ``data/collected/switches-*``."""

GRID = (45.0, 65.0)
"""Instructions a page at which the model is run to determine the walk without the lock."""

SEEDS = range(1, 4)
"""Seeds of the simulator, of whose results the median counts."""

VCPUS = 12
"""CPUs of the 2013 series' host, and vCPUs of the guest of its kernbench; GET's guest is not stated."""


@dataclass(frozen=True)
class Walk:
    """What write-protecting a page takes in the lab, instructions: values, each with its interval.

    - `locked`: with the lock, from cells whose vCPU is parked (`simlib.lab.hardware.instructions`).
    - `lockless`: without; one number determined from so many `observations`.
    """

    locked: tuple[float, float, float]
    lockless: tuple[float, float, float]
    observations: int

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Without over with, and its interval."""
        value = self.lockless[0] / self.locked[0]
        return value, self.lockless[1] / self.locked[2], self.lockless[2] / self.locked[1]


def lab_rows(kind: str) -> pd.DataFrame:
    """Rows of the experiment in one of the lab's tables (``ioctls``, ``locks``, ``stalls``), with ``lockless``."""
    rows = load(f"switches-{kind}").rows(f"experiment == '{EXPERIMENT}'")
    return rows.assign(lockless=rows["switches"].str.endswith("=Y"))


def _lab_cases(*lockless_pages: float) -> list[Scenario]:
    """The cell with the lock, with the lab's costs, and without it, by the instructions of a page."""
    estimate = cost_estimate(instruction_costs("x86-shadow"), "x86-shadow")
    case = estimate.apply(lab_case("x86-shadow", lab_rows("ioctls").iloc[0]))
    lockless = case.changed({"policy": {"clear_lock": "lockless"}})
    return [case, *(lockless.with_costs(lockless_page=1000 * page) for page in lockless_pages)]


_ROUNDS = ("clear_dirty_log_time[1]", "clear_dirty_log_time[2]")


def fit_walk() -> Walk:
    """Determine what the walk without the lock takes a page: least squares of logarithms over rounds and seeds.

    Its interval has the scatter of the observations, and how far the model was off in the lab's other cells under
    load (the discrepancy of the shipped fit), which all observations share.
    """
    page = instruction_costs("x86-shadow").query("name == 'clear_page'")[["value", "low", "high"]]
    value, low, high = page.to_numpy(dtype=float)[0].tolist()
    model = np.log(medians(_lab_cases(*GRID)[1:], _ROUNDS, SEEDS))
    seen = lab_rows("ioctls").query("lockless and name == 'clear'")
    which, logs = seen["round"].to_numpy() - 1, np.log(seen["total_time_ns"].to_numpy(dtype=float) * 1e-9)

    def residuals(page: float) -> NDArray[np.float64]:
        at = [np.interp(page, GRID, model[:, r]) for r in (0, 1)]
        return np.asarray(logs - np.array(at)[which])

    best = float(optimize.minimize_scalar(lambda p: float((residuals(p) ** 2).sum()), bounds=GRID).x)
    slope = float(np.mean(residuals(best - 1) - residuals(best + 1)) / 2)  # of the logarithm, by instruction
    dof = len(logs) - 1
    scatter = float((residuals(best) ** 2).sum() / dof / len(logs))
    discrepancy = shipped_fit(lab_scenario("x86-shadow")).estimate.discrepancy
    half = student(dof) * float(np.sqrt(scatter + discrepancy**2)) / slope
    return Walk((value, low, high), (best, best - half, best + half), len(logs))


_THOUSANDS_PER_S = 1e6
"""Thousands of instructions in a second of the lab's clock, which shows a nanosecond for each."""

HOLDS = "mmu_lock taken by CLEAR"


def lab_comparison(walk: Walk) -> pd.DataFrame:
    """The lab's cells beside the model.

    Returns: ``lock``, ``what``, ``unit`` (instructions of all CPUs), ``lab``, ``lab_low``, ``lab_high`` (median over
    three seeds and their range), ``model``, ``error``, ``determined`` (whether the walk without the lock was determined
    from it).
    """
    cases = _lab_cases(walk.lockless[0])
    model = _THOUSANDS_PER_S * medians(cases, (*_ROUNDS, "longest_stall"), SEEDS)
    clears, stalls = lab_rows("ioctls").query("name == 'clear'"), lab_rows("stalls")
    taken = lab_rows("locks").query("phase == 'rounds' and site == 'clear'")
    rows = []
    for lockless, (first, second, stall) in zip((False, True), model.tolist(), strict=True):
        times = clears[clears["lockless"] == lockless].set_index("round")["total_time_ns"]
        longest = stalls[stalls["lockless"] == lockless].groupby("seed")["longest_stall_in_clear_ns"].max()
        holds = taken[taken["lockless"] == lockless].groupby("seed")["acquisitions"].sum()
        rows += [
            ("first CLEAR", _THOUSANDS_PER_S * (times[1] * 1e-9), first),
            ("second CLEAR", _THOUSANDS_PER_S * (times[2] * 1e-9), second),
            ("longest stall", _THOUSANDS_PER_S * (longest * 1e-9), stall),
            (HOLDS, holds.reindex(longest.index, fill_value=0), 0.0 if lockless else cases[0].workload.iterations),
        ]
    lab = [seen.agg(["median", "min", "max"]).to_numpy(dtype=float) for _, seen, _ in rows]
    frame = pd.DataFrame({"lock": ["mmu_lock"] * 4 + ["none"] * 4, "what": [what for what, _, _ in rows]})
    frame["unit"] = np.where(frame["what"] == HOLDS, "count", "thousand instructions")
    frame[["lab", "lab_low", "lab_high"]] = lab
    frame["model"] = [float(told) for _, _, told in rows]
    frame["determined"] = (frame["lock"] == "none") & frame["what"].isin(["first CLEAR", "second CLEAR"])
    return frame.assign(error=np.where(frame["lab"] == frame["model"], 0.0, frame["model"] / frame["lab"] - 1))


GUESTS: dict[str, dict[str, dict[str, str]]] = {
    "EPT, pages": {"policy": {"architecture": "x86-shadow"}, "guest": {"backing": "4k"}},
    "EPT, blocks at first": {"policy": {"architecture": "x86-shadow"}, "guest": {"backing": "thp"}},
    "EPT off": {"policy": {"architecture": "x86-shadow-paging"}, "guest": {"backing": "4k"}},
}
"""Guests of the shadow MMU: whose faults take no lock once its blocks are split; until then; and all faults do."""

BEFORE = {"lock": "ticket", "get_flush": "under_lock", "enable_blocks": "drop"}
"""x86 in 2013 (read in 3.11): kvm_vm_ioctl_get_dirty_log and spte_write_protect; spinlocks were ticket locks."""

AFTER = {"lock": "ticket", "clear_lock": "lockless", "enable_blocks": "protect"}
"""The 2013 series."""

SETTINGS = tuple(itertools.product(("3G", "12G"), ("200ns", "2us"), ("5ms", "50ms")))
"""Memory, a vCPU's time between two accesses, userspace's pause: the mail states none of them."""


def get_scenario(guest: str, memory: str, interval: str, pause: str, vcpus: int = VCPUS, rounds: int = 4) -> Scenario:
    """GET again and again from one of `GUESTS`, whose vCPUs write any page of it, with x86's published costs."""
    return Scenario.parse(
        {"host": {"name": "x86-published"}, "cost_group": "shadow", "policy": GUESTS[guest]["policy"],
         "guest": {"vcpus": vcpus, "memory": memory} | GUESTS[guest]["guest"],
         "workload": {"kind": "get_dirty_log", "iterations": rounds, "pause": pause, "warm_up": "100us",
                      "access": "uniform", "shared": True, "access_interval": interval},
         "costs": {"enable_page": "0ns"}}  # the log is on before the first GET that is timed
    )  # fmt: skip


def published_costs() -> CostEstimate:
    """The costs of the published x86 host, calibrated (data/fits/x86-published.json)."""
    return shipped_fit(get_scenario("EPT off", "3G", "1us", "5ms")).estimate


_GET = ("get_dirty_log_time", "get_wait_time", "dirty_pages")


def witness(walk: Walk) -> pd.DataFrame:
    """GET before and after the 2013 series in the model, over `SETTINGS`: does any of them save what the mail says?

    Returns: ``guest``, ``memory``, ``interval``, ``pause``; ``before_s`` and ``after_s``: mean time of a GET, if a page
    takes as long without the lock as with it; ``after_lab_s``: if it takes the lab's ratio of it; ``ratio``,
    ``ratio_lab``: after over before; ``page_ratio``: the same for each page found dirty; ``dirty_ratio``: of the pages
    found; ``wait_s``: mean wait of a GET for the lock, before.
    """
    estimate, cases = published_costs(), []
    page = float(np.exp(estimate.logs[estimate.names.index("clear_page[shadow]")]))
    settings = [(guest, *setting) for guest, setting in itertools.product(GUESTS, SETTINGS)]
    for setting in settings:
        case = estimate.apply(get_scenario(*setting))
        lockless = case.changed({"policy": AFTER})
        dear, lab = (lockless.with_costs(lockless_page=ratio * page) for ratio in (1.0, walk.ratio[0]))
        cases += [case.changed({"policy": BEFORE}), dear, lab]
    runs = evaluate(cases, pages_per_vcpu=None)
    means = [[run.value(name) / run.scenario.workload.iterations for name in _GET] for run in runs]
    (before, wait, pages), (after, _, later), (lab, _, _) = np.reshape(means, (-1, 3, len(_GET))).transpose(1, 2, 0)
    return pd.DataFrame(settings, columns=["guest", "memory", "interval", "pause"]).assign(
        before_s=before, after_s=after, after_lab_s=lab, wait_s=wait, ratio=after / before, ratio_lab=lab / before,
        page_ratio=after / before * pages / later, dirty_ratio=later / pages,
    )  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """What the 2013 series' two means ask of a mechanism, by arithmetic.

    - `page`: write-protecting a page under the lock: the published host's cost and its interval, s.
    - `flush`: flushing the TLBs of `VCPUS` vCPUs there, s.
    - `ratio`: of the walk's time a page, without the lock over with it: the lab's, of instructions.
    """

    means: kernbench.Means
    page: tuple[float, float, float]
    flush: float
    ratio: float

    @property
    def wait_each(self) -> float:
        """How long each vCPU would hold the lock if all were ahead of GET, each once, s."""
        return self.means.saved / VCPUS

    @property
    def walk(self) -> float:
        """Time of the walk before, s, if without the lock it takes `ratio` of it."""
        return self.means.saved / (1 - self.ratio)


def budget(walk: Walk) -> Budget:
    """The arithmetic of the 2013 series' means."""
    estimate = published_costs()
    costs = estimate.apply(get_scenario("EPT off", "3G", "1us", "5ms")).costs
    index = estimate.names.index("clear_page[shadow]")
    half = student(estimate.dof) * float(np.sqrt(estimate.covariance[index, index]))
    value = float(np.exp(estimate.logs[index])) * PS
    flush = ((costs.flush or 0) + VCPUS * (costs.flush_per_vcpu or 0)) * PS
    page = (value, value * float(np.exp(-half)), value * float(np.exp(half)))
    return Budget(kernbench.get_means(), page, flush, walk.ratio[0])


def rewalks(scenario: Scenario) -> dict[str, float]:
    """How often an rmap changes while GET walks it, if every fault changed one: counted, and expected.

    A guest that writes any page (``access = "uniform"``) faults on each page of a word as likely, so that one in 64
    faults on the word that is being walked is on the page that is.

    Returns: ``walked``: pages; ``faults``: while GET walked; ``counted``: those on its word, over 64; ``expected``:
    docs/model.md (2.6).
    """
    scenario = complete(scenario)
    raw = compiled.run(build(scenario), 1, ledger=8_000_000)
    time, _, kind, page, found = raw.ledger.T
    costs = scenario.costs
    each = (costs.lockless_page if scenario.policy.clear_lock == "lockless" else costs.clear_page) or 0
    cleared = np.flatnonzero((kind == LEDGER.index("clear")) & (found > 0))
    faults = np.flatnonzero((kind == LEDGER.index("write")) & (found == 1))
    begin, end = time[cleared], time[cleared] + found[cleared] * each
    which = np.searchsorted(begin, time[faults], side="right") - 1
    during = (which >= 0) & (time[faults] < end[which])
    same = during & (page[faults] // WORD_PAGES == page[cleared[which]] // WORD_PAGES)
    pages, walked = scenario.guest.pages, float(found[cleared].sum())
    rate = float(during.sum()) / max(1, int((end - begin).sum()))
    return {"walked": walked, "faults": float(during.sum()), "counted": float(same.sum()) / WORD_PAGES,
            "expected": walked * each * rate / pages}  # fmt: skip


def rewalk_table() -> pd.DataFrame:
    """`rewalks` for guests of two sizes whose vCPUs all fault as fast as they can."""
    rows = []
    for memory, rounds in (("3M", 1000), ("48M", 200)):
        case = get_scenario("EPT off", memory, "1us", "100us", rounds=rounds)
        case = published_costs().apply(case).changed({"policy": {"clear_lock": "lockless"}})
        case = case.with_costs(lockless_page=case.costs.clear_page or 0)  # as dear as with the lock
        rows.append({"memory": memory, "gets": rounds, **rewalks(case)})
    return pd.DataFrame(rows)


def readings(b: Budget, ratio: tuple[float, float, float], w: pd.DataFrame) -> pd.DataFrame:
    """What could have saved GET's 4.2 ms: what each reading needs, what is known of that, and what would decide.

    Returns: ``reading``, ``needs``, ``known``, ``verdict`` (``excluded``: short by a factor of 100;
    ``possible``: what it needs occurs in the model or the lab; ``open``: nothing published says anything of it),
    ``decisive``.

    `ratio` is that of the lab's walks (`Walk.ratio`), `w` what `witness` gives.
    """
    means, saved = b.means, b.means.saved
    wait = float(w["wait_s"].max())
    fewer = w[w["dirty_ratio"] <= means.ratio]["guest"].unique().tolist()
    rows = [
        ("GET no longer waits for the lock",
         f"{1e3 * saved:.1f} ms of waiting: each of {VCPUS} vCPUs ahead of it in the queue holds the lock for "
         f"{1e6 * b.wait_each:.0f} µs",
         f"a queue is first come first served, and GET takes the lock once; modelled, it waits {1e6 * wait:.0f} µs on "
         "average at most",
         "excluded" if saved > 100 * wait else "open", "lock_stat: wait and hold time of mmu_lock by call site"),
        ("TLBs are flushed outside of the lock", f"{1e3 * saved:.1f} ms of flushing saved",
         f"GET flushes once either way: {1e6 * b.flush:.0f} µs for {VCPUS} vCPUs on the published host",
         "excluded" if saved > 100 * b.flush else "open", "function time of kvm_flush_remote_tlbs"),
        ("the walk itself became faster: another walk of the rmap, one atomic operation for an update of an SPTE",
         f"a page in at most {means.ratio:.2f} of its time; with the lab's ratio {1e3 * b.walk:.1f} ms of walk before, "
         f"{1e-3 * (b.walk / b.page[0]):.0f} thousand pages at {1e9 * b.page[0]:.0f} ns",
         f"the lab's prototype (another kernel, another walk) takes {ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f}) "
         "of the instructions; instructions are no time, misses of the cache stay",
         "possible" if ratio[1] < means.ratio else "excluded",
         "the new walk with the lock held around it, on the old machine"),
        ("GET found fewer dirty pages", f"{means.ratio:.2f} of the pages",
         f"modelled, it does while blocks are being split ({', '.join(fewer) or 'no guest'}): large SPTEs that are "
         "kept are split by the faults that write, with a flush under the lock each, and the guest is slower. "
         f"Otherwise it finds as many or more ({w['dirty_ratio'].max():.2f} at most)",
         "possible" if fewer else "excluded", "bits set in the bitmap of each GET"),
        ("GET was off its CPU: 12 vCPUs and GET on 12 CPUs", f"{1e3 * saved:.1f} ms more of it before than after",
         "nobody is preempted who holds or waits for a spinlock, so that it is the walk without one that may be",
         "open", "perf sched: run delay of the thread"),
        ("one slow run before", f"nine runs as those after, and one of {1e3 * means.outlier:.0f} ms",
         "no spread is stated", "open", "the twenty single times"),
        ("someone else holds mmu_lock for milliseconds (MMU notifier, zapping)",
         f"a hold of that kind at nearly every GET, {1e3 * saved:.1f} ms left of it on average",
         "no published hold of a fault comes near; nothing states what else ran", "open",
         "lock_stat: longest hold by call site"),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["reading", "needs", "known", "verdict", "decisive"])
