# SPDX-License-Identifier: BSD-3-Clause
"""The December 2019 mail on tearing a VM down, read beside the tables' costs, and what both predict.

Its D05 shares no cost with the tables' hosts by anything that the sources say.
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
from studies.study import FITTED, HELD_OUT, numbers, shipped_fit
from studies.teardown.unmap import COSTS, GIB, TABLES, UnmapFit

BOUNDS = "arm64-teardown-64gb"
"""The published table of the mail's two bounds."""

WAYS = {
    "both for each entry": Policy(teardown_cache="entry", teardown_tlb="entry"),
    "no cache maintenance": Policy(teardown_cache="elided", teardown_tlb="entry"),
    "no TLB invalidation": Policy(teardown_cache="entry", teardown_tlb="elided"),
    "one whole-VM invalidation": Policy(teardown_cache="elided", teardown_tlb="vm"),
}
"""As it was, each kind of maintenance elided in turn, and both, with one invalidation of the whole VM."""

BEFORE, *_, AFTER = WAYS
"""The two ways that the mail compares."""

SEVERAL_S = 2.0
"""The mail says "several seconds"; we read it as at least two, to have a lower end. 12 s is the most that was seen."""


@dataclass(frozen=True)
class Statements:
    """What the December 2019 mail says, as numbers.

    - `memory`: bytes of the VM.
    - `before_s`, `after_s`: the longest time seen before, and an upper limit after.
    - `share`: of the time before that is cache maintenance: as stated, and the ends that round to it.
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
        stated, most, least = ((1 - share) * self.before_s for share in self.share)
        return stated, least, most

    @property
    def clean_line(self) -> tuple[float, float, float]:
        """Time to clean one line, s: of the longest time seen, and the ends of its range (`SEVERAL_S`, rounding)."""
        times = (self.before_s, SEVERAL_S, self.before_s + 0.5)
        value, low, high = (time * share / self.lines for time, share in zip(times, self.share, strict=True))
        return value, low, high


def statements() -> Statements:
    """The December 2019 mail's three statements."""
    bounds = load(BOUNDS).frame
    times, memory = bounds.set_index("variant")["teardown_time_s"].to_dict(), bounds["memory_gb"].iloc[0]
    percent = float(load("arm64-teardown-cost-share").frame["share_percent"].iloc[0])
    share = (percent / 100, (percent - 0.5) / 100, (percent + 0.5) / 100)
    return Statements(round(memory) * GIB, float(times["before"]), float(times["after"]), share)


def walk_entry() -> float:
    """Least that taking an entry out is known to take, s: what write-protecting one takes a Kunpeng 920.

    That walk changes each entry too, and gives nothing back. The tables' own cost of an entry is an upper bound of what
    KVM does: their test timed more, such as freeing the host's pages.
    """
    table = load("arm64-enable-dirty-log-chunks")
    times = table.rows("page_size == '4K'").set_index("variant")["enable_time_ms"].to_dict()
    mapped = parse_size(str(table.descriptor["setup"]["memory_pressure"]))
    return 1e-3 * float(times["before"] - times["after"]) / (mapped // 4096)


def readings(found: dict[str, UnmapFit]) -> pd.DataFrame:
    """The December 2019 mail read with either mapping, beside what the costs of the tables make of the same work.

    Returns: ``mapping``; ``entries``; ``mail_ns``, with ``mail_low_ns`` and ``mail_high_ns``: what the mail leaves for
    each entry; ``table_ns``: what the table of that mapping has for it; ``ratio`` of the two, with ``ratio_low`` and
    ``ratio_high``: the least and the most that is possible, at the least with `walk_entry` for taking it out;
    ``after_least_s``, ``after_table_s``: what is left without either maintenance, for which the mail has less than 1 s;
    ``agrees``.
    """
    said, rows = statements(), []
    rest, low, high = said.rest_s
    for mapping, table in TABLES.items():
        entries = unmapping(PageTable(4096), said.memory, table.leaf, WAYS["no cache maintenance"]).entries
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
    """Largest share of the mail's memory that pages of 4 KiB can map, if invalidations cost what the tables have.

    The rest is then mapped by blocks of 2 MiB, and all of it must fit into what cache maintenance leaves, at most.
    """
    said, way = statements(), WAYS["no cache maintenance"]
    does = {mapping: unmapping(PageTable(4096), said.memory, table.leaf, way) for mapping, table in TABLES.items()}
    pages, blocks = (does[mapping].time_ps(_costs(found[mapping], 1)) for mapping in TABLES)
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

    Cleaning a line costs what the mail says, an entry what the table of pages or that of blocks says. The range's ends
    take every cost at an end: of cleaning, the mail's; of an invalidation, the least and the most that either table
    has, as nothing says which of the two another machine or page size would be like; of taking an entry out,
    `walk_entry` and the most of either table. So it is a range of readings, no confidence interval.

    Returns: ``memory``, ``page_size``, ``mapping``, ``way``, ``estimate_s``, ``low_s``, ``high_s``.
    With `engine` the estimate is simulated; else it is the arithmetic, which agrees.
    """
    line = statements().clean_line
    rows = []
    for memory, page, (mapping, leaf), way in itertools.product(
        memories, (4096, 16384, 65536), (("pages", 1), ("blocks", 2)), WAYS
    ):
        does = unmapping(PageTable(page), memory, leaf, WAYS[way])
        costs = _costs(found[list(TABLES)[leaf - 1]], 0, line[0])
        low, high = ([does.time_ps(_costs(fit, end, line[end])) * 1e-12 for fit in found.values()] for end in (1, 2))
        estimate = does.time_ps(costs) * 1e-12
        if engine:
            counted = dict.fromkeys(UNUSED, 0) | costs.given()  # what is counted, and nothing else
            case = teardown_scenario(memory, page, leaf, WAYS[way]).with_costs(**counted)
            estimate = float(run_scenario(case).metrics["teardown_time"])
        rows.append((format_size(memory), format_size(page), mapping, way, estimate, min(low), max(high)))
    return pd.DataFrame(rows, columns=["memory", "page_size", "mapping", "way", "estimate_s", "low_s", "high_s"])


def bound_numbers(predictions: pd.DataFrame) -> pd.DataFrame:
    """The mail's two bounds beside the predictions, by the reading that blocks map the memory.

    The cost of a line was read from the first of them. What else stands in a row (memory, page_size, way) is where
    `studies.teardown.figures.teardown_ways` draws it.
    """
    rows = load(BOUNDS).frame
    way = rows["variant"].map({"before": BEFORE, "after": AFTER})
    mine = predictions.query("memory == '64G' and page_size == '4K' and mapping == 'blocks'").drop(columns="mapping")
    mine = mine.rename(columns={"estimate_s": "predicted", "low_s": "low", "high_s": "high"})
    mine = mine.set_index("way", drop=False).loc[way.tolist()].reset_index(drop=True).assign(
        variant=rows["variant"] + rows["memory_gb"].map(", {:g} GB".format), metric="teardown time",
        published=rows["teardown_time_s"].astype(float), unit="s", relation=rows["relation"],
        role=rows["variant"].map({"before": FITTED, "after": HELD_OUT}),
    )  # fmt: skip
    return numbers(mine, BOUNDS)


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
    for (mapping, table), (name, way) in itertools.product(TABLES.items(), ways.items()):
        costs = _costs(found[mapping], 0, statements().clean_line[0])
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
    """A VM of so much memory (bytes), whose stage 2 maps it at that level, torn down in one of the `WAYS`."""
    return Scenario.parse(
        {"guest": {"vcpus": 1, "memory": memory, "page_size": page, "backing": "thp" if leaf == 2 else "4k"},
         "policy": {"architecture": "arm64", "teardown_cache": way.teardown_cache, "teardown_tlb": way.teardown_tlb},
         "workload": {"kind": "teardown"} | workload}
    )  # fmt: skip
