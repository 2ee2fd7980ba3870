# SPDX-License-Identifier: BSD-3-Clause
"""Seed 003: tearing a VM down on arm64, beside the published times of unmapping, and for other sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from simlib import figures
from simlib.calibration import teardown
from simlib.calibration.teardown import TABLES, TRAIN_GB, UnmapFit
from simlib.figures.frame import in_order
from simlib.figures.teardown import BOUND_COLUMNS
from simlib.measurements import load
from simlib.model.quantities import format_size
from simlib.prediction import LEVEL
from simlib.report.block import Chart, Note, Prose, Table, number_text
from simlib.report.page import Section


@dataclass(frozen=True)
class TeardownStudy:
    """What the sections show.

    Attributes
    ----------
    small, every : dict of str to UnmapFit
        Costs by table, of the rows that were fitted and, once these were judged, of all.
    unmap : DataFrame
        `simlib.calibration.teardown.unmap_table`, of `small`.
    costs : DataFrame
        `simlib.calibration.teardown.cost_table` of both, by ``rows``.
    across, readings, predictions, stalls : DataFrame
        Of `simlib.calibration.teardown`, with `every`.
    """

    small: dict[str, UnmapFit]
    every: dict[str, UnmapFit]
    unmap: pd.DataFrame
    costs: pd.DataFrame
    across: pd.DataFrame
    readings: pd.DataFrame
    predictions: pd.DataFrame
    stalls: pd.DataFrame

    @property
    def held_out(self) -> pd.DataFrame:
        """The published rows that no cost was fitted to."""
        return self.unmap[self.unmap["held_out"]]

    @property
    def missed(self) -> list[str]:
        """Held-out rows outside of their interval, in words."""
        return [
            f"{r['table']}, {r['variant']}, {r['memory_gb']:.0f} GB: {r['model_s']:.3g} s, published "
            f"{r['published_s']:.3g} s"
            for r in self.held_out[~self.held_out["covered"]].to_dict("records")
        ]


def study() -> TeardownStudy:
    """Calibrate, check, read seed 003, predict."""
    small, every = teardown.fits(), teardown.fits(math.inf)
    costs = [
        teardown.cost_table(found).assign(rows=rows)
        for rows, found in ((f"up to {TRAIN_GB} GB", small), ("all", every))
    ]
    return TeardownStudy(
        small,
        every,
        teardown.unmap_table(small),
        pd.concat(costs, ignore_index=True)[["table", "rows", "cost", "value_us", "low_us", "high_us"]],
        teardown.across(every),
        teardown.readings(every),
        teardown.predictions(every),
        teardown.stalls(every),
    )


def published_bounds() -> pd.DataFrame:
    """Seed 003's two bounds, as `simlib.figures.teardown_ways` draws them."""
    frame = load("arm64-teardown-64gb").frame
    ways = {"before": "both for each entry", "after": "one whole-VM invalidation"}
    rows = [(format_size(round(r["memory_gb"]) * 2**30), "4K", ways[r["variant"]], r["teardown_time_s"], r["relation"])
            for r in frame.to_dict("records")]  # fmt: skip
    return pd.DataFrame(rows, columns=list(BOUND_COLUMNS))


def span(value: float, low: float, high: float) -> str:
    """A number with its range, for a cell.

    Examples
    --------
    >>> span(12.04, 2.031, 12.6)
    '12 (2 to 13)'
    """
    return f"{number_text(value, 2)} ({number_text(low, 2)} to {number_text(high, 2)})"


def ways_side_by_side(predictions: pd.DataFrame) -> pd.DataFrame:
    """Predictions with a column a way: the estimate and its range, as text.

    Examples
    --------
    >>> row = {"memory": "64G", "page_size": "4K", "mapping": "blocks", "way": "both", "estimate_s": 12.04,
    ...        "low_s": 2.031, "high_s": 12.6}
    >>> ways_side_by_side(pd.DataFrame([row])).to_numpy().tolist()
    [['64G', '4K, blocks', '12 (2 to 13)']]
    """
    texts = [span(*ends) for ends in predictions[["estimate_s", "low_s", "high_s"]].to_numpy().tolist()]
    rows = predictions.assign(text=texts, mapped=predictions["page_size"] + ", " + predictions["mapping"])
    wide = rows.pivot_table(index=["memory", "mapped"], columns="way", values="text", aggfunc="first", sort=False)
    return wide[in_order(predictions["way"])].reset_index().rename_axis(columns=None)


def readings_side_by_side(readings: pd.DataFrame) -> pd.DataFrame:
    """Seed 003's readings with a column a mapping, as text."""
    columns = {}
    for r in readings.to_dict("records"):
        columns[f"if {r['mapping']} map it"] = [
            number_text(r["entries"]),
            span(r["mail_ns"], r["mail_low_ns"], r["mail_high_ns"]),
            number_text(r["table_ns"]),
            span(r["ratio"], r["ratio_low"], r["ratio_high"]),
            f"{number_text(r['after_least_s'], 2)} to {number_text(r['after_table_s'], 2)}",
            number_text(r["agrees"]),
        ]
    what = ["entries to take out", "what the mail leaves for an entry, ns", "what the table of that mapping has, ns",
            "the table over the mail", "all entries, without any maintenance, s", "the sources agree"]  # fmt: skip
    return pd.DataFrame({"what": what, **columns})


def sections(found: TeardownStudy) -> list[Section]:
    """The study as sections of a report."""
    return [_unmapping(found), _seed(found), _predictions(found)]


def _errors(found: TeardownStudy, table: str) -> str:
    rows = found.held_out[found.held_out["table"] == table]
    return (f"{table}: {rows['error'].abs().max():.1%} at most, {int(rows['covered'].sum())} of {len(rows)} inside "
            "their interval")  # fmt: skip


def _unmapping(found: TeardownStudy) -> Section:
    train = int((~found.unmap["held_out"]).sum())
    source = load(TABLES["4K pages"][0]).source
    parameters = len(found.small) * (len(teardown.COSTS) + 1)
    return Section(
        "Teardown: what unmapping an entry costs",
        [
            Prose(
                "arm64 unmaps a stage 2 entry by entry: clear it, broadcast a TLB invalidation and wait for it, clean "
                "the data cache of what it mapped. Two published tables give the time to unmap a VM by its size, with "
                "an invalidation for each entry (base) and for each table and GiB (series, FEAT_TLBIRANGE). That the "
                "series does so means that the host has FEAT_S2FWB, with which the kernel cleans no cache. So "
                "the difference of both is TLB invalidation, and the rest is everything else that the test timed. "
                "Their times of ADJUST_MAPPINGS are left out: vCPUs that fault and touch memory, and no unmapping."
            ),
            Chart(
                figures.unmap_times(found.unmap),
                f"Held out: {_errors(found, '4K pages')}; {_errors(found, '2M blocks')}. "
                f"Published (points) and the model (lines), each table with its own costs, calibrated on at most "
                f"{TRAIN_GB} GB. Source: {source['author']}, {source['date']}, Message-ID {source['message_id']}.",
            ),
            Table(
                found.held_out.assign(error_percent=100 * found.held_out["error"])[
                    ["table", "variant", "memory_gb", "published_s", "model_s", "low_s", "high_s", "error_percent",
                     "covered"]
                ],
                f"Held out. {_errors(found, '4K pages')}; {_errors(found, '2M blocks')}. Interval: {LEVEL:.0%}, for "
                "one more measurement, rounding included.",
                digits=3,
            ),
            Table(
                found.costs,
                f"Costs, µs, with {LEVEL:.0%} intervals, of the rows that were calibrated on and of all rows; the "
                "latter are used below.",
            ),
            Table(
                found.across,
                "What the costs of one table say of the other: time for one more GB between 64 and 128 GB, published "
                "over model. A block takes two to three times as long as a page, to take it out and to invalidate it.",
                digits=3,
            ),
            Note(
                f"{parameters} parameters (two costs, a time that does not depend on the memory and a discrepancy, for "
                f"each table) stand against {train} rows; {len(found.held_out)} rows are held out. Outside of their "
                f"interval: {'; '.join(found.missed) or 'none'}. With blocks the time for one more GB falls with the "
                "size, which a fixed cost per entry cannot do, and the interval of the small sizes did not know.",
                "How many numbers, how many costs, and what is missed",
                "warning",
            ),
            Note(
                "The tables cannot tell why. Candidates for blocks being dearer than pages: the table of blocks was "
                "made with 128 vCPUs, that of pages does not say with how many (the test's default is one), and a "
                "broadcast may be answered later by more CPUs; the test's time may have in it what the host does for "
                "each huge page, which is freed at once where pages are freed in batches. Decisive: "
                "`kvm_page_table_test` with 1 and 128 vCPUs on either backing. Candidates for blocks getting cheaper "
                "with size: a CPU that has not reached its frequency within 10 ms; work that the first GiB pays for "
                "all. Decisive: each size ten times at a fixed frequency, and the time of each "
                "step of `stage2_apply_range` in ftrace.",
                "What the data cannot decide",
            ),
        ],
    )  # fmt: skip


def _seed(found: TeardownStudy) -> Section:
    said = teardown.seed()
    pages, blocks = (found.readings.set_index("mapping").loc[name] for name in TABLES)
    line = [1e9 * value for value in said.clean_line]
    latency = load("core-to-core-latency").frame["latency_ns"].min()
    invalidate = found.every["4K pages"].interval("tlb_invalidate")[0]
    source = load("arm64-teardown-64gb").source
    return Section(
        "Teardown: seed 003, and where the sources disagree",
        [
            Prose(
                f"{source['author']}, {source['date']} (Message-ID {source['message_id']}), on a D05: terminating a VM "
                f"of {said.memory / 2**30:.0f} GiB went from several seconds, up to {said.before_s:g} s, to less than "
                f"{said.after_s:g} s; {said.share[0]:.0%} of the overhead was cache maintenance. Cleaning is paid by "
                f"the byte: {line[0]:.1f} ns for each line of 64 bytes in the longest case ({line[1]:.1f} to "
                f"{line[2]:.1f} ns, reading \"several\" as at least {teardown.SEVERAL_S:g} s), whatever maps the "
                f"memory. What remains, {said.rest_s[0]:.2f} s, is paid by the entry; and what maps the memory the "
                f"mail does not say."
            ),
            Table(
                readings_side_by_side(found.readings),
                f"Two readings of the mail. Its {said.share[0]:.0%} are taken as 98.5 to 99.5 %. The ratio's range "
                f"has, at the least, what only walking to an entry and changing it takes. What is left "
                f"without any maintenance was published as below {said.after_s:g} s.",
                headings={"what": ""},
            ),
            Prose(
                f"With pages of 4 KiB the sources disagree by a factor of {pages['ratio']:.0f}, and of "
                f"{pages['ratio_low']:.0f} at least: the invalidations alone would take "
                f"{invalidate * pages['entries']:.0f} s by the table, more than all of the mail's {said.before_s:g} s. "
                f"Nor can a machine be that much faster: {pages['mail_ns']:.0f} ns (at most "
                f"{pages['mail_high_ns']:.0f} ns) for a broadcast that is waited for is less than the least published "
                f"latency from one core to another, {latency:.0f} ns. With blocks of 2 MiB they agree: "
                f"{blocks['mail_ns'] / 1e3:.1f} µs an entry in the mail, {blocks['table_ns'] / 1e3:.1f} µs in the "
                f"table. If both hold, at most {teardown.largest_page_share(found.every):.1%} of the VM's memory was "
                "mapped by pages. The time after does not tell pages from blocks: by the table's own cost of an entry "
                f"it would be {pages['after_table_s']:.1f} s with pages, but the table's test timed more than the "
                "walk; enabling the dirty log changes as many entries of a Kunpeng 920 at "
                f"{1e9 * teardown.walk_entry():.0f} ns each, so that {pages['after_least_s']:.2f} s are possible."
            ),
            Note(
                "That blocks mapped it is an inference. Other candidates: the share of 99 % and the 12 s are of "
                "different VMs or machines (the mail speaks of four); the 99 % are a profile that does not see the "
                "invalidation, which without VHE runs at EL2; little of the 64 GB was mapped, so that the cost of a "
                "line is larger, and the entries fewer. Decisive: AnonHugePages of the VM's process and "
                "SecPageTables of the host just before it ends, and the time of `kvm_free_stage2_pgd` with each of "
                "the two kinds of maintenance switched off alone, as kernel-patches/0014 does, on a host without "
                "FEAT_S2FWB. The cost of a line has candidates, too: lines that are dirty, or held by the other "
                "socket, against a lookup that misses. Decisive: the same with memory written last by the other "
                "socket, and with memory not touched for long.",
                "What the mail leaves open",
            ),
            Note(
                "Two costs from two statements (12 s, 99 %): nothing is left over to test them with but the third, "
                "below 1 s, which is a bound. The check is the other source, and it is one of orders of magnitude.",
                "How many numbers, how many costs",
            ),
        ],
    )  # fmt: skip


def _predictions(found: TeardownStudy) -> Section:
    tera = found.predictions.query("memory == '1T' and page_size == '4K' and mapping == 'blocks'").set_index("way")
    before, after = tera.loc["both for each entry"], tera.loc["one whole-VM invalidation"]
    worst = found.stalls.iloc[0]
    return Section(
        "Teardown: 1 TiB, and pages of 16K and 64K",
        [
            Prose(
                f"Predicted, each simulated once: nobody else runs, so that nothing is random. 1 TiB mapped by blocks "
                f"of 2 MiB: up to {before['estimate_s']:.0f} s before (from {before['low_s']:.0f} s), "
                f"{after['estimate_s']:.2f} s after ({after['low_s']:.2f} to {after['high_s']:.2f}). Larger pages do "
                "not change what cleaning takes, which is paid by the byte; all that is paid by the entry falls 4 "
                "times with 16K and 16 times with 64K, and with blocks of 32 and 512 MiB nothing of it is left to see."
            ),
            Chart(
                figures.teardown_ways(found.predictions, published_bounds()),
                "Bars are ranges of readings, not confidence intervals: cleaning a line by the mail, an invalidation "
                "at the least and the most that either published table has, taking an entry out from "
                f"{1e9 * teardown.walk_entry():.0f} ns to the most of either table. Published bounds stand beside both "
                "mappings; with pages the upper one is missed.",
            ),
            Table(
                ways_side_by_side(found.predictions),
                "The same as a table: seconds, and their range. 64G as 4K blocks with both for each entry is what the "
                "cost of a line was read from, and so no prediction.",
            ),
            Prose(
                "While the guest runs, as when userspace unmaps memory that the guest uses, the lock for write is "
                "held for a largest block, 1 GiB, before it is let go if anybody waits; a vCPU that faults waits that "
                f"long: {worst['longest_stall_s']:.2f} s with pages of 4 KiB and both kinds of maintenance. Today a VM "
                "that ends has its tables freed without the lock and without either; unmapping while it runs still is "
                "so (6.12)."
            ),
            Table(
                found.stalls,
                "16 vCPUs, 4 GiB of 4K pages, simulated; `hold_s` is counted. A fault within the range really waits "
                "until all of it is unmapped (mmu_invalidate_retry), `unmapped_after_s`; the model lets it in before.",
                digits=3,
            ),
            Note(
                "Assumed: an entry costs the same in the middle of 64 GiB as of 1 TiB, and with larger pages; one "
                "whole-VM invalidation costs what one of an entry costs; all memory is mapped in one way and "
                "cacheable. The host's own page tables and the freeing of its pages are in the tables' costs as far as "
                "their test timed them, and otherwise left out; the estimates of the last way are mostly that. Costs "
                "of cleaning and of entries come from different machines. With pages of 4 KiB the two sources "
                "contradict each other, so that no number of "
                "that row is more than a sum of two costs that no machine is known to have together.",
                "What is assumed",
                "warning",
            ),
        ],
    )
