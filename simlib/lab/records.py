# SPDX-License-Identifier: BSD-3-Clause
"""Records: the raw results of the lab, one JSON file per cell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from simlib._lib.errors import SimlibError
from simlib._lib.files import write_text
from simlib.lab.boot import BootOutcome
from simlib.lab.experiment import Cell, CellSequence, parameter_text
from simlib.measurements.importers import Imported, import_text
from simlib.measurements.importers.tables import Column

_CONTENT = {
    "label", "experiment", "target", "mode", "kernel", "program", "clock", "parameters", "test", "script", "test_line",
    "command", "provenance", "digests", "guest_s", "wall_s", "outputs", "turn_instructions",
}  # fmt: skip
"""Keys of every record."""

_DEFAULTS = {
    "vcpus": 1, "memory_per_vcpu": "16M", "backing": "anonymous", "access": "sequential", "write_percent": 100,
    "chunk_pages": 0, "clear_threads": 1, "rounds": 3, "flush_accesses": 0, "seed": 1, "ring_entries": 0,
}  # fmt: skip
"""Defaults of the test's options."""

PROGRAM_KINDS = {"mmu_lock_contention_test": "contention-test", "dirty_log_perf_test": "dirty-log-perf-test"}
"""Importer of each selftest's output."""

FAULT_SITES = ("fault_fast", "fault_slow")
"""Classes of the call sites at which a page fault takes the lock."""


def batch_of(switches: str) -> int:
    """Pages after which a cell's CLEAR drops the lock; 0: never.

    >>> batch_of("dirty_log_clear_batch=512 fast_page_fault=off"), batch_of("")
    (512, 0)
    """
    values = dict(word.split("=", 1) for word in str(switches).split())
    return int(values.get("dirty_log_clear_batch", 0))


@dataclass(frozen=True)
class Record:
    """Results of a cell, with the inputs that reproduce them."""

    content: Mapping[str, Any]
    """The file's content: `_CONTENT`, with a digest for each repeat and an output for each line of the script."""

    @property
    def label(self) -> str:
        """Label of the cell (`simlib.lab.experiment.Cell.label`)."""
        return str(self.content["label"])

    @property
    def repeatable(self) -> bool:
        """True if all repeats gave the same output."""
        return len(set(self.content["digests"])) == 1

    @cached_property
    def imported(self) -> Imported:
        """The test's output as tables. Raises `SimlibError` if the output is damaged or truncated."""
        output = self.content["outputs"][int(self.content["test_line"])]
        return import_text(PROGRAM_KINDS[self.content["program"]], output + "\n")

    @property
    def keys(self) -> dict[str, object]:
        """Values of the columns `KEYS`, which identify the cell in every table."""
        content, host = self.content, self.content["provenance"]
        if "cpu" in host:  # the kernel is the host's, not the one in the experiment
            kernel = "patched" if host["patched"] else "stock"
            content = {**content, "mode": "native", "kernel": kernel, "turn_instructions": 0}
        return cell_keys(content, content["parameters"], content["test"])


def cell_keys(fields: Mapping[str, Any], parameters: Mapping[str, Any], test: Mapping[str, Any]) -> dict[str, object]:
    """Values of the columns `KEYS` for a cell of the emulated lab.

    - `fields`: ``experiment`` (its name), ``target``, ``mode``, ``kernel``, ``turn_instructions``.
    - `parameters`, `test`: values of its module parameters and its options.
    """
    switches = (f"{key}={parameter_text(value)}" for key, value in parameters.items())
    protect = "get" if test.get("get_clears") else "enable" if test.get("protect_at_enable") else "initially_set"
    return {
        "experiment": fields["experiment"],
        "architecture": fields["target"],
        **{name: fields[name] for name in ("mode", "kernel", "turn_instructions")},
        "switches": " ".join(switches),
        **{name: test.get(name, default) for name, default in _DEFAULTS.items()},
        "protection": "ring" if test.get("ring_entries") else protect,
        "passes": int(test.get("passes", 1 if test.get("parked") else 0)),
        "parked": str(bool(test.get("parked", False))).lower(),
    }


KEYS = (
    Column("experiment", "text", "name of the experiment in data/experiments/"),
    Column("architecture", "text", "architecture of the kernel"),
    Column("mode", "text", "MMU mode: npt, shadow, vhe, nvhe or h; native: the host's own mode"),
    Column("kernel", "text", "statistics, plain or lock-stat; in native mode: patched or stock"),
    Column("turn_instructions", "whole", "mean length of an emulated CPU's turn; 0: real CPUs"),
    Column("switches", "text", "parameters of the kvm module that were set; empty: defaults", optional=True),
    Column("vcpus", "whole", "virtual CPUs of the guest"),
    Column("memory_per_vcpu", "text", "memory that each vCPU accesses"),
    Column("backing", "text", "backing of the memory"),
    Column("access", "text", "order of the accesses"),
    Column("write_percent", "whole", "share of the accesses that write"),
    Column("protection", "text", "initially_set: CLEAR protects pages; enable: enabling too; get: GET; ring: reset"),
    Column("chunk_pages", "whole", "pages of one CLEAR ioctl; 0: the whole memslot"),
    Column("clear_threads", "whole", "number of threads that clear", unit="count"),
    Column("rounds", "whole", "number of rounds of GET and CLEAR", unit="count"),
    Column("passes", "whole", "passes that each vCPU makes in a round; 0: as long as the rounds last"),
    Column("flush_accesses", "whole", "accesses between two flushes of the guest's TLB; 0: no flushes", unit="count"),
    Column("parked", "text", "true: the vCPUs wait while the log is read and cleared; false: they keep running"),
    Column("seed", "whole", "seed of the test"),
    Column("ring_entries", "whole", "entries of a vCPU's dirty ring; 0: no dirty ring", unit="count"),
)
"""First columns of every table; together with a table's own key they identify a row."""


def save_record(
    path: Path,
    cell: Cell,
    outcomes: Sequence[BootOutcome],
    provenance: Mapping[str, object],
    noise: Mapping[str, object] | None = None,
) -> Record:
    """Write a cell's record, with a row of `simlib.lab.record_tables.NOISE` for a run on a real host.

    Raises `SimlibError`, and writes nothing, if the output is damaged.
    """
    spec, first = cell.experiment, outcomes[0]
    script = cell.script().splitlines()
    record = Record(
        {
            "label": cell.label,
            **spec.record_fields,
            "parameters": dict(cell.parameters),
            "test": dict(cell.test),
            "script": script,
            "test_line": _test_line(script),
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
    if warnings:  # the lab wrote the log itself, so that a warning is an error
        raise SimlibError(f"{cell.label}: {'; '.join(warnings)}")
    write_text(path, json.dumps(record.content) + "\n")
    return record


def _test_line(script: Sequence[str]) -> int:
    return next(number for number, line in enumerate(script) if line.startswith("run "))


def split_record(record: Record, sequence: CellSequence) -> list[Record]:
    """Split the record of a boot that ran several cells into one record for each."""
    records, first_line = list[Record](), 0
    for cell in sequence.cells:
        script = cell.script().splitlines()
        fields = {**cell.experiment.record_fields, "label": cell.label, "test_line": first_line + _test_line(script)}
        fields |= {"parameters": dict(cell.parameters), "test": dict(cell.test)}
        records.append(Record({**record.content, **fields}))
        first_line += len(script)
    return records


def load_record(path: Path) -> Record:
    """Read a record. Raises `SimlibError` if it is damaged."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if missing := _CONTENT - set(content):
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (ValueError, TypeError) as error:
        raise SimlibError(f"the result {path} is damaged ({error}): delete it, or run with --restart") from None
    return Record(content)
