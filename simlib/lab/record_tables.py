# SPDX-License-Identifier: BSD-3-Clause
"""Tidy tables of the lab's records: runs, locks, ioctls, stalls, rounds, noise and functions; and their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from simlib._lib.errors import SimlibError
from simlib._lib.files import write_together
from simlib.lab.cache import translate_os_errors
from simlib.lab.experiment import check_name
from simlib.lab.records import KEYS, Record
from simlib.measurements.importers.kvm_stats import ALL_TIMED
from simlib.measurements.importers.tables import Column, measured_files

RUNS = (
    Column("digest", "text", "first 16 hexadecimal digits of the SHA-256 hash of the test's output"),
    Column("repeats", "whole", "number of times that the cell was run", unit="count"),
    Column("identical", "text", "true: all repeats gave the same output; false: they did not"),
    Column("guest_time_s", "number", "time that passed on the guest's clock"),
    Column("flush_requests", "whole", "requests for remote TLB flushes in the rounds", optional=True, unit="count"),
    Column("flush_interrupts", "whole", "requests with an interrupt; arm64: all requests", optional=True, unit="count"),
)


def run_rows(record: Record) -> pd.DataFrame:
    """One row: number of repeats, whether their outputs are equal, and TLB flushes."""
    digests, identical = record.content["digests"], str(record.repeatable).lower()
    flushes = [_since_enabled(record, name) for name in ("remote_tlb_flush_requests", "remote_tlb_flush")]
    row = (digests[0][:16], len(digests), identical, round(record.content["guest_s"], 6), *flushes)
    frame = pd.DataFrame([row], columns=[column.name for column in RUNS])
    return frame.astype(dict.fromkeys(("flush_requests", "flush_interrupts"), "Int64"))


def _since_enabled(record: Record, name: str) -> int | None:
    """Growth of a statistic of the VM since the log was enabled; None if the kernel does not have it."""
    if "others" not in record.imported.tables:
        return None
    frame = record.imported.tables["others"].frame
    values = frame[(frame["scope"] == "vm") & (frame["name"] == name)].groupby("when")["value"].sum()
    return int(values["end"] - values["enabled"]) if {"end", "enabled"} <= set(values.index) else None


def emulated_per_access(record: Record) -> float:
    """Instructions that KVM emulated for each access of the guest; 0 if the kernel does not count them."""
    imported = record.imported.tables
    if "others" not in imported:
        return 0.0
    frame = imported["others"].frame
    emulated = frame[(frame["when"] == "end") & (frame["name"] == "insn_emulation")]["value"].sum()
    return round(float(emulated) / float(imported["vcpus"].frame[["writes", "reads"]].to_numpy().sum()), 3)


LOCKS = (
    Column("phase", "text", "populate, enable, or rounds (all that follows enabling the log)"),
    Column("site", "text", "class of the call site"),
    Column("lock_mode", "text", "read or write; a spinlock counts as write"),
    Column("acquisitions", "whole", "number of times that mmu_lock was acquired"),
    Column("contentions", "whole", "number of acquisitions that had to wait"),
    Column("wait_time_ns", "whole", "total time of the waits, on the host's clock (docs/lab.md)"),
    Column("hold_time_ns", "whole", "total time of the holds, on the host's clock (docs/lab.md)"),
)

_PHASES = {"populated": "populate", "enabled": "enable", "end": "rounds"}
"""Phase that ends when the test reads the statistics, by the value of ``when``."""


def lock_rows(record: Record) -> pd.DataFrame:
    """Lock statistics of each phase: one row for each phase, site and mode in which the lock was taken.

    Raises `SimlibError` if not all holds were timed.
    """
    locks = record.imported.tables.get("locks")
    if locks is None:
        return pd.DataFrame()
    frame = locks.frame[locks.frame["scope"] == "vm"]
    counted = frame[frame["timed"].notna() & frame["acquired"].notna()]
    timed, acquired = (int(counted[column].sum()) for column in ("timed", "acquired"))
    if timed < ALL_TIMED * acquired:
        raise SimlibError(
            f"{timed} of {acquired} holds of mmu_lock were timed, but hold_time_ns must cover all of them: set the"
            " host's kvm.mmu_lock_stat_period to 1, and measure again"
        )
    names = {"acquired": "acquisitions", "contended": "contentions"}
    names |= {"wait_ns": "wait_time_ns", "hold_ns": "hold_time_ns"}
    parts: list[pd.DataFrame] = []
    before = None
    for when, phase in _PHASES.items():
        counters = frame[frame["when"] == when].set_index(["site", "mode"])[list(names)].astype("int64")
        growth = counters if before is None else counters.sub(before, fill_value=0).astype("int64")
        before = counters
        growth = growth[growth["acquired"] > 0].reset_index()
        growth.insert(0, "phase", phase)
        parts.append(growth)
    return pd.concat(parts, ignore_index=True).rename(columns={"mode": "lock_mode", **names})


IOCTLS = (
    Column("name", "text", "phase: populate, write, enable, get, clear, reset, disable, teardown, probe, probe_idle"),
    Column("round", "whole", "round of GET and CLEAR, from 1; 0: before them"),
    Column("calls", "whole", "number of calls", unit="count"),
    Column("range_pages", "whole", "total number of pages in the calls' ranges"),
    Column("dirty_pages", "whole", "number of bits set in the calls' bitmaps"),
    Column("total_time_ns", "whole", "total time of the calls"),
    Column("longest_time_ns", "whole", "time of the longest call"),
)


def ioctl_rows(record: Record) -> pd.DataFrame:
    """Phases and ioctls: one row for each name and round, with the number of calls and their times."""
    ioctls = record.imported.tables.get("ioctls")
    if ioctls is None:
        return pd.DataFrame()
    frame = ioctls.frame.fillna({"dirty_pages": 0, "calls": 1})
    grouped = frame.groupby(["name", "round"], sort=False)
    sums = grouped[["calls", "range_pages", "dirty_pages", "duration_ns"]].sum()
    sums["longest_time_ns"] = grouped["duration_ns"].max()
    return sums.rename(columns={"duration_ns": "total_time_ns"}).reset_index()


STALLS = (
    Column("vcpu", "whole", "number of the vCPU, from 0", unit="1"),
    Column("writes", "whole", "number of the vCPU's writes", unit="count"),
    Column("reads", "whole", "number of the vCPU's reads", unit="count"),
    Column("longest_stall_ns", "whole", "longest gap between two accesses of the vCPU"),
    Column(
        "longest_stall_in_clear_ns",
        "whole",
        "longest of its eight longest gaps that overlaps a CLEAR, a GET that clears, or a ring reset; 0: no overlap",
    ),
    Column("gaps", "text", "gaps between two accesses since the first round: FROM-TO:COUNT per bucket, ns", True),
)

_CLEARING = {"initially_set": "clear", "enable": "clear", "get": "get", "ring": "reset"}
"""Name of the ioctl that write-protects pages, by the value of ``protection``."""


def stall_rows(record: Record) -> pd.DataFrame:
    """Accesses, longest stalls and gaps: one row for each vCPU."""
    imported = record.imported.tables
    if not imported.keys() >= {"vcpus", "ioctls"}:
        return pd.DataFrame()
    frame = imported["vcpus"].frame.rename(columns={"longest_ns": "longest_stall_ns"})
    ioctls = imported["ioctls"].frame
    clears = ioctls[ioctls["name"] == _CLEARING[str(record.keys["protection"])]]
    begin, end = clears["start_ns"].to_numpy(), (clears["start_ns"] + clears["duration_ns"]).to_numpy()
    longest = dict.fromkeys(frame["vcpu"].tolist(), 0)
    if "longest" in imported:
        for vcpu, start, gap in imported["longest"].frame[["vcpu", "start_ns", "gap_ns"]].to_numpy().tolist():
            if ((start < end) & (start + gap > begin)).any():
                longest[vcpu] = max(longest[vcpu], gap)
    frame["longest_stall_in_clear_ns"] = frame["vcpu"].map(longest)
    texts: dict[int, list[str]] = {}
    buckets = imported["gaps"].frame[["vcpu", "low_ns", "high_ns", "count"]] if "gaps" in imported else pd.DataFrame()
    for vcpu, low, high, count in buckets.to_numpy().tolist():
        texts.setdefault(vcpu, []).append(f"{low}-{high}:{count}")
    frame["gaps"] = frame["vcpu"].map({vcpu: " ".join(words) for vcpu, words in texts.items()})
    return pd.DataFrame(frame[[column.name for column in STALLS]])


def read_gaps(texts: Iterable[str]) -> pd.DataFrame:
    """Sum the gap histograms of several vCPUs.

    Returns: ``from``, ``to``, ``count``.

    - `texts`: values of the column ``gaps`` of `STALLS`, all of one architecture.

    >>> read_gaps(["72-74:5 96-98:1", "72-74:3"]).values.tolist()
    [[72, 74, 8], [96, 98, 1]]
    """
    words = [word.replace("-", ":").split(":") for text in texts for word in text.split()]
    frame = pd.DataFrame(words, columns=["from", "to", "count"]).astype("int64")
    return pd.DataFrame(frame.groupby(["from", "to"], as_index=False)["count"].sum())


ROUNDS = (
    Column("vcpu", "whole", "number of the vCPU, from 0", unit="1"),
    Column("round", "whole", "round of GET and CLEAR, from 1"),
    Column("longest_stall_ns", "whole", "longest gap between two accesses while the round's ioctls ran"),
    Column("longest_pause_ns", "whole", "longest gap between the round's last ioctl and the next round"),
)


def round_rows(record: Record) -> pd.DataFrame:
    """Longest stalls by round: one row for each vCPU and round; empty if the vCPUs are parked in the rounds."""
    rounds = record.imported.tables.get("rounds")
    if rounds is None or record.keys["parked"] == "true":
        return pd.DataFrame()
    return rounds.frame[[column.name for column in ROUNDS]]


NOISE = (
    Column("repeat", "whole", "number of the repeat of all cells, from 1", unit="count"),
    Column("place", "whole", "position of the run in the repeat, from 1", unit="count"),
    Column("wall_s", "number", "duration of the run"),
    Column("steal_percent", "number", "steal time, percent of the time of the CPUs in use"),
    Column("foreign_percent", "number", "time of other programs, percent of the time of the CPUs in use"),
    Column("frequency_percent", "number", "largest change in a CPU's frequency; empty: not reported", optional=True),
    Column("quiet", "text", "true: within the limits; false: noisy, and not used"),
)


def noise_rows(record: Record) -> pd.DataFrame:
    """One row: noise of the host during a run; empty for an emulated run."""
    noise = record.content.get("noise")
    return pd.DataFrame([noise]) if noise else pd.DataFrame()


FUNCTIONS = (
    Column("function", "text", "function of the kernel"),
    Column("instructions", "whole", "instructions of all CPUs in the function, since boot", unit="count"),
    Column("gave_way", "whole", "number of times that a CPU yielded the rest of its turn there", unit="count"),
)


def function_rows(record: Record) -> pd.DataFrame:
    """Instructions by kernel function: one row for each function; empty without a profile."""
    return pd.DataFrame(record.content.get("functions", []), columns=[column.name for column in FUNCTIONS])


TABLES: dict[str, tuple[str, tuple[Column, ...], tuple[str, ...], Callable[[Record], pd.DataFrame]]] = {
    "runs": ("cells of the experiments, and whether their outputs are repeatable", RUNS, (), run_rows),
    "locks": ("mmu_lock by phase, call site and mode", LOCKS, ("phase", "site", "lock_mode"), lock_rows),
    "ioctls": ("phases and ioctls of the test", IOCTLS, ("name", "round"), ioctl_rows),
    "stalls": ("accesses and stalls of the vCPUs", STALLS, ("vcpu",), stall_rows),
    "rounds": ("longest stalls of the vCPUs in each round", ROUNDS, ("vcpu", "round"), round_rows),
    "noise": ("disturbances during the runs", NOISE, (), noise_rows),
    "functions": ("instructions by function of the kernel", FUNCTIONS, ("function",), function_rows),
}
"""Title, columns after `KEYS`, key columns, and function for the rows of one record, by the table's name."""


def tables(records: Sequence[Record]) -> dict[str, pd.DataFrame]:
    """Make the tidy tables of records, one for each key of `TABLES`."""
    frames = {}
    for name, (_, columns, _, rows_of) in TABLES.items():
        parts = [(record.keys, rows) for record in records if len(rows := rows_of(record))]
        names = [column.name for column in (*KEYS, *columns)]
        if not parts:
            frames[name] = pd.DataFrame(columns=names)
            continue
        keys = pd.DataFrame([keys for keys, rows in parts for _ in range(len(rows))])
        frames[name] = pd.concat([keys, pd.concat([rows for _, rows in parts], ignore_index=True)], axis=1)[names]
    return frames


@translate_os_errors()
def write_tables(records: Sequence[Record], folder: Path, name: str) -> list[Path]:
    """Write the tables of records, ``<name>-runs`` and so on, with their descriptors; on failure, write none.

    Returns: the paths of the CSV files. Raises `InputError` if the name is unfit, or the folder cannot be written.
    Raises `SimlibError` if there is no record, or two records have the same key.
    """
    check_name("--name", name)
    if not records:
        raise SimlibError("no cell has a result: nothing is written")
    first: dict[str, Record] = {}
    for record in records:
        other = first.setdefault(json.dumps(record.keys), record)
        if other is not record:
            raise SimlibError(
                f"'{other.label}' and '{record.label}' have the same key in the tables, so nothing is written: put "
                "them into separate experiments"
            )
    frames, texts = tables(records), dict[str, str]()
    provenance = records[0].content["provenance"]
    if "cpu" in provenance:
        command, hardware = "host measure", "{cpu}, {cpus} CPUs, Linux {kernel}".format_map(provenance)
        notes = ["To repeat: simlib host measure (docs/on-a-real-host.md).", "Times were measured on a real host."]
        emulated = any(emulated_per_access(record) > 1 for record in records)
        caveat = "This host's KVM emulated all instructions of the guest: use only the times of GET and CLEAR."
        caveats = [caveat] * emulated
    else:
        command = "lab collect"
        hardware = f"QEMU {provenance['qemu']}, TCG, one thread, icount: one instruction per nanosecond"
        notes = [
            "To repeat: simlib lab collect with the experiment file of this name (docs/lab.md).",
            "Times are numbers of instructions of all CPUs, at 1 ns per instruction.",
        ]
        caveats = ["Emulated: no caches, no line transfers, no IPI cost."]
    kernels: dict[str, dict[str, Any]] = {}
    for record in records:
        kernel = "{architecture}-{mode}-{kernel}".format_map(record.keys)
        kernels.setdefault(kernel, {**record.content["provenance"], "command": record.content["command"]})
    about = {
        "source": {"subject": f"simlib {command}", "author": "simlib"},
        "hardware": hardware,
        "command": records[0].content["command"],
        "setup": {"kernels": kernels},
        "notes": notes,
        "caveats": caveats,
    }
    for table, (title, columns, key, _) in TABLES.items():
        if len(frames[table]):
            keys = [*(column.name for column in KEYS), *key]
            text = frames[table].to_csv(index=False, lineterminator="\n")
            texts |= measured_files(f"{name}-{table}", f"{name}: {title}", about, (*KEYS, *columns), keys, text)
    written = write_together(folder, texts)
    for stale in {f"{name}-{table}{suffix}" for table in TABLES for suffix in (".csv", ".json")} - texts.keys():
        (folder / stale).unlink(missing_ok=True)  # tables of an earlier collection must not remain with the new ones
    return [path for path in written if path.suffix == ".csv"]
