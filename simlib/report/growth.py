# SPDX-License-Identifier: BSD-3-Clause
"""x86: why a fault in the saturated lock takes longer with more vCPUs, and how far the answer is known."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib import figures
from simlib.calibration import growth, parked, x86
from simlib.figures.style import signed
from simlib.model.machine import MACHINES
from simlib.prediction import LEVEL
from simlib.report.block import Chart, Note, Prose, Table
from simlib.report.page import Section


@dataclass(frozen=True)
class GrowthStudy:
    """What the section shows.

    Attributes
    ----------
    readings : DataFrame
        `simlib.calibration.growth.reading_table`.
    curves : DataFrame
        `simlib.calibration.growth.curves`.
    paging, split_beforehand : DataFrame
        Shadow paging: its observations with the model's values, and those with everything split beforehand.
    parked : DataFrame
        `simlib.calibration.parked.parked_times`.
    beyond : DataFrame
        `simlib.calibration.growth.beyond`.
    arm64 : Difference
        `simlib.calibration.growth.arm64_growth`.
    """

    readings: pd.DataFrame
    curves: pd.DataFrame
    paging: pd.DataFrame
    split_beforehand: pd.DataFrame
    parked: pd.DataFrame
    beyond: pd.DataFrame
    arm64: growth.Difference


def study(seed: int = 1) -> GrowthStudy:
    """Read what was calibrated, and predict what was not measured."""
    paging = growth.growth_fit("shadow-paging-few")
    return GrowthStudy(
        growth.reading_table(), growth.curves(), paging.observations,
        growth.split_beforehand(paging.estimate), parked.parked_times(), growth.beyond(seed=seed),
        growth.arm64_growth(),
    )  # fmt: skip


def _percent(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    return table.assign(**{column: 100 * table[column] for column in columns})


def growth_finding(readings: pd.DataFrame) -> str:
    """Worst held-out errors of the reading that the report uses, and of the one in which nothing grows.

    Examples
    --------
    >>> growth_finding(pd.DataFrame({"reading": ["constant", "chosen"], "at_32": [-0.4, -0.076],
    ...                              "at_64": [-0.489, -0.029]}))
    'Held out, with 32 and 64 vCPUs: chosen −7.6 and −2.9 %, constant −40 and −49 %.'
    """
    worst = {
        row["reading"]: [signed(100 * row[at]) for at in ("at_32", "at_64")] for row in readings.to_dict("records")
    }
    said = [f"{name} {' and '.join(worst[name])} %" for name in (growth.CHOSEN, "constant")]
    return f"Held out, with 32 and 64 vCPUs: {', '.join(said)}."


def sections(found: GrowthStudy) -> list[Section]:
    """The study as a section of a report."""
    machine, arm64 = MACHINES[parked.MACHINE], found.arm64
    crowding = growth.growth_fit(f"{growth.CHOSEN}-all").costs().set_index("name").loc["crowding"]
    flush = parked.parked_costs().set_index("name")["value"]["flush_per_vcpu"] * 64
    paging = _percent(found.paging[["variant", "vcpus", "train", "value", "model", "error"]], "error")
    shares = ("trained", "at_32", "at_64", "tdp_at_96")
    return [
        Section(
            "x86: why a fault takes longer with more vCPUs",
            [
                Prose(
                    "On an Ampere Altra a fault in the saturated lock takes as long with 64 vCPUs as with 8; on the "
                    "published x86 hosts it takes 2.5 times as long with 64 as with 4. Each reading below changes the "
                    "machine, or lets one more cost be calibrated, and nothing else; each is calibrated on at most "
                    f"{growth.FEW_VCPUS} vCPUs of the shadow MMU and the TDP MMU's one point, and predicts the rest. "
                    f"What has a source is a mechanism: the machine has {machine.sockets} sockets (CLEAR while all "
                    "vCPUs are parked takes as long a GiB with 2 as with 32 vCPUs, and more with 64), between which a "
                    f"cache line takes {machine.remote_ratio} times as long (the median of four published Xeons); "
                    "work slows down with busy CPUs as the guest's own pass does that takes neither fault nor lock; "
                    "every fault under the lock changes one further shared cache line (kvm->stat.pages). What is "
                    "left is one empirical cost, `crowding`: what the hand-over of the lock takes longer for each "
                    f"doubling of the threads that wait. {crowding['value']:.0f} ns "
                    f"({LEVEL:.0%} interval {crowding['low']:.0f} to {crowding['high']:.0f})."
                ),
                Chart(
                    figures.saturated_fault(found.curves),
                    f"{growth_finding(found.readings)} "
                    f"Time a page, all vCPUs together; calibrated up to {growth.FEW_VCPUS} vCPUs (ept=Y), and for "
                    f"ept=N only exit and hold, up to {growth.FEWER_VCPUS}, the growth carried over.",
                ),
                Table(
                    _percent(found.readings, *shares),
                    "Every reading: costs calibrated, observations they were calibrated on, the worst error of a "
                    "training point, and the worst of the held-out ones with 32 and 64 vCPUs (100 and 5 % written).",
                    digits=3,
                    headings={
                        "trained": "trained, %",
                        "at_32": "held out, 32, %",
                        "at_64": "held out, 64, %",
                        "tdp_at_96": "TDP MMU, 96, %",
                    },
                ),
                Table(
                    paging,
                    "Shadow paging (ept=N): exit and hold calibrated on at most "
                    f"{growth.FEWER_VCPUS} vCPUs (train), all else carried over from ept=Y.",
                    digits=3,
                    headings={"value": "published, s", "model": "model, s", "error": "error, %"},
                ),
                Table(
                    _percent(found.split_beforehand, "error"),
                    "Held out altogether: shadow paging with everything split beforehand, so that each write to a "
                    "page faults once, for write. A page that is read takes what it takes with ept=Y, "
                    f"{x86.split_access_bound() / 1000:.0f} ns.",
                    digits=3,
                    headings={"value": "published, s", "model": "model, s", "error": "error, %"},
                ),
                Table(
                    found.beyond,
                    "Predicted: more vCPUs than any table has (ept=Y, split on fault, 1 GiB a vCPU; s), by every "
                    "reading that the data do not rule out, calibrated on all rows; `all` spans them.",
                ),
                Note(
                    "Which of these it is, the tables cannot tell. Clusters of cores that share a cache explain a "
                    "part of the growth from 4 to 16 vCPUs without `crowding`, but no more than half. Ruled out: "
                    "remote TLB flushes under the lock by faults that split a block. With 1 GiB pages "
                    f"there is one for each 262144 faults; at {flush / 1e6:.1f} µs with 64 vCPUs that is less than "
                    f"{flush / 262144 / 1e3 + 0.005:.2f} ns a fault. "
                    f"On arm64 the same cost comes out as {arm64.cost / 1000:.1f} ns ({arm64.low / 1000:.1f} to "
                    f"{arm64.high / 1000:.1f}), and is not needed (F-test of one cost more, p = {arm64.p:.2f}). "
                    "What would decide: the same test with vCPUs pinned, to cores that share a cache, to one socket, "
                    "to siblings; `perf c2c` for the lines that move while the lock is held; turbo switched off. "
                    "`crowding` is used wherever a queued lock of an x86 machine is handed over in this report.",
                    "What is known of it",
                ),
            ],
        ),
        _parked(found.parked),
    ]


def _parked(table: pd.DataFrame) -> Section:
    machine = MACHINES[parked.MACHINE]
    far = ", ".join(f"{parked.far_factor(vcpus):.2f} with {vcpus}" for vcpus in (64, 96, 160))
    held_out = table[table["role"] == "predicted"]
    missed = table[~table["within"]]
    each = table.assign(each=table["value"] / table["vcpus"]).set_index(["kernel", "phase", "split", "vcpus"])["each"]
    shadow = each["shadow MMU"]
    enabling, clearing = (shadow[phase, True, 2] for phase in ("enable-dirty-log", "clear-iteration-1"))
    unsplit = sorted(
        shadow[phase, False, 64] / shadow[phase, False, 32] for phase in ("enable-dirty-log", "clear-iteration-1")
    )
    return Section(
        "x86: what one thread does while the vCPUs are parked",
        [
            Prose(
                "Enabling the log and CLEAR, by the legacy (shadow) MMU and the TDP MMU, with and without splitting. "
                f"{len(parked.parked_costs()) - 1} costs stand for {len(table)} published times; {len(held_out)} of "
                f"these entered no cost. The shadow MMU's costs come from its rows with at most {parked.ONE_SOCKET} "
                "vCPUs, which are flat a GiB. With more, a part of the page tables, and of what KVM keeps beside them, "
                f"lies on the other socket, where a cache line takes {machine.remote_ratio} times as long: on the "
                f"whole that makes a factor of {far} vCPUs. Its ratio is that of four published Xeons and was not "
                "fitted. But that there are two sockets of fewer than 64 CPUs was read from the jump in these tables, "
                "and the form was chosen knowing its size: what it meets is a consistency, not a blind test. "
                "Two costs are taken to be equal, and were not "
                "fitted: a page in a CLEAR of the TDP MMU, before the change of March 2023, and in one of the shadow "
                "MMU; a page when the log is enabled, and in a CLEAR."
            ),
            Chart(
                figures.parked_times(table, parked.BAR),
                f"The model's times over the published ones. {len(table) - len(missed)} of {len(table)} within "
                f"{parked.BAR:.0%}; of those that entered no cost {int(held_out['within'].sum())} of {len(held_out)}.",
            ),
            Table(
                _percent(missed[["what", "vcpus", "value", "model", "error"]], "error"),
                f"What is missed: off by more than {parked.BAR:.0%}.",
                digits=3,
                headings={"value": "published, s", "model": "model, s", "error": "error, %"},
            ),
            Note(
                f"Enabling that splits (shadow MMU): as published, enabling splits a GiB in {1e3 * enabling:.1f} ms, "
                f"CLEAR in {1e3 * clearing:.1f} ms (2 vCPUs), and one cost of a split cannot be both. CLEAR splits in "
                "a call for each 64 pages, enabling in one for all; if what a split allocates is not kept between "
                "calls, CLEAR pays for it anew with each block. A profile of that CLEAR would decide. "
                "Unsplit blocks with 64 vCPUs: walking the reverse mappings of a GiB takes "
                f"{unsplit[0]:.1f} to {unsplit[1]:.1f} times as long as with 32; it runs through memory in order, and "
                "more of that may lie on the other socket than of the page tables. `numactl --membind` for the test "
                "would decide. "
                "Enabling without splitting (TDP MMU, 96 vCPUs): a 1 GiB page has one entry; the model's blocks are "
                "of 2 MiB, so that it visits 512. "
                "160 vCPUs before the change of 2023: longer a page than with 96 vCPUs in 2021. Kernels differ by more "
                "than a year, and hosts may; neither is stated. The same test of both kernels on one host would "
                "decide.",
                "Why, as far as one can tell",
            ),
        ],
    )
