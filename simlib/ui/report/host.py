# SPDX-License-Identifier: BSD-3-Clause
"""Page of a measured host: its measurements, its costs, and predictions of the held-out measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from simlib import figures
from simlib._lib.errors import InputError
from simlib._lib.version import __version__
from simlib.analysis.prediction_options import LEVEL
from simlib.figures.host import chunk_name, clear_under_load
from simlib.lab.host.held_out import CLEAR_TOLERANCE, STALL_TOLERANCE, compare_held_out, interrupted_shares
from simlib.lab.host.measure import NAME
from simlib.lab.host.measured import HostData, is_quiet, load_host
from simlib.lab.host.noise import FOREIGN_PERCENT, FREQUENCY_PERCENT, STEAL_PERCENT
from simlib.measurements.fits import Fit, load_fit
from simlib.model.quantities import format_size, seconds_text
from simlib.ui.report.block import Block, Chart, Note, Table
from simlib.ui.report.page import Report, Section

MEANING = {
    "guest_access": "an access of the guest without a fault",
    "fault_unlocked": "the part of a fault outside mmu_lock",
    "fault_hold": "the part of a fault that holds mmu_lock",
    "line_transfer": "transfer of a cache line from one CPU to another",
    "populate_block": "the host's work when a page is first touched",
    "clear_page": "CLEAR, per page",
    "clear_ioctl": "the part of a CLEAR ioctl outside mmu_lock",
    "enable_page": "enabling dirty logging, per page",
    "flush": "a TLB flush while no vCPU is in guest mode",
    "interrupt": "additional time of a TLB flush if a vCPU is in guest mode",
    "kick": "time that a vCPU loses when a TLB flush interrupts it",
}

_METRIC_NAMES = {
    "clear_dirty_log_time": "CLEAR of all memory",
    "longest_stall": "longest stall",
    "dirty_memory_time": "writing all memory, page by page",
}
_PAGE_COLUMNS = (("CLEAR", "chunk_pages", "load"), ("hold", "batch", "batches"))
"""Name and column of the number of pages that a study varies, and the name of the study."""


def host_report(folder: str | Path, fit: Fit | None = None, name: str = NAME) -> Report:
    """Return the page of a host; raises `InputError` if a table is missing or damaged, or there is no fit.

    - `folder`: folder that `simlib host measure` wrote.
    - `fit`: the fit. Default: the folder's ``fit.json``.
    - `name`: prefix of the tables' names.
    """
    data = load_host(folder, name)
    path = Path(folder) / "fit.json"
    if fit is None:
        if not path.is_file():
            raise InputError("fit", str(path), "does not exist", f"calibrate first: simlib host calibrate {folder}")
        fit = load_fit(path)
    sections = [
        Section("Held-out measurements", [*_held_out_blocks(compare_held_out(fit)), *_model_gaps(fit, data)]),
        Section("Costs of this host", _cost_blocks(fit)),
        Section("Measurements", _measured_blocks(data)),
    ]
    facts = data.facts
    known = {
        "CPU": f"{facts['cpu']}, CPUs: {len(facts['cpus'])}",
        "sockets": facts["sockets"],
        "kernel": f"Linux {facts['kernel']}{', patched' if facts['patched'] else ''}",
        "page tables": facts["page_tables"],
        "simlib": __version__,
        "calibrated": fit.meta["date"],
        "seed": fit.meta["seed"],
    }
    title = "A host: measured, calibrated, predicted"
    return Report(title, "KVM's dirty log on this machine, and the accuracy of the model", sections, known)


def held_out_finding(cells: pd.DataFrame) -> str:
    """Return a list with a line per metric: how many held-out cells (`compare_held_out`) are within the tolerance."""
    lines = []
    for metric, rows in cells.groupby("metric", sort=False):
        error = np.abs(np.log(rows["ratio"]))
        lines.append(
            f"- {_METRIC_NAMES[str(metric)]}: {int(rows['within'].sum())} of {len(rows)} cells within "
            f"{rows['bar'].iloc[0]}; error factor: median {np.exp(error.median()):.2f}, max. {np.exp(error.max()):.2f}"
        )
    return "\n".join(lines)


def host_answer(fit: Fit) -> str:
    """Return a sentence on how well costs measured with one vCPU predict the held-out cells, with the misses."""
    cells = compare_held_out(fit)
    if not len(cells):
        return "No quiet run measured a held-out cell, so the costs have not been checked."
    missed = cells[~cells["within"]]
    misses = []
    for row in missed.to_dict("records"):
        text = f"{_METRIC_NAMES[row['metric']]} with {row['vcpus']} vCPU{'s' if row['vcpus'] > 1 else ''}"
        for what, column, study in _PAGE_COLUMNS:
            if row["study"] == study:
                text += f" and {chunk_name(int(row[column]))} pages per {what}"
        misses.append(f"{text} (predicted over measured {row['ratio']:.2f})")
    return (
        f"From costs of one vCPU, {len(cells) - len(missed)} of {len(cells)} held-out cells are predicted within "
        f"tolerance: times to ±{100 * CLEAR_TOLERANCE:.0f} %, longest stalls to a factor of {STALL_TOLERANCE:g}."
        f"{' Missed: ' * bool(misses)}{', '.join(dict.fromkeys(misses))}{'.' * bool(misses)}"
    )


def _held_out_blocks(cells: pd.DataFrame) -> list[Block | str]:
    if not len(cells):
        return ["No quiet run measured a held-out cell."]
    blocks: list[Block | str] = [
        "The costs below were estimated from runs with one vCPU that is parked or only reads. The cells of this "
        "section were held out: CLEAR while vCPUs write, and faults of several vCPUs.\n\n" + held_out_finding(cells)
    ]
    caption = "Held-out cells. Filled circles: measured; diamonds: predicted."
    for _, column, study in _PAGE_COLUMNS:
        if len(clears := cells[cells["study"] == study]):
            blocks.append(Chart(clear_under_load(clears, column), caption))
    caption = f"Medians, with {100 * LEVEL:g} % intervals of the median (measured) or of the replications (predicted)."
    return [*blocks, Table(held_out_table(cells), caption)]


def held_out_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return a readable table of the held-out cells: measured, predicted, and whether they are within the tolerance."""
    table = pd.DataFrame({"what": cells["metric"].map(_METRIC_NAMES), "vCPUs": cells["vcpus"].astype(int)})
    for what, column, study in _PAGE_COLUMNS:
        if (varied := cells["study"] == study).any():
            table[f"pages per {what}"] = cells[column].astype(int).map(chunk_name).where(varied, "–")
    table["measured"] = _times_with_intervals(cells, "value")
    table["predicted"] = _times_with_intervals(cells, "model")
    table["predicted / measured"] = cells["ratio"].round(3)
    return table.assign(tolerance=cells["bar"], within=cells["within"])


def _model_gaps(fit: Fit, data: HostData) -> list[Block | str]:
    """Compare the counted and predicted shares of flushes that interrupt a vCPU, to explain the model's errors."""
    shares = interrupted_shares(fit, data)
    if not len(shares):
        return []
    text = (
        "A flush interrupts a vCPU that is in guest mode, or is entering or leaving it. A fault "
        "that occurs a tenth of a microsecond earlier or later may change whether the flush interrupts the vCPU. Where "
        "the counted share differs from the predicted share, the times differ as well."
    )
    table = shares.astype({"vcpus": int, "chunk_pages": int})
    table[["counted", "predicted"]] = table[["counted", "predicted"]].map(lambda share: f"{100 * share:.0f} %")
    table.columns = pd.Index(["vCPUs", "pages per CLEAR", "interrupted, counted", "interrupted, predicted"])
    return [text, Table(table, "Share of CLEAR's flushes under load that interrupt a vCPU: counted, and predicted.")]


def _times_with_intervals(cells: pd.DataFrame, name: str) -> list[str]:
    ends = zip(cells[name], cells[f"{name}_low"], cells[f"{name}_high"], strict=True)
    return [f"{seconds_text(m)} ({seconds_text(a)} to {seconds_text(b)})" for m, a, b in ends]


def cost_table(fit: Fit) -> pd.DataFrame:
    """Return a readable table of a host's costs, with their intervals."""
    costs = fit.costs()
    times = {name: [seconds_text(value * 1e-9) for value in costs[name]] for name in ("value", "low", "high")}
    table = costs[["name"]].assign(what=costs["name"].map(MEANING).fillna(""), **times)
    table["determined"] = fit.parameters["determined"].tolist()
    return table.rename(columns={"name": "cost", "low": "from", "high": "to"})


def _cost_blocks(fit: Fit) -> list[Block | str]:
    table = Table(cost_table(fit), f"Costs with {100 * LEVEL:g} % intervals, from resampling the repeats.")
    picture = Chart(figures.cost_intervals(fit.costs()), "The costs and their intervals.")
    bounded = fit.parameters[~fit.parameters["determined"].astype(bool)]["name"].tolist()
    if not bounded:
        return [table, picture]
    text = f"Costs at a physical bound, which the data therefore do not identify: {', '.join(bounded)}."
    return [table, Note(text, level="warning"), picture]


def study_table(data: HostData) -> pd.DataFrame:
    """Return a table of the studies: their cells, runs and quiet runs."""
    cell = ["vcpus", "memory_per_vcpu", "chunk_pages", "switches"]
    runs = data.noise.assign(quiet=is_quiet(data.noise), cell=data.noise[cell].astype(str).agg(" ".join, axis=1))
    by_study = runs.groupby("experiment", sort=False)
    table = by_study.agg(cells=("cell", "nunique"), runs=("cell", "size"), quiet=("quiet", "sum"))
    return table.rename_axis("study").reset_index()


def _measured_blocks(data: HostData) -> list[Block | str]:
    noise, facts = data.noise, data.facts
    blocks: list[Block | str] = [
        f"Repeats: {int(noise['repeat'].max())}, each in a different random order. Runs: {len(noise)}, of which "
        f"{int(is_quiet(noise).sum())} are quiet and are used. In a quiet run, a hypervisor takes at most "
        f"{STEAL_PERCENT:g} % of the time and other programs {FOREIGN_PERCENT:g} %, and the CPU frequency changes by "
        f"at most {FREQUENCY_PERCENT:g} %. Memory of the host: "
        f"{format_size(int(facts['memory_bytes']) // 2**20 * 2**20)}; cpufreq governor: {facts['governor']}."
    ]
    emulated = float(data.pilot["emulated_instructions_per_access"])
    if emulated > 1:
        text = (
            f"This KVM emulates privileged guest code ({emulated:.0f} instructions per access), and such "
            "accesses do not fault. The guest's code therefore ran in user mode."
        )
        blocks.append(Note(text, "Guest in user mode"))
    return [*blocks, Table(study_table(data), "Studies; `simlib/lab/host/design.py` describes each.")]
