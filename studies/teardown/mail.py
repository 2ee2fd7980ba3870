# SPDX-License-Identifier: BSD-3-Clause
"""The December 2019 mail on tearing down a VM: its statements, the tables' costs, and predictions from both.

No source says that the mail's D05 and the tables' hosts share a cost.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pandas as pd

from simlib.analysis.simulate import run_scenario
from simlib.measurements import load
from simlib.model.costs import UNUSED, Costs
from simlib.model.pagetable import LINE_BYTES, PageTable
from simlib.model.policy import Policy
from simlib.model.quantities import format_size, parse_size
from simlib.model.scenario import Scenario
from simlib.model.unmapping import unmapping
from studies.study import FITTED, HELD_OUT, comparison_rows, shipped_fit
from studies.teardown.unmap import COSTS, GIB, TABLES, UnmapFit

BOUNDS, SHARE, WRITE_PROTECT = "arm64-teardown-64gb", "arm64-teardown-cost-share", "arm64-enable-dirty-log-chunks"
"""Published tables: the mail's two bounds, its share of cleaning the cache, and times of write-protecting."""

WAYS = {
    "both for each entry": Policy(teardown_cache="entry", teardown_tlb="entry"),
    "no cache maintenance": Policy(teardown_cache="elided", teardown_tlb="entry"),
    "no TLB invalidation": Policy(teardown_cache="entry", teardown_tlb="elided"),
    "one whole-VM invalidation": Policy(teardown_cache="elided", teardown_tlb="vm"),
}
"""Ways of teardown: the old one, each kind of maintenance elided, and both elided with one whole-VM invalidation."""

BEFORE, *_, AFTER = WAYS
"""Ways that the mail compares."""


@dataclass(frozen=True)
class Statements:
    """Statements of the December 2019 mail as numbers.

    - `memory`: memory of the VM, bytes.
    - `before_s`, `after_s`: longest reported time before the series, and upper bound after it.
    - `share`: share of cache maintenance in the time before: as stated, and the ends of the range that rounds to it.
    """

    memory: int
    before_s: float
    after_s: float
    share: tuple[float, float, float]

    @property
    def lines(self) -> int:
        """Number of data cache lines of the VM's memory."""
        return self.memory // LINE_BYTES

    @property
    def other_s(self) -> tuple[float, float, float]:
        """Time before the series without cache maintenance: stated, lowest, highest."""
        stated, most, least = ((1 - share) * self.before_s for share in self.share)
        return stated, least, most

    @property
    def clean_line(self) -> tuple[float, float, float]:
        """Time to clean one line, s: from the longest reported time, with its range.

        The range is from 2 s, an interpretation of the mail's "several seconds", to the upper end by rounding.
        """
        times = (self.before_s, 2.0, self.before_s + 0.5)
        value, low, high = (time * share / self.lines for time, share in zip(times, self.share, strict=True))
        return value, low, high


def statements() -> Statements:
    """Return the December 2019 mail's three statements."""
    bounds = load(BOUNDS).frame
    times, memory = bounds.set_index("variant")["teardown_time_s"].to_dict(), bounds["memory_gb"].iloc[0]
    percent = float(load(SHARE).frame["share_percent"].iloc[0])
    share = (percent / 100, (percent - 0.5) / 100, (percent + 0.5) / 100)
    return Statements(round(memory) * GIB, float(times["before"]), float(times["after"]), share)


def least_unmap_entry() -> float:
    """Lower bound of the time to remove an entry, s: the time to write-protect one on a Kunpeng 920.

    That walk also changes each entry, but frees nothing. The tables' cost of an entry is an upper bound, because their
    test timed more, such as freeing the host's pages.
    """
    table = load(WRITE_PROTECT)
    times = table.rows("page_size == '4K'").set_index("variant")["enable_time_ms"].to_dict()
    mapped = parse_size(str(table.descriptor["setup"]["memory_pressure"]))
    return 1e-3 * float(times["before"] - times["after"]) / (mapped // 4096)


def hypotheses(fits: dict[str, UnmapFit]) -> pd.DataFrame:
    """Compare the December 2019 mail, interpreted with each mapping, with the tables' costs for the same work.

    Returns: ``mapping``; ``entries``; ``mail_ns``, with ``mail_low_ns`` and ``mail_high_ns``: time per entry that the
    mail implies; ``table_ns``: time per entry from the table of that mapping; ``ratio`` of the two, with ``ratio_low``
    and ``ratio_high``: its extremes, the lower one with `least_unmap_entry` for removing an entry; ``after_least_s``,
    ``after_table_s``: time without either maintenance, which is below 1 s in the mail; ``agrees``.
    """
    stated, rows = statements(), []
    other, low, high = stated.other_s
    for mapping, table in TABLES.items():
        entries = unmapping(PageTable(4096), stated.memory, table.leaf, WAYS["no cache maintenance"]).entries
        unmap, invalidate = (fits[mapping].interval(cost) for cost in COSTS[1:])
        value, least, most = (
            entries * (removal + invalidate[i]) for i, removal in enumerate((unmap[0], least_unmap_entry(), unmap[2]))
        )
        per_entry = [1e9 * time / entries for time in (other, low, high, value)]
        ratios, after = (value / other, least / high, most / low), entries * least_unmap_entry()
        agrees = least <= high and most >= low and after < stated.after_s
        rows.append((mapping, entries, *per_entry, *ratios, after, entries * unmap[0], agrees))
    columns = ["mapping", "entries", "mail_ns", "mail_low_ns", "mail_high_ns", "table_ns", "ratio", "ratio_low",
               "ratio_high", "after_least_s", "after_table_s", "agrees"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def largest_page_share(fits: dict[str, UnmapFit]) -> float:
    """Largest share of the mail's memory that 4 KiB pages can map, if invalidations have the tables' costs.

    The rest is mapped with 2 MiB blocks, and all entries must fit into the longest time without cache maintenance.
    """
    stated, way = statements(), WAYS["no cache maintenance"]
    work = {mapping: unmapping(PageTable(4096), stated.memory, table.leaf, way) for mapping, table in TABLES.items()}
    pages, blocks = (work[mapping].time_ps(_costs(fits[mapping], 1)) for mapping in TABLES)
    return float((stated.other_s[2] * 1e12 - blocks) / (pages - blocks))


def _costs(fit: UnmapFit, end: int, clean_line: float = 0.0) -> Costs:
    """Costs in ps at the estimate (`end` 0), lower (1) or upper end (2); one broadcast invalidates the whole VM."""
    unmap, invalidate = (round(1e12 * fit.interval(cost)[end]) for cost in COSTS[1:])
    unmap = round(1e12 * least_unmap_entry()) if end == 1 else unmap
    return Costs(unmap_entry=unmap, tlb_invalidate=invalidate, flush=invalidate, clean_line=round(1e12 * clean_line))


def predictions(
    fits: dict[str, UnmapFit], memories: tuple[int, ...] = (64 * GIB, 1024 * GIB), engine: bool = True
) -> pd.DataFrame:
    """Simulate teardown by page size, mapping and way, with ranges.

    The cost of cleaning a line is from the mail, the cost of an entry from the table of pages or blocks. At an end of
    the range, all costs are at an end: cleaning at the mail's; an invalidation at the lowest or highest value of
    either table, because no source says which table another host or page size would resemble; removing an entry at
    `least_unmap_entry` or the highest value of either table. The range spans interpretations and is not a confidence
    interval.

    Returns: ``memory``, ``page_size``, ``mapping``, ``way``, ``estimate_s``, ``low_s``, ``high_s``.

    - `engine`: simulate the estimate; if False, compute it in closed form, with the same result.
    """
    line = statements().clean_line
    rows = []
    for memory, page, (mapping, leaf), way in itertools.product(
        memories, (4096, 16384, 65536), (("pages", 1), ("blocks", 2)), WAYS
    ):
        work = unmapping(PageTable(page), memory, leaf, WAYS[way])
        costs = _costs(fits[list(TABLES)[leaf - 1]], 0, line[0])
        low, high = ([work.time_ps(_costs(fit, end, line[end])) * 1e-12 for fit in fits.values()] for end in (1, 2))
        estimate = work.time_ps(costs) * 1e-12
        if engine:
            costs_used = dict.fromkeys(UNUSED, 0) | costs.given()  # no other cost
            case = teardown_scenario(memory, page, leaf, WAYS[way]).with_costs(**costs_used)
            estimate = float(run_scenario(case).metrics["teardown_time"])
        rows.append((format_size(memory), format_size(page), mapping, way, estimate, min(low), max(high)))
    return pd.DataFrame(rows, columns=["memory", "page_size", "mapping", "way", "estimate_s", "low_s", "high_s"])


def bound_numbers(predictions: pd.DataFrame) -> pd.DataFrame:
    """The mail's two bounds with the predictions, assuming block mappings.

    The cost of a line was fitted to the first bound. The additional columns (memory, page_size, way) are the
    position of the bound in `studies.teardown.figures.teardown_ways`.
    """
    rows = load(BOUNDS).frame
    ways = [{"before": BEFORE, "after": AFTER}[variant] for variant in rows["variant"]]
    predicted = predictions.query("memory == '64G' and page_size == '4K' and mapping == 'blocks'")
    predicted = predicted.rename(columns={"estimate_s": "predicted", "low_s": "low", "high_s": "high"})
    predicted = predicted.drop(columns="mapping").set_index("way", drop=False).loc[ways].reset_index(drop=True).assign(
        variant=rows["variant"] + rows["memory_gb"].map(", {:g} GB".format), metric="teardown time",
        published=rows["teardown_time_s"].astype(float), unit="s", relation=rows["relation"],
        role=rows["variant"].map({"before": FITTED, "after": HELD_OUT}),
    )  # fmt: skip
    return comparison_rows(predicted, BOUNDS)


def stalls(fits: dict[str, UnmapFit], vcpus: int = 16, gib: int = 4) -> pd.DataFrame:
    """Simulate the stalls of a running guest while all its memory is unmapped.

    Each vCPU accesses a random page every 50 µs; the costs of faults are those of the shipped fit of the Ampere Altra.

    Returns: ``mapping``, ``unmap``, ``hold_s``: computed time of one largest block; ``longest_stall_s`` and
    ``unmapped_after_s``: simulated.
    """
    ways = {
        "no FEAT_S2FWB: cache and TLB maintenance per entry": Policy(teardown_cache="entry", teardown_tlb="entry"),
        "FEAT_S2FWB: TLB invalidation per entry": Policy(teardown_tlb="entry"),
        "FEAT_S2FWB and FEAT_TLBIRANGE": Policy(teardown_tlb="range"),
    }
    rows = []
    for (mapping, table), (name, way) in itertools.product(TABLES.items(), ways.items()):
        costs = _costs(fits[mapping], 0, statements().clean_line[0])
        case = teardown_scenario(
            gib * GIB, 4096, table.leaf, way, guest_runs=True, warm_up="10ms", access="uniform", shared=True,
            access_interval="50us",
        ).changed({"host": {"name": "ampere-altra"}, "guest": {"vcpus": vcpus}})  # fmt: skip
        case = replace(case.with_costs(**costs.given()), cost_group="fixed test")
        run = run_scenario(shipped_fit(case).estimate.apply(case))
        pages = PageTable(4096)
        hold = unmapping(pages, pages.largest_block * pages.page_bytes, table.leaf, way).time_ps(costs) * 1e-12
        rows.append((mapping, name, hold, run.metrics["longest_stall"], run.metrics["teardown_time"]))
    return pd.DataFrame(rows, columns=["mapping", "unmap", "hold_s", "longest_stall_s", "unmapped_after_s"])


def teardown_scenario(memory: int, page: int, leaf: int, way: Policy, **workload: object) -> Scenario:
    """Scenario of the teardown of a VM with `memory` bytes, mapped at level `leaf` of stage 2, in one of the `WAYS`."""
    return Scenario.parse(
        {"guest": {"vcpus": 1, "memory": memory, "page_size": page, "backing": "thp" if leaf == 2 else "4k"},
         "policy": {"architecture": "arm64", "teardown_cache": way.teardown_cache, "teardown_tlb": way.teardown_tlb},
         "workload": {"kind": "teardown"} | workload}
    )  # fmt: skip
