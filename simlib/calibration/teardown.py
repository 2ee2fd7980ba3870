# SPDX-License-Identifier: BSD-3-Clause
"""Published times of unmapping an arm64 stage 2 beside the model: seed 003, and the tables of FEAT_TLBIRANGE.

Three machines or configurations, none of which shares a cost with another by anything that the sources say: seed 003's
D05 (2019), a host with FEAT_TLBIRANGE that maps pages of 4 KiB (2023), and the same with blocks of 2 MiB and 128 vCPUs.
So each table has costs of its own, and what one says of another is shown as a check. The tables' times of
ADJUST_MAPPINGS are left out: there vCPUs fault and touch memory, and unmapping is no part of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, stats

from simlib.fits import find_fit
from simlib.measurements import load
from simlib.model.costs import Costs
from simlib.model.pagetable import LINE_BYTES, PageTable
from simlib.model.policy import Policy
from simlib.model.quantities import format_size, parse_size
from simlib.model.scenario import Scenario
from simlib.model.unmapping import unmapping
from simlib.prediction import LEVEL
from simlib.simulation import run_scenario

GIB = 2**30
TRAIN_GB = 8
"""Rows of at most so much memory are fitted; the others are held out."""

TABLES = {
    "4K pages": ("arm64-tlbi-range-unmap-4k", 1, 0.01),
    "2M blocks": ("arm64-tlbi-range-by-memory", 2, 0.001),
}
"""What maps the memory: the published table, the level of its leaf entries, and the last digit of its times, s."""

COSTS = ("rest_of_the_test", "unmap_entry", "tlb_invalidate")
"""What is determined for each table: a time that does not depend on the memory, and two costs."""

WAYS = {
    "both for each entry": Policy(teardown_cache="entry", teardown_tlb="entry"),
    "no cache maintenance": Policy(teardown_cache="elided", teardown_tlb="entry"),
    "no TLB invalidation": Policy(teardown_cache="entry", teardown_tlb="elided"),
    "one whole-VM invalidation": Policy(teardown_cache="elided", teardown_tlb="vm"),
}
"""The ways of seed 003: as it was, each elided in turn, and both, with one invalidation of the whole VM."""

SEVERAL_S = 2.0
"""The mail says "several seconds"; we read it as at least two, to have a lower end. 12 s is the most that was seen."""

_SERIES = {"base": Policy(teardown_tlb="entry"), "series": Policy(teardown_tlb="range")}
# That the series defers invalidations at all means FEAT_S2FWB (stage2_unmap_defer_tlb_flush): no cache maintenance.


@dataclass(frozen=True)
class UnmapFit:
    """Costs of one table by weighted least squares.

    Attributes
    ----------
    table : str
        A key of `TABLES`.
    costs : ndarray, shape (3,)
        `COSTS`, seconds.
    covariance : ndarray, shape (3, 3)
    dof : int
        Rows fitted, less three.
    discrepancy : float
        Relative standard deviation of the rows from the model beyond the rounding of their digits.
    """

    table: str
    costs: NDArray[np.float64]
    covariance: NDArray[np.float64]
    dof: int
    discrepancy: float

    @property
    def quantile(self) -> float:
        """Student's t for intervals of the report's level."""
        return float(stats.t.ppf(0.5 + LEVEL / 2, self.dof))

    def interval(self, cost: str) -> tuple[float, float, float]:
        """A cost and the ends of its interval, seconds; none is negative."""
        i = COSTS.index(cost)
        half = self.quantile * float(np.sqrt(self.covariance[i, i]))
        return float(self.costs[i]), max(0.0, float(self.costs[i]) - half), float(self.costs[i]) + half

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Time of each row with the interval for a new measurement of as many digits."""
        design = rows[["constant", "entries", "invalidations"]].to_numpy(dtype=float)
        value = design @ self.costs
        variance = np.einsum("ij,jk,ik->i", design, self.covariance, design)
        half = self.quantile * np.sqrt(variance + _noise(value, TABLES[self.table][2], self.discrepancy))
        return rows.assign(model_s=value, low_s=np.maximum(0.0, value - half), high_s=value + half)


def _noise(times: NDArray[np.float64], digit: float, discrepancy: float) -> NDArray[np.float64]:
    """Variance of published times: of rounding to the last digit, and of what is left beyond it."""
    return np.asarray(digit**2 / 12 + (discrepancy * times) ** 2)


def published(table: str) -> pd.DataFrame:
    """The rows of a table, with what an unmap of so much memory does.

    Returns: ``table``, ``variant``, ``memory_gb``, ``published_s``, ``constant``, ``entries``, ``invalidations``,
    ``held_out``.

    Examples
    --------
    >>> published("2M blocks").iloc[[0, 8]][["variant", "entries", "invalidations"]].to_numpy().tolist()
    [['base', 513, 513], ['series', 513, 2]]
    """
    name, leaf, _ = TABLES[table]
    frame = load(name).frame
    does = [
        unmapping(PageTable(4096), round(gb) * GIB, leaf, _SERIES[variant])
        for gb, variant in zip(frame["memory_gb"], frame["variant"], strict=True)
    ]
    return pd.DataFrame(
        {"table": table, "variant": frame["variant"], "memory_gb": frame["memory_gb"],
         "published_s": frame["unmap_time_s"], "constant": 1, "entries": [d.entries for d in does],
         "invalidations": [d.invalidations for d in does], "held_out": frame["memory_gb"] > TRAIN_GB}
    )  # fmt: skip


def fit_unmap(table: str, most_gb: float = TRAIN_GB) -> UnmapFit:
    """Determine a table's costs from its rows of at most so much memory.

    The discrepancy is chosen so that the weighted squares are what the degrees of freedom expect; where rounding alone
    explains the deviations it is zero.

    Examples
    --------
    >>> value, low, high = fit_unmap("4K pages").interval("tlb_invalidate")
    >>> f"{value * 1e6:.2f} µs"
    '1.49 µs'
    """
    rows = published(table)
    return least_squares(table, rows[rows["memory_gb"] <= most_gb])


def least_squares(table: str, rows: pd.DataFrame) -> UnmapFit:
    """Determine the costs from rows like those of `published`, whose times have the table's digits."""
    design = rows[["constant", "entries", "invalidations"]].to_numpy(dtype=float)
    times, digit = rows["published_s"].to_numpy(dtype=float), TABLES[table][2]
    dof = len(times) - len(COSTS)

    def solved(discrepancy: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        weights = 1 / _noise(times, digit, discrepancy)
        inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
        values = inverse @ design.T @ (weights * times)
        return values, inverse, float(weights @ (times - design @ values) ** 2)

    discrepancy = 0.0
    if solved(0.0)[2] > dof:
        discrepancy = float(optimize.brentq(lambda s: solved(s)[2] - dof, 0.0, 1.0))
    values, covariance, _ = solved(discrepancy)
    return UnmapFit(table, values, covariance, dof, discrepancy)


def fits(most_gb: float = TRAIN_GB) -> dict[str, UnmapFit]:
    """The fit of each table to its rows of at most so much memory.

    Those of at most `TRAIN_GB` are what the held-out rows judge; those of all rows are what is then predicted with.
    """
    return {table: fit_unmap(table, most_gb) for table in TABLES}


def cost_table(found: dict[str, UnmapFit]) -> pd.DataFrame:
    """Costs by table, µs: ``table``, ``cost``, ``value_us``, ``low_us``, ``high_us``."""
    rows = []
    for (table, fit), cost in itertools.product(found.items(), COSTS):
        rows.append((table, cost, *(1e6 * end for end in fit.interval(cost))))
    return pd.DataFrame(rows, columns=["table", "cost", "value_us", "low_us", "high_us"])


def unmap_table(found: dict[str, UnmapFit]) -> pd.DataFrame:
    """Every published row beside its fitted or predicted time.

    Returns: The columns of `published` and ``model_s``, ``low_s``, ``high_s``, ``error`` (model over published, less
    one), ``covered``.
    """
    frame = pd.concat([fit.predict(published(table)) for table, fit in found.items()], ignore_index=True)
    inside = frame["published_s"].between(frame["low_s"], frame["high_s"])
    return frame.assign(error=frame["model_s"] / frame["published_s"] - 1, covered=inside)


def across(found: dict[str, UnmapFit]) -> pd.DataFrame:
    """What each table's two costs say of the other table's time for one more GB, between its two largest sizes.

    The time that does not depend on the memory falls out of the difference.

    Returns: ``costs_of``, ``said_of``, ``variant``, ``published_ms_per_gb``, ``model_ms_per_gb``, ``ratio`` (published
    over model), and its interval ``low``, ``high``.

    Examples
    --------
    >>> bool((across(fits())["ratio"] > 1.5).iloc[:2].all())
    True
    """
    rows = []
    for mine, other in (tuple(TABLES), tuple(TABLES)[::-1]):
        for variant, part in published(other).groupby("variant", sort=False):
            last = part.sort_values("memory_gb").iloc[-2:]
            more = last[["memory_gb", "published_s", "entries", "invalidations"]].diff().iloc[1]
            does = more[["entries", "invalidations"]].to_numpy(dtype=float)
            model, real = float(does @ found[mine].costs[1:]), float(more["published_s"])
            noise = _noise(last["published_s"].to_numpy(dtype=float), TABLES[other][2], found[other].discrepancy).sum()
            spread = np.sqrt(float(does @ found[mine].covariance[1:, 1:] @ does) / model**2 + noise / real**2)
            half, ratio = found[mine].quantile * spread * real / model, real / model
            each = (1e3 * real / more["memory_gb"], 1e3 * model / more["memory_gb"])
            rows.append((mine, other, variant, *each, ratio, ratio - half, ratio + half))
    names = ["costs_of", "said_of", "variant", "published_ms_per_gb", "model_ms_per_gb", "ratio", "low", "high"]
    return pd.DataFrame(rows, columns=names)


# -- seed 003 ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seed:
    """What seed 003 says, as numbers.

    Attributes
    ----------
    memory : int
        Bytes of the VM.
    before_s, after_s : float
        The longest time seen before, and an upper limit after.
    share : tuple of float
        Share of the time before that is cache maintenance: as stated, and the ends that round to it.
    """

    memory: int
    before_s: float
    after_s: float
    share: tuple[float, float, float]

    @property
    def lines(self) -> int:
        """Data cache lines of the VM's memory."""
        return self.memory // LINE_BYTES

    @property
    def rest_s(self) -> tuple[float, float, float]:
        """Time before that is no cache maintenance: stated, least, most."""
        stated, low, high = ((1 - share) * self.before_s for share in (self.share[0], self.share[2], self.share[1]))
        return stated, low, high

    @property
    def clean_line(self) -> tuple[float, float, float]:
        """Time to clean one line, s: of the longest time seen, and the ends of its range (`SEVERAL_S`, rounding)."""
        longest, least, most = self.before_s, SEVERAL_S, self.before_s + 0.5
        times = zip((longest, least, most), self.share, strict=True)
        value, low, high = (time * share / self.lines for time, share in times)
        return value, low, high


def seed() -> Seed:
    """Seed 003's three statements.

    Examples
    --------
    >>> f"{seed().clean_line[0] * 1e9:.1f} ns a line, {seed().rest_s[0]:.2f} s for the rest"
    '11.1 ns a line, 0.12 s for the rest'
    """
    times = load("arm64-teardown-64gb").frame.set_index("variant")["teardown_time_s"].to_dict()
    memory = load("arm64-teardown-64gb").frame["memory_gb"].iloc[0]
    percent = float(load("arm64-teardown-cost-share").frame["share_percent"].iloc[0])
    share = (percent / 100, (percent - 0.5) / 100, (percent + 0.5) / 100)
    return Seed(round(memory) * GIB, float(times["before"]), float(times["after"]), share)


def walk_entry() -> float:
    """Least that taking an entry out is known to take, s: what write-protecting one takes a Kunpeng 920.

    That walk changes each entry too, and gives nothing back. The tables' own cost of an entry is an upper bound of what
    KVM does: their test timed more, such as freeing the host's pages.

    Examples
    --------
    >>> f"{walk_entry() * 1e9:.0f} ns"
    '19 ns'
    """
    table = load("arm64-enable-dirty-log-chunks")
    times = table.rows("page_size == '4K'").set_index("variant")["enable_time_ms"].to_dict()
    mapped = parse_size(str(table.descriptor["setup"]["memory_pressure"]))
    return 1e-3 * float(times["before"] - times["after"]) / (mapped // 4096)


def readings(found: dict[str, UnmapFit]) -> pd.DataFrame:
    """Seed 003 read with either mapping, beside what the costs of the tables make of the same work.

    Returns: ``mapping``; ``entries``; ``mail_ns``, with ``mail_low_ns`` and ``mail_high_ns``: what the mail leaves for
    each entry; ``table_ns``: what the table of that mapping has for it; ``ratio`` of the two, with ``ratio_low`` and
    ``ratio_high``: the least and the most that is possible, at the least with `walk_entry` for taking it out;
    ``after_least_s``, ``after_table_s``: what is left without either maintenance, for which the mail has less than 1 s;
    ``agrees``.
    """
    said, rows = seed(), []
    rest, low, high = said.rest_s
    for mapping, (_, leaf, _) in TABLES.items():
        entries = unmapping(PageTable(4096), said.memory, leaf, WAYS["no cache maintenance"]).entries
        unmap, invalidate = (found[mapping].interval(cost) for cost in COSTS[1:])
        value, least, most = (
            entries * (taken + invalidate[i]) for i, taken in enumerate((unmap[0], walk_entry(), unmap[2]))
        )
        rows.append(
            {"mapping": mapping, "entries": entries,
             **{f"mail{end}_ns": 1e9 * s / entries for end, s in (("", rest), ("_low", low), ("_high", high))},
             "table_ns": 1e9 * value / entries, "ratio": value / rest, "ratio_low": least / high,
             "ratio_high": most / low, "after_least_s": entries * walk_entry(), "after_table_s": entries * unmap[0],
             "agrees": least <= high and most >= low and entries * walk_entry() < said.after_s}
        )  # fmt: skip
    return pd.DataFrame(rows)


def largest_page_share(found: dict[str, UnmapFit]) -> float:
    """Largest share of seed 003's memory that pages of 4 KiB can map, if invalidations cost what the tables have.

    The rest is then mapped by blocks of 2 MiB, and all of it must fit into what cache maintenance leaves, at most.

    Examples
    --------
    >>> 0 < largest_page_share(fits()) < 0.01
    True
    """
    said = seed()
    pages, blocks = (
        unmapping(PageTable(4096), said.memory, leaf, WAYS["no cache maintenance"]).time_ps(_costs(found[mapping], 1))
        for mapping, (_, leaf, _) in TABLES.items()
    )
    return float((said.rest_s[2] * 1e12 - blocks) / (pages - blocks))


def _costs(fit: UnmapFit, end: int, clean_line: float = 0.0) -> Costs:
    """Costs at their value (0), least (1) or most (2), ps; the whole VM is invalidated by one broadcast."""
    unmap, invalidate = (round(1e12 * fit.interval(cost)[end]) for cost in COSTS[1:])
    unmap = round(1e12 * walk_entry()) if end == 1 else unmap
    return Costs(unmap_entry=unmap, tlb_invalidate=invalidate, flush=invalidate, clean_line=round(1e12 * clean_line))


def predictions(
    found: dict[str, UnmapFit], memories: tuple[int, ...] = (64 * GIB, 1024 * GIB), engine: bool = True
) -> pd.DataFrame:
    """Teardown by page size, mapping and way, simulated, with ranges.

    Cleaning a line costs what seed 003 says, an entry what the table of pages or that of blocks says. The range's ends
    take every cost at an end: of cleaning, the seed's; of an invalidation, the least and the most that either table
    has, as nothing says which of the two another machine or page size would be like; of taking an entry out,
    `walk_entry` and the most of either table. So it is a range of readings, no confidence interval.

    Returns: ``memory``, ``page_size``, ``mapping``, ``way``, ``estimate_s``, ``low_s``, ``high_s``.

    Parameters
    ----------
    memories : tuple of int
        Bytes.
    engine : bool
        Whether to simulate; else only the arithmetic, which agrees.
    """
    line = seed().clean_line
    rows = []
    for memory, page, (mapping, leaf), way in itertools.product(
        memories, (4096, 16384, 65536), (("pages", 1), ("blocks", 2)), WAYS
    ):
        table = list(TABLES)[leaf - 1]
        does = unmapping(PageTable(page), memory, leaf, WAYS[way])
        costs = _costs(found[table], 0, line[0])
        ends = [[does.time_ps(_costs(fit, end, line[end])) * 1e-12 for fit in found.values()] for end in (1, 2)]
        estimate = _simulated(memory, page, leaf, WAYS[way], costs) if engine else does.time_ps(costs) * 1e-12
        rows.append((format_size(memory), format_size(page), mapping, way, estimate, min(ends[0]), max(ends[1])))
    return pd.DataFrame(
        rows, columns=["memory", "page_size", "mapping", "way", "estimate_s", "low_s", "high_s"]
    )  # fmt: skip


def stalls(found: dict[str, UnmapFit], vcpus: int = 16, gib: int = 4) -> pd.DataFrame:
    """What a guest that runs waits for while all its memory is unmapped, simulated.

    Its vCPUs touch any page every 50 µs; their faults cost what the shipped fit of Ampere Altra has.

    Returns: ``mapping``, ``unmap``, ``hold_s``: one largest block, counted; ``longest_stall_s`` and
    ``unmapped_after_s``: simulated.
    """
    ways = {
        "no FEAT_S2FWB: cache and TLB for each entry": Policy(teardown_cache="entry", teardown_tlb="entry"),
        "FEAT_S2FWB: TLB for each entry": Policy(teardown_tlb="entry"),
        "FEAT_S2FWB and FEAT_TLBIRANGE": Policy(teardown_tlb="range"),
    }
    rows = []
    for (mapping, (_, leaf, _)), (name, way) in itertools.product(TABLES.items(), ways.items()):
        costs = _costs(found[mapping], 0, seed().clean_line[0])
        case = teardown_scenario(
            gib * GIB, 4096, leaf, way, guest_runs=True, warm_up="10ms", access="uniform", shared=True,
            access_interval="50us",
        ).changed({"machine": {"name": "ampere-altra"}, "guest": {"vcpus": vcpus}})  # fmt: skip
        case = replace(case.with_costs(**costs.given()), group="fixed test")
        estimate = find_fit(case)
        run = run_scenario(case if estimate is None else estimate.estimate.apply(case))
        table = PageTable(4096)
        hold = unmapping(table, table.largest_block * table.page_bytes, leaf, way).time_ps(costs) * 1e-12
        rows.append((mapping, name, hold, run.metrics["longest_stall"], run.metrics["teardown_time"]))
    return pd.DataFrame(rows, columns=["mapping", "unmap", "hold_s", "longest_stall_s", "unmapped_after_s"])


def _simulated(memory: int, page: int, leaf: int, way: Policy, costs: Costs) -> float:
    scenario = teardown_scenario(memory, page, leaf, way)
    return float(run_scenario(scenario.with_costs(**costs.given())).metrics["teardown_time"])


def teardown_scenario(memory: int, page: int, leaf: int, way: Policy, **workload: object) -> Scenario:
    """A VM of so much memory (bytes), whose stage 2 maps it at that level, torn down in one of the `WAYS`.

    Examples
    --------
    >>> teardown_scenario(64 * GIB, 4096, 2, WAYS["no cache maintenance"])
    <Scenario teardown on unnamed: 1 vCPUs, 64G, arm64, 0 costs given>
    """
    return Scenario.parse(
        {"guest": {"vcpus": 1, "memory": memory, "page_size": page, "backing": "thp" if leaf == 2 else "4k"},
         "policy": {"architecture": "arm64", "teardown_cache": way.teardown_cache, "teardown_tlb": way.teardown_tlb},
         "workload": {"kind": "teardown"} | workload}
    )  # fmt: skip
