# SPDX-License-Identifier: BSD-3-Clause
"""One page on a measured host: what was measured, what follows from it, and what was held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from simlib import figures
from simlib._lib.errors import InputError
from simlib._lib.version import __version__
from simlib.analysis.predict import LEVEL
from simlib.figures.host import chunk_name, clear_under_load
from simlib.lab.host.held_out import CLEAR_BAR, STALL_BAR, interrupted_shares, judged
from simlib.lab.host.measure import NAME
from simlib.lab.host.measured import HostData, is_quiet, load_host
from simlib.lab.host.noise import FOREIGN_PERCENT, FREQUENCY_PERCENT, STEAL_PERCENT
from simlib.measurements.fits import Fit, load_fit
from simlib.model.quantities import format_size, say_seconds
from simlib.ui.report.block import Block, Chart, Note, Table
from simlib.ui.report.page import Report, Section

MEANING = {
    "guest_access": "an access of the guest that needs no fault",
    "fault_unlocked": "exit: a fault outside the lock",
    "fault_hold": "a fault under the lock",
    "line_transfer": "a cache line from one CPU to another",
    "populate_block": "what the host spends on a page at first touch",
    "clear_page": "CLEAR, for each page",
    "clear_ioctl": "a CLEAR ioctl, outside of the lock",
    "enable_page": "enabling the log, for each page",
    "flush": "a TLB flush while no vCPU is in the guest",
    "interrupt": "what it takes longer if one is",
    "kick": "what that costs the vCPU",
}
"""Costs in words."""

_WORDS = {
    "clear_dirty_log_time": "CLEAR of all memory",
    "longest_stall": "longest stall",
    "dirty_memory_time": "writing all memory, page by page",
}
_OVER = (("CLEAR", "chunk_pages", "load"), ("hold", "batch", "batches"))
"""What the pages are of in which the cells of a study differ, their column, and the study."""


def host_report(folder: str | Path, fit: Fit | None = None, name: str = NAME) -> Report:
    """The page on a host.

    Raises `InputError` if a table is missing or damaged, or there is no fit.

    - `folder`: what `simlib host measure` wrote.
    - `fit`: by default the folder's own ``fit.json``.
    - `name`: first part of the tables' names.
    """
    data = load_host(folder, name)
    path = Path(folder) / "fit.json"
    if fit is None:
        if not path.is_file():
            raise InputError("fit", str(path), "is not there", f"calibrate first: simlib host calibrate {folder}")
        fit = load_fit(path)
    sections = [
        Section("What was held out", [*_held_out(judged(fit)), *_missing(fit, data)]),
        Section("Costs of this host", _costs(fit)),
        Section("What was measured", _measured(data)),
    ]
    facts = data.facts
    known = {
        "CPU": f"{facts['cpu']}, {len(facts['cpus'])} CPUs",
        "sockets": facts["sockets"],
        "kernel": f"Linux {facts['kernel']}{', patched' if facts['patched'] else ''}",
        "page tables": facts["page_tables"],
        "simlib": __version__,
        "calibrated": fit.meta["date"],
        "seed": fit.meta["seed"],
    }
    title = "A host: measured, calibrated, predicted"
    return Report(title, "KVM's dirty log on this machine, and how well the model knows it", sections, known)


def held_out_finding(seen: pd.DataFrame) -> str:
    """How many held-out cells are within what is asked, as a list, a line a metric.

    - `seen`: as of `simlib.lab.host.held_out.judged`.
    """
    lines = []
    for metric, rows in seen.groupby("metric", sort=False):
        error = np.abs(np.log(rows["ratio"]))
        lines.append(
            f"- {_WORDS[str(metric)]}: {int(rows['within'].sum())} of {len(rows)} cells within {rows['bar'].iloc[0]}; "
            f"median factor {np.exp(error.median()):.2f}, largest {np.exp(error.max()):.2f}"
        )
    return "\n".join(lines)


def host_answer(fit: Fit) -> str:
    """In one sentence: how well costs of one vCPU predict what was held out, and what is missed."""
    seen = judged(fit)
    if not len(seen):
        return "Nothing that could be predicted was measured in quiet, so the costs are not checked."
    missed = seen[~seen["within"]]
    cells = []
    for row in missed.to_dict("records"):
        told = f"{_WORDS[row['metric']]} with {row['vcpus']} vCPU{'s' if row['vcpus'] > 1 else ''}"
        for what, column, study in _OVER:
            if row["study"] == study:
                told += f" and {chunk_name(int(row[column]))} pages a {what}"
        cells.append(f"{told} (predicted over measured {row['ratio']:.2f})")
    return (
        f"From costs of one vCPU, {len(seen) - len(missed)} of {len(seen)} held-out cells are predicted as asked: "
        f"times to ±{CLEAR_BAR:.0%}, longest stalls to a factor of {STALL_BAR:g}."
        f"{' Missed: ' * bool(cells)}{', '.join(dict.fromkeys(cells))}{'.' * bool(cells)}"
    )


def _held_out(seen: pd.DataFrame) -> list[Block | str]:
    if not len(seen):
        return ["Nothing that could be predicted was measured in quiet."]
    blocks: list[Block | str] = [
        "The costs below come from one vCPU that is parked or only reads. Everything here was measured, too, but not "
        "calibrated to: CLEAR while vCPUs write, and faults of several vCPUs.\n\n" + held_out_finding(seen)
    ]
    said = "Held-out cells: filled circles were measured, diamonds predicted."
    for _, column, study in _OVER:
        if len(clears := seen[seen["study"] == study]):
            blocks.append(Chart(clear_under_load(clears, column), said))
    said = f"Medians, with the {LEVEL:.0%} interval of the median, and of the replications."
    return [*blocks, Table(held_out_table(seen), said)]


def held_out_table(seen: pd.DataFrame) -> pd.DataFrame:
    """Held-out cells for people to read: measured, predicted, and whether that is within what is asked."""
    return pd.DataFrame(
        {
            "what": seen["metric"].map(_WORDS),
            "vCPUs": seen["vcpus"].astype(int),
            **{
                f"pages of a {what}": seen[column].astype(int).map(chunk_name).where(seen["study"] == study, "–")
                for what, column, study in _OVER
                if (seen["study"] == study).any()
            },
            "measured": _times(seen, "value"),
            "predicted": _times(seen, "model"),
            "predicted / measured": seen["ratio"].round(3),
            "asked": seen["bar"],
            "within": seen["within"],
        }
    )


def _missing(fit: Fit, data: HostData) -> list[Block | str]:
    """What the model lacks, as far as the cells of several ioctls tell."""
    shares = interrupted_shares(fit, data)
    if not len(shares):
        return []
    text = (
        "A flush interrupts a vCPU that is in the guest, or on its way out or in. Which of many ioctls finds it there "
        "depends on where in its fault it is at that moment, to a tenth of a microsecond. Where the shares differ, so "
        "do the times."
    )
    table = shares.astype({"vcpus": int, "chunk_pages": int})
    table[["counted", "predicted"]] = table[["counted", "predicted"]].map("{:.0%}".format)
    table.columns = pd.Index(["vCPUs", "pages of a CLEAR", "interrupted, counted", "interrupted, predicted"])
    return [
        text,
        Table(table, "Flushes of CLEAR under load that interrupted a vCPU: counted by KVM, and predicted."),
    ]


def _times(seen: pd.DataFrame, name: str) -> list[str]:
    ends = zip(seen[name], seen[f"{name}_low"], seen[f"{name}_high"], strict=True)
    return [f"{say_seconds(m)} ({say_seconds(a)} to {say_seconds(b)})" for m, a, b in ends]


def cost_table(fit: Fit) -> pd.DataFrame:
    """A host's costs for people to read, with their intervals."""
    costs = fit.costs()
    times = {name: [say_seconds(value * 1e-9) for value in costs[name]] for name in ("value", "low", "high")}
    table = costs[["name"]].assign(what=costs["name"].map(MEANING).fillna(""), **times)
    table["determined"] = fit.parameters["determined"].tolist()
    return table.rename(columns={"name": "cost", "low": "from", "high": "to"})


def _costs(fit: Fit) -> list[Block | str]:
    table = Table(cost_table(fit), f"Costs with {LEVEL:.0%} intervals, from resampling the repeats.")
    picture = Chart(figures.cost_intervals(fit.costs()), "The same as a picture.")
    bounded = fit.parameters[~fit.parameters["determined"].astype(bool)]["name"].tolist()
    if not bounded:
        return [table, picture]
    text = f"At the end of what is physically possible, so not determined: {', '.join(bounded)}."
    return [table, Note(text, level="warning"), picture]


def study_table(data: HostData) -> pd.DataFrame:
    """What was measured: studies, their cells, runs, and how many of these were quiet."""
    cell = ["vcpus", "memory_per_vcpu", "chunk_pages", "switches"]
    runs = data.noise.assign(quiet=is_quiet(data.noise), cell=data.noise[cell].astype(str).agg(" ".join, axis=1))
    by_study = runs.groupby("experiment", sort=False)
    table = by_study.agg(cells=("cell", "nunique"), runs=("cell", "size"), quiet=("quiet", "sum"))
    return table.rename_axis("study").reset_index()


def _measured(data: HostData) -> list[Block | str]:
    noise, facts = data.noise, data.facts
    blocks: list[Block | str] = [
        f"{len(noise)} runs in {int(noise['repeat'].max())} repeats, each repeat in an order of its own; "
        f"{int(is_quiet(noise).sum())} were quiet: at most {STEAL_PERCENT:g} % of the time taken by a hypervisor, "
        f"{FOREIGN_PERCENT:g} % by other programs, {FREQUENCY_PERCENT:g} % change of the clock. Only those are used. "
        f"Memory of the host: {format_size(int(facts['memory_bytes']) // 2**20 * 2**20)}; frequency policy: "
        f"{facts['governor']}."
    ]
    emulated = float(data.pilot["emulated_instructions_per_access"])
    if emulated > 1:
        text = (
            f"This KVM emulates privileged guest code ({emulated:.0f} instructions an access), which then faults "
            "nowhere: the guest's code ran in user mode."
        )
        blocks.append(Note(text, "How the guest ran"))
    return [*blocks, Table(study_table(data), "Studies; `simlib/lab/host/design.py` says what each is for.")]
