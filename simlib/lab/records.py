# SPDX-License-Identifier: BSD-3-Clause
"""Raw results of the lab, one JSON file a cell, and the tidy tables made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from simlib._lib.errors import SimlibError
from simlib._lib.files import write_text, write_together
from simlib.lab.boot import BootOutcome
from simlib.lab.cache import system_faults
from simlib.lab.experiment import Cell, ExperimentRow, check_name, parameter_text
from simlib.measurements.importers import Imported, import_text
from simlib.measurements.importers.kvm_stats import ALL_TIMED
from simlib.measurements.importers.tables import Column, measured_files

_CONTENT = {
    "label", "experiment", "target", "mode", "kernel", "program", "clock", "parameters", "test", "script", "test_line",
    "command", "provenance", "digests", "guest_s", "wall_s", "outputs", "turn_instructions",
}  # fmt: skip
"""What every record holds."""

_DEFAULTS = {
    "vcpus": 1, "memory_per_vcpu": "16M", "backing": "anonymous", "access": "sequential", "write_percent": 100,
    "chunk_pages": 0, "clear_threads": 1, "rounds": 3, "flush_accesses": 0, "seed": 1,
    "ring_entries": 0,
}  # fmt: skip
"""What the test does unless its options say otherwise."""

PROGRAM_KINDS = {"mmu_lock_contention_test": "contention-test", "dirty_log_perf_test": "dirty-log-perf-test"}
"""Importer of each selftest's output."""

FAULT_SITES = ("fault_fast", "fault_slow")
"""Call sites' classes at which a fault takes the lock."""


def batch_of(switches: str) -> int:
    """Pages after which a cell's CLEAR lets go; 0: never.

    >>> batch_of("dirty_log_clear_batch=512 fast_page_fault=off"), batch_of("")
    (512, 0)
    """
    found = dict(word.split("=", 1) for word in str(switches).split())
    return int(found.get("dirty_log_clear_batch", 0))


@dataclass(frozen=True)
class Record:
    """What a cell gave, with all that is needed to run it again."""

    content: Mapping[str, Any]
    """The file's content: ``label``, ``experiment``, ``target``, ``mode``, ``kernel``, ``program``, ``clock``,
    ``turn_instructions``, ``parameters``, ``test``, ``script``, ``command``, ``provenance``, ``digests`` (one a
    repeat), ``guest_s``, ``wall_s`` and ``outputs`` (what each line of the script printed)."""

    @property
    def label(self) -> str:
        """The cell in words."""
        return str(self.content["label"])

    @property
    def repeatable(self) -> bool:
        """Whether all repeats gave the same bytes."""
        return len(set(self.content["digests"])) == 1

    @cached_property
    def imported(self) -> Imported:
        """The test's output as tables.

        Raises `SimlibError` if the output is damaged or cut off.
        """
        output = self.content["outputs"][int(self.content["test_line"])]
        return import_text(PROGRAM_KINDS[self.content["program"]], output + "\n")

    @property
    def keys(self) -> dict[str, object]:
        """What tells one cell from another, as columns that every table begins with."""
        content, host = self.content, self.content["provenance"]
        keys = cell_keys(content, content["parameters"], content["test"])
        if "cpu" not in host:
            return keys
        # Its kernel is the host's own, however the experiment calls it.
        return keys | {
            "mode": "native", "kernel": "patched" if host["patched"] else "stock", "turn_instructions": 0,
        }  # fmt: skip


def cell_keys(about: Mapping[str, Any], parameters: Mapping[str, Any], test: Mapping[str, Any]) -> dict[str, object]:
    """The columns `KEYS` of a cell of the emulated lab.

    - `about`: ``experiment`` (its name), ``target``, ``mode``, ``kernel``, ``turn_instructions``.
    - `parameters`, `test`: its switches and its options.
    """
    switches = (f"{key}={parameter_text(value)}" for key, value in parameters.items())
    protect = "get" if test.get("get_clears") else "enable" if test.get("protect_at_enable") else "initially_set"
    return {
        "experiment": about["experiment"],
        "architecture": about["target"],
        "mode": about["mode"],
        "kernel": about["kernel"],
        "turn_instructions": about["turn_instructions"],
        "switches": " ".join(switches),
        **{name: test.get(name, default) for name, default in _DEFAULTS.items()},
        "protection": "ring" if test.get("ring_entries") else protect,
        "passes": int(test.get("passes", 1 if test.get("parked") else 0)),
        "parked": str(bool(test.get("parked", False))).lower(),
    }


KEYS = (
    Column("experiment", "text", "name of the experiment in data/experiments/"),
    Column("architecture", "text", "architecture of the kernel"),
    Column("mode", "text", "how KVM translates: npt, shadow, vhe, nvhe, h; native: as this host does"),
    Column("kernel", "text", "statistics, plain or lock-stat; native: patched or stock"),
    Column("turn_instructions", "whole", "mean length of an emulated CPU's turn; 0: real CPUs"),
    Column("switches", "text", "parameters of the kvm module; empty: none was set", optional=True),
    Column("vcpus", "whole", "virtual CPUs of the guest"),
    Column("memory_per_vcpu", "text", "memory that each vCPU walks"),
    Column("backing", "text", "what backs the memory"),
    Column("access", "text", "order of the accesses"),
    Column("write_percent", "whole", "share of the accesses that write"),
    Column("protection", "text", "initially_set: the first CLEAR protects; enable: enabling does; get: GET does; ring"),
    Column("chunk_pages", "whole", "pages of one CLEAR ioctl; 0: the whole slot"),
    Column("clear_threads", "whole", "threads that clear", unit="count"),
    Column("rounds", "whole", "rounds of GET and CLEAR", unit="count"),
    Column("passes", "whole", "passes that each vCPU makes in a round; 0: as long as the rounds last"),
    Column("flush_accesses", "whole", "accesses between two flushes of the guest's TLB; 0: it does none", unit="count"),
    Column("parked", "text", "true: the vCPUs wait while the log is read and cleared; false: they keep writing"),
    Column("seed", "whole", "seed of the test"),
    Column("ring_entries", "whole", "entries of a vCPU's dirty ring; 0: there is none", unit="count"),
)
"""Columns that every table begins with; together with a table's own key they identify a row."""


def save_record(
    path: Path,
    cell: Cell,
    outcomes: Sequence[BootOutcome],
    provenance: Mapping[str, object],
    noise: Mapping[str, object] | None = None,
) -> Record:
    """Check a cell's output, then write its record, beside and renamed.

    `noise` is a row of `NOISE`, of a run on a real host.

    Raises `SimlibError` if the output is damaged: nothing is written.
    """
    spec, first = cell.experiment, outcomes[0]
    script = cell.script().splitlines()
    record = Record(
        {
            "label": cell.label,
            **spec.about,
            "parameters": dict(cell.parameters),
            "test": dict(cell.test),
            "script": script,
            "test_line": next(i for i, line in enumerate(script) if line.startswith("run ")),
            "command": first.command,
            "provenance": dict(provenance),
            "digests": [outcome.digest for outcome in outcomes],
            "guest_s": first.guest_s,
            "wall_s": first.wall_s,
            "outputs": list(first.outputs),
        }
        | ({"noise": dict(noise)} if noise else {})
        | ({"functions": [list(row) for row in first.functions]} if first.functions else {})
    )
    try:
        warnings = record.imported.warnings
    except SimlibError as error:
        raise SimlibError(f"{cell.label}: {error}") from None
    if warnings:  # of a log of one's own making, none is to be expected
        raise SimlibError(f"{cell.label}: {'; '.join(warnings)}")
    write_text(path, json.dumps(record.content) + "\n")
    return record


def split_record(record: Record, row: ExperimentRow) -> list[Record]:
    """The records of the cells that one boot ran one after the other."""
    found, line = list[Record](), 0
    for cell in row.cells:
        own = cell.script().splitlines()
        at = line + next(number for number, text in enumerate(own) if text.startswith("run "))
        about = {"label": cell.label, "parameters": dict(cell.parameters), "test": dict(cell.test), "test_line": at}
        found.append(Record({**record.content, **cell.experiment.about, **about}))
        line += len(own)
    return found


def load_record(path: Path) -> Record:
    """Read a record back.

    Raises `SimlibError` if it is damaged.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        if missing := _CONTENT - set(content):
            raise ValueError(f"without {', '.join(sorted(missing))}")
    except (ValueError, TypeError) as error:
        raise SimlibError(f"the result {path} is damaged ({error}): delete it, or run with --restart") from None
    return Record(content)


RUNS = (
    Column("digest", "text", "first 16 digits of the SHA-256 of the test's output"),
    Column("repeats", "whole", "how often the cell was run", unit="count"),
    Column("identical", "text", "whether all repeats gave the same bytes"),
    Column("guest_time_s", "number", "time that passed on the guest's clock"),
    Column("flush_requests", "whole", "remote TLB flushes asked for in the rounds", optional=True, unit="count"),
    Column("flush_interrupts", "whole", "those of them that interrupted a CPU", optional=True, unit="count"),
)


def run_rows(record: Record) -> pd.DataFrame:
    """One row: repeats and their agreement."""
    digests, identical = record.content["digests"], str(record.repeatable).lower()
    flushes = [_since_enabled(record, name) for name in ("remote_tlb_flush_requests", "remote_tlb_flush")]
    row = (digests[0][:16], len(digests), identical, round(record.content["guest_s"], 6), *flushes)
    frame = pd.DataFrame([row], columns=[column.name for column in RUNS])
    return frame.astype(dict.fromkeys(("flush_requests", "flush_interrupts"), "Int64"))


def _since_enabled(record: Record, name: str) -> int | None:
    """By how much a statistic of the VM grew since the log was enabled; None where the kernel does not have it."""
    if "others" not in record.imported.tables:
        return None
    frame = record.imported.tables["others"].frame
    seen = frame[(frame["scope"] == "vm") & (frame["name"] == name)].groupby("when")["value"].sum()
    return int(seen["end"] - seen["enabled"]) if {"end", "enabled"} <= set(seen.index) else None


LOCKS = (
    Column("phase", "text", "populate; enable; rounds: everything after the log was enabled"),
    Column("site", "text", "call site's class"),
    Column("lock_mode", "text", "read or write; a spinlock counts as write"),
    Column("acquisitions", "whole", "times that mmu_lock was taken"),
    Column("contentions", "whole", "times that it was not free at once"),
    Column("wait_time_ns", "whole", "all waits together, on the host's clock (docs/lab.md)"),
    Column("hold_time_ns", "whole", "all holds together, on the host's clock (docs/lab.md)"),
)

_PHASES = {"populated": "populate", "enabled": "enable", "end": "rounds"}
"""Phase that ends with each of the test's readings of the statistics."""


def lock_rows(record: Record) -> pd.DataFrame:
    """Lock statistics phase by phase: one row a phase, site and mode in which the lock was taken."""
    found = record.imported.tables.get("locks")
    if found is None:
        return pd.DataFrame()
    frame = found.frame[found.frame["scope"] == "vm"]
    known = frame[frame["timed"].notna() & frame["acquired"].notna()]
    timed, acquired = (int(known[what].sum()) for what in ("timed", "acquired"))
    if timed < ALL_TIMED * acquired:
        raise SimlibError(
            f"{timed} of {acquired} holds of mmu_lock were timed, and hold_time_ns must be of all: set the host's"
            " kvm.mmu_lock_stat_period to 1 and measure again"
        )
    names = {"acquired": "acquisitions", "contended": "contentions"}
    names |= {"wait_ns": "wait_time_ns", "hold_ns": "hold_time_ns"}
    parts: list[pd.DataFrame] = []
    before = None
    for when, phase in _PHASES.items():
        here = frame[frame["when"] == when].set_index(["site", "mode"])[list(names)].astype("int64")
        spent = here if before is None else here.sub(before, fill_value=0).astype("int64")
        before = here
        spent = spent[spent["acquired"] > 0].reset_index()
        spent.insert(0, "phase", phase)
        parts.append(spent)
    return pd.concat(parts, ignore_index=True).rename(columns={"mode": "lock_mode", **names})


IOCTLS = (
    Column("name", "text", "populate, write, enable, get, clear, reset, disable, teardown, probe, probe_idle"),
    Column("round", "whole", "round of GET and CLEAR, from 1; 0: before them"),
    Column("calls", "whole", "ioctls", unit="count"),
    Column("range_pages", "whole", "pages of their ranges together"),
    Column("dirty_pages", "whole", "bits that were set in the bitmaps"),
    Column("total_time_ns", "whole", "all calls together"),
    Column("longest_time_ns", "whole", "the longest call"),
)


def ioctl_rows(record: Record) -> pd.DataFrame:
    """Phases and ioctls: one row a name and round, with the number of calls and their times."""
    found = record.imported.tables.get("ioctls")
    if found is None:
        return pd.DataFrame()
    frame = found.frame.fillna({"dirty_pages": 0, "calls": 1})
    grouped = frame.groupby(["name", "round"], sort=False)
    sums = grouped[["calls", "range_pages", "dirty_pages", "duration_ns"]].sum()
    sums["longest_time_ns"] = grouped["duration_ns"].max()
    return sums.rename(columns={"duration_ns": "total_time_ns"}).reset_index()


STALLS = (
    Column("vcpu", "whole", "the vCPU, from 0", unit="1"),
    Column("writes", "whole", "writes that it made", unit="count"),
    Column("reads", "whole", "reads that it made", unit="count"),
    Column("longest_stall_ns", "whole", "longest time between two of its accesses"),
    Column(
        "longest_stall_in_clear_ns",
        "whole",
        "the longest of those, among its eight longest, that overlap a CLEAR, a clearing GET or a reset; 0: none does",
    ),
    Column("gaps", "text", "times between two accesses from the first round on: FROM-TO:COUNT, ns, by bucket", True),
)

_CLEARING = {"initially_set": "clear", "enable": "clear", "get": "get", "ring": "reset"}
"""The ioctl that write-protects, by the way of protection."""


def stall_rows(record: Record) -> pd.DataFrame:
    """What the vCPUs saw: one row a vCPU."""
    tables = record.imported.tables
    if not tables.keys() >= {"vcpus", "ioctls"}:
        return pd.DataFrame()
    frame = tables["vcpus"].frame.rename(columns={"longest_ns": "longest_stall_ns"})
    ioctls = tables["ioctls"].frame
    clears = ioctls[ioctls["name"] == _CLEARING[str(record.keys["protection"])]]
    begin, end = clears["start_ns"].to_numpy(), (clears["start_ns"] + clears["duration_ns"]).to_numpy()
    longest = dict.fromkeys(frame["vcpu"].tolist(), 0)
    gaps = tables["longest"].frame[["vcpu", "start_ns", "gap_ns"]].to_numpy().tolist() if "longest" in tables else []
    for vcpu, start, gap in gaps:
        if ((start < end) & (start + gap > begin)).any():
            longest[vcpu] = max(longest[vcpu], gap)
    frame["longest_stall_in_clear_ns"] = frame["vcpu"].map(longest)
    buckets = tables["gaps"].frame if "gaps" in tables else pd.DataFrame({"vcpu": []})
    each = {vcpu: own[["low_ns", "high_ns", "count"]].to_numpy().tolist() for vcpu, own in buckets.groupby("vcpu")}
    texts = {vcpu: " ".join(f"{low}-{high}:{count}" for low, high, count in own) for vcpu, own in each.items()}
    frame["gaps"] = frame["vcpu"].map(texts)
    return pd.DataFrame(frame[[column.name for column in STALLS]])


def read_gaps(texts: Iterable[str]) -> pd.DataFrame:
    """The histograms of several vCPUs' gaps together: from, to, count.

    - `texts`: of the column ``gaps`` of `STALLS`, all of one architecture.

    >>> read_gaps(["72-74:5 96-98:1", "72-74:3"]).values.tolist()
    [[72, 74, 8], [96, 98, 1]]
    """
    words = [word.replace("-", ":").split(":") for text in texts for word in text.split()]
    frame = pd.DataFrame(words, columns=["from", "to", "count"]).astype("int64")
    return pd.DataFrame(frame.groupby(["from", "to"], as_index=False)["count"].sum())


ROUNDS = (
    Column("vcpu", "whole", "the vCPU, from 0", unit="1"),
    Column("round", "whole", "round of GET and CLEAR, from 1"),
    Column("longest_stall_ns", "whole", "longest time between two of its accesses while the round's ioctls ran"),
    Column("longest_pause_ns", "whole", "the same between its last ioctl and the next round: what else holds it up"),
)


def round_rows(record: Record) -> pd.DataFrame:
    """What the vCPUs saw in each round, if they ran through it: one row a vCPU and round."""
    found = record.imported.tables.get("rounds")
    if found is None or record.keys["parked"] == "true":
        return pd.DataFrame()
    return found.frame[[column.name for column in ROUNDS]]


NOISE = (
    Column("repeat", "whole", "which repeat of the whole set it was, from 1", unit="count"),
    Column("place", "whole", "when in the repeat it was run, from 1", unit="count"),
    Column("wall_s", "number", "time that the run took"),
    Column("steal_percent", "number", "time that the hypervisor gave to others, of all CPUs that were used"),
    Column("foreign_percent", "number", "time that other programs ran on them"),
    Column("frequency_percent", "number", "by how much their clock changed meanwhile; empty: not known", optional=True),
    Column("quiet", "text", "true: within the limits, and used; false: noisy"),
)


def noise_rows(record: Record) -> pd.DataFrame:
    """One row: what else went on during a run on a real host."""
    found = record.content.get("noise")
    return pd.DataFrame([found]) if found else pd.DataFrame()


FUNCTIONS = (
    Column("function", "text", "function of the kernel"),
    Column("instructions", "whole", "instructions of all CPUs in it, from the boot on", unit="count"),
    Column("gave_way", "whole", "times that a CPU gave the rest of its turn away there", unit="count"),
)


def function_rows(record: Record) -> pd.DataFrame:
    """Where instructions went: one row a function, if they were counted."""
    return pd.DataFrame(record.content.get("functions", []), columns=[column.name for column in FUNCTIONS])


TABLES: dict[str, tuple[str, tuple[Column, ...], tuple[str, ...], Callable[[Record], pd.DataFrame]]] = {
    "runs": ("cells of the experiments, and whether they repeat themselves", RUNS, (), run_rows),
    "locks": ("mmu_lock by phase, call site and mode", LOCKS, ("phase", "site", "lock_mode"), lock_rows),
    "ioctls": ("phases and ioctls of the test", IOCTLS, ("name", "round"), ioctl_rows),
    "stalls": ("what the vCPUs saw", STALLS, ("vcpu",), stall_rows),
    "rounds": ("what the vCPUs saw in each round", ROUNDS, ("vcpu", "round"), round_rows),
    "noise": ("what else went on", NOISE, (), noise_rows),
    "functions": ("instructions by function of the kernel", FUNCTIONS, ("function",), function_rows),
}
"""Tables that are made of records: title, columns beside `KEYS`, own key, and the rows of one record."""


def tables(records: Sequence[Record]) -> dict[str, pd.DataFrame]:
    """The tidy tables of a matrix: ``runs``, ``locks``, ``ioctls``, ``stalls``."""
    made = {}
    for name, (_, columns, _, rows) in TABLES.items():
        parts = [(record.keys, own) for record in records if len(own := rows(record))]
        names = [column.name for column in (*KEYS, *columns)]
        if not parts:
            made[name] = pd.DataFrame(columns=names)
            continue
        keys = pd.DataFrame([keys for keys, own in parts for _ in range(len(own))])
        made[name] = pd.concat([keys, pd.concat([own for _, own in parts], ignore_index=True)], axis=1)[names]
    return made


@system_faults()
def write_tables(records: Sequence[Record], folder: Path, name: str) -> list[Path]:
    """Write the tables of a matrix with their descriptors, all of them or none.

    Returns: The CSV files. Raises `InputError` if the name is unfit, or the folder cannot be written. Raises
    `SimlibError` if there is no record, or two that the tables' key does not tell apart.

    - `name`: first part of the tables' names: ``<name>-runs`` and so on.
    """
    check_name("--name", name)
    if not records:
        raise SimlibError("no cell gave a result: nothing is written")
    first: dict[str, Record] = {}
    for record in records:
        other = first.setdefault(json.dumps(record.keys), record)
        if other is not record:
            raise SimlibError(
                f"the tables cannot tell '{other.label}' from '{record.label}', so nothing is written: make each an "
                "experiment of its own"
            )
    frames, texts = tables(records), dict[str, str]()
    ran = records[0].content["provenance"]
    native = "cpu" in ran
    caveats = [] if native else ["Emulated: no caches, no line transfers, no IPI cost."]
    if native and any(emulated_per_access(record) > 1 for record in records):
        caveats = ["This KVM emulated the guest's instructions one by one: take times of GET and CLEAR only."]
    about = {
        "source": {"subject": f"simlib {'host measure' if native else 'lab collect'}", "author": "simlib"},
        "hardware": (
            f"{ran['cpu']}, {ran['cpus']} CPUs, Linux {ran['kernel']}"
            if native
            else f"QEMU {ran['qemu']}, TCG, one thread, icount: one instruction a nanosecond"
        ),
        "command": records[0].content["command"],
        "setup": _setup(records),
        "notes": list(_NATIVE_NOTES if native else _NOTES),
        "caveats": caveats,
    }
    for table, (title, columns, key, _) in TABLES.items():
        if len(frames[table]):
            keys = [*(column.name for column in KEYS), *key]
            text = frames[table].to_csv(index=False, lineterminator="\n")
            texts |= measured_files(f"{name}-{table}", f"{name}: {title}", about, (*KEYS, *columns), keys, text)
    written = write_together(folder, texts)
    for stale in {f"{name}-{table}{suffix}" for table in TABLES for suffix in (".csv", ".json")} - texts.keys():
        (folder / stale).unlink(missing_ok=True)  # none of an earlier collection may stand beside the new ones
    return [path for path in written if path.suffix == ".csv"]


_NOTES = (
    "Repeat it: simlib lab collect on the experiment file of this name; docs/lab.md.",
    "Times are instructions: 1 ns each, summed over all CPUs.",
)
_NATIVE_NOTES = ("Repeat it: simlib host measure; docs/on-a-real-host.md.", "Times are a host's own.")


def emulated_per_access(record: Record) -> float:
    """Instructions that KVM emulated for each access of the guest; 0 where it does not count them."""
    tables = record.imported.tables
    if "others" not in tables:
        return 0.0
    frame = tables["others"].frame
    seen = frame[(frame["when"] == "end") & (frame["name"] == "insn_emulation")]["value"].sum()
    return round(float(seen) / float(tables["vcpus"].frame[["writes", "reads"]].to_numpy().sum()), 3)


def _setup(records: Sequence[Record]) -> dict[str, Any]:
    """Sources, patches, configurations and commands, once for each kernel."""
    kernels: dict[str, dict[str, Any]] = {}
    for record in records:
        keys = record.keys
        name = f"{keys['architecture']}-{keys['mode']}-{keys['kernel']}"
        kernels.setdefault(name, {**record.content["provenance"], "command": record.content["command"]})
    return {"kernels": kernels}
