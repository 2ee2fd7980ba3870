# SPDX-License-Identifier: BSD-3-Clause
"""Experiment files (TOML): kernel, machine, module parameters and options of the selftest.

Each list in ``[parameters]`` or ``[test]`` is a dimension of a matrix. Each combination of values is a `Cell`, which
`simlib.lab.collect` boots separately, so that no cell inherits the state of another.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from simlib._lib.errors import InputError, nearest
from simlib._lib.reading import read_toml
from simlib.lab.build import KERNELS
from simlib.lab.targets import find_target

CLOCKS = ("deterministic", "multithreaded")
"""``deterministic``: one host thread, 1 ns per instruction. ``multithreaded``: one thread per CPU, for smoke tests."""

OPTIONS: dict[str, dict[str, tuple[str, type]]] = {
    "mmu_lock_contention_test": {
        "vcpus": ("-v", int),
        "memory_per_vcpu": ("-b", str),
        "rounds": ("-r", int),
        "chunk_pages": ("-c", int),
        "clear_threads": ("-t", int),
        "access": ("-a", str),
        "write_percent": ("-w", int),
        "seed": ("-S", int),
        "flush_accesses": ("-f", int),
        "passes": ("-n", int),
        "backing": ("-s", str),
        "parked": ("-p", bool),
        "get_clears": ("-g", bool),
        "protect_at_enable": ("-i", bool),
        "ring_entries": ("-R", int),
        "check": ("-k", bool),
        "probe": ("-q", bool),
        "user": ("-u", bool),
        "yield": ("-y", bool),
        "bucket_ns": ("-B", int),
        "pause_us": ("-D", int),
    },
    "dirty_log_perf_test": {
        "vcpus": ("-v", int),
        "memory_per_vcpu": ("-b", str),
        "iterations": ("-i", int),
        "write_percent": ("-w", int),
        "get_clears": ("-g", bool),
        "guest_mode": ("-m", int),
        "backing": ("-s", str),
    },
}
"""Flag and type of each option of the selftests, by its key in ``[test]``."""

MAX_CELLS = 10_000
"""Maximum number of cells in a file; each cell is one boot."""

_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_PARAMETER = re.compile(r"\w+", re.ASCII)
_WORD = re.compile(r"[\w.+/:-]+", re.ASCII)
_SIZE = re.compile(r"[1-9]\d*[KMG]?", re.ASCII)


@dataclass(frozen=True)
class Experiment:
    """A kernel, a machine, and the matrix of values to run on them."""

    name: str
    target: str
    """Architecture (`simlib.lab.targets.TARGETS`)."""
    mode: str
    """MMU mode of the target; default: its first."""
    kernel: str = "statistics"
    program: str = "mmu_lock_contention_test"
    clock: str = "deterministic"
    turn_instructions: int = 200
    """Mean length of an emulated CPU's turn, instructions."""
    turns_from: str = ""
    """Kernel functions: turns are 100 times longer until a CPU calls one of them. Empty: the length is constant."""
    turns_to: str = ""
    """Kernel functions: after a CPU calls one of them, turns have the longer length again."""
    cpus: int = 0
    """CPUs of the emulated host; 0: one for each vCPU and each thread that clears."""
    machine_memory: str = "768M"
    timeout_s: int = 600
    """Maximum wall time of a boot, s."""
    profile: bool = False
    """True: count the instructions of each kernel function, including those of the boot itself."""
    repeats: int = 1
    """Number of runs of every cell; the hashes of their outputs are compared."""
    parameters: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of each KVM module parameter."""
    test: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of each option of the program."""

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(len(values) for values in (*self.parameters.values(), *self.test.values()))

    @property
    def record_fields(self) -> dict[str, Any]:
        """Fields that all its records share: its name as ``experiment``, target, mode, kernel, program and clock."""
        names = ("target", "mode", "kernel", "program", "clock", "turn_instructions")
        return {"experiment": self.name, **{name: getattr(self, name) for name in names}}

    def cells(self) -> Iterator[Cell]:
        """Iterate over all combinations of the values, in the order of the file."""
        for values in itertools.product(*self.parameters.values(), *self.test.values()):
            parameters = dict(zip(self.parameters, values, strict=False))
            yield Cell(self, parameters, dict(zip(self.test, values[len(parameters) :], strict=True)))


_FIELDS = {name: kind for name, kind in get_type_hints(Experiment).items() if kind in (str, int, bool)}
"""Type of each key outside of the tables."""


@dataclass(frozen=True)
class Cell:
    """One combination of an experiment's values."""

    experiment: Experiment
    parameters: Mapping[str, Any]
    test: Mapping[str, Any]
    """One value of each parameter and option."""

    @property
    def label(self) -> str:
        """Name of the experiment, and the values that vary within it."""
        spec = self.experiment
        pairs = ((spec.parameters, self.parameters), (spec.test, self.test))
        varied = [f"{key}={values[key]}" for matrix, values in pairs for key in values if len(matrix.get(key, ())) > 1]
        return " ".join([spec.name, *varied])

    @property
    def cpus(self) -> int:
        """CPUs of the emulated host."""
        threads = int(self.test.get("vcpus", 1)) + int(self.test.get("clear_threads", 1))
        return self.experiment.cpus or threads

    def script(self) -> str:
        """Lines for the lab's init: module parameters, then the test."""
        lines = [f"parameter {key} {parameter_text(value)}" for key, value in self.parameters.items()]
        known = OPTIONS[self.experiment.program]
        words = ["run", f"/{self.experiment.program}"]
        for key, value in self.test.items():
            flag, kind = known[key]
            words += [flag, str(value)] if kind is not bool else [flag] * value
        lines.append(" ".join(words))
        if self.experiment.kernel == "lock-stat":
            lines = [*lines[:-1], "write /proc/lock_stat 0", lines[-1], "show /proc/lock_stat"]
        return "\n".join(lines) + "\n"

    def key(self, provenance: Mapping[str, object]) -> str:
        """Hash of all inputs that determine the result: parameters and test, kernel and machine (`provenance`)."""
        text = json.dumps([self.script(), provenance], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CellSequence(Cell):
    """Cells that one boot runs one after the other, with the first cell's experiment and enough CPUs for each cell."""

    cells: tuple[Cell, ...] = ()

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> CellSequence:
        """Combine one or more cells."""
        return cls(cells[0].experiment, cells[0].parameters, cells[0].test, tuple(cells))

    @property
    def label(self) -> str:
        """Name of the first cell's experiment; with a single cell, its label."""
        return self.cells[0].label if len(self.cells) == 1 else self.experiment.name

    @property
    def cpus(self) -> int:
        """CPUs of the emulated host."""
        return max(cell.cpus for cell in self.cells)

    def script(self) -> str:
        """Lines for the lab's init."""
        return "".join(cell.script() for cell in self.cells)


def load_experiment(path: str | Path) -> list[Experiment]:
    """Read an experiment file: ``[[experiment]]`` tables, or one experiment at the top level.

    Raises `InputError` for a file that cannot be read, an unknown key or an invalid value.
    """
    content = read_toml(path, "an experiment (TOML)")
    tables = content.get("experiment", [content])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(str(path), "experiment", "must be tables", "write [[experiment]] above each table")
    for key in content if "experiment" in content else ():
        if key != "experiment":
            raise InputError(str(path), key, "is outside of all experiments", "write it below each [[experiment]]")
    experiments = [parse_experiment(table, str(path)) for table in tables]
    if (cells := sum(spec.size for spec in experiments)) > MAX_CELLS:
        hint = "list fewer values: every cell is a boot"
        raise InputError(str(path), f"{cells} cells", f"must be at most {MAX_CELLS:,}", hint)
    names = [spec.name for spec in experiments]
    for name in names:
        if names.count(name) > 1:
            raise InputError(str(path), name, "names two experiments", "rename one of them")
    return experiments


def parse_experiment(table: Mapping[str, Any], where: str = "experiment") -> Experiment:
    """Check an experiment's table, and return the experiment.

    >>> spec = parse_experiment({"name": "n", "target": "x86_64", "test": {"vcpus": [1, 2]}})
    >>> spec.mode, [cell.label for cell in spec.cells()]
    ('npt', ['n vcpus=1', 'n vcpus=2'])
    >>> print(next(spec.cells()).script(), end="")
    run /mmu_lock_contention_test -v 1
    """
    values = {key: value for key, value in table.items() if key not in ("parameters", "test")}
    values = _check_fields(values, where)
    where = f"{where}: {values['name']}"
    parameters, test = (
        {key: matrix_values(value, f"{where}.{name}.{key}") for key, value in subtable(table, name, where).items()}
        for name in ("parameters", "test")
    )
    for key, options in test.items():
        for value in options:
            _check_option(values["program"], key, value, f"{where}.test.{key}")
    for key, options in parameters.items():
        for value in options:
            if not _PARAMETER.fullmatch(key):
                raise InputError(f"{where}.parameters", key, "is not a parameter name", "see kernel-patches/README.md")
            if not isinstance(value, int | str) or not _WORD.fullmatch(str(value)):
                rule = "must be a number, a boolean or a keyword"
                raise InputError(f"{where}.parameters.{key}", value, rule, "kernel-patches/README.md lists the values")
    return Experiment(**values, parameters=parameters, test=test)


def _check_fields(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Check the keys outside of the tables, and fill in the target's first mode."""
    for key, value in values.items():
        if key not in _FIELDS:
            raise InputError(f"{where}: {key}", value, "is not known", nearest(key, [*_FIELDS, "parameters", "test"]))
        if type(value) is not _FIELDS[key]:
            raise InputError(f"{where}: {key}", value, f"must be {_FIELDS[key].__name__}", "docs/lab.md lists the keys")
    for key in ("name", "target"):
        if key not in values:
            raise InputError(where, "{}", f"must have {key}", f"add {key} = …")
    check_name(f"{where}: name", values["name"])
    modes = find_target(values["target"]).modes
    values = {"mode": next(iter(modes)), "program": "mmu_lock_contention_test", **values}
    choices: dict[str, Collection[str]] = {"mode": modes, "kernel": KERNELS, "program": OPTIONS, "clock": CLOCKS}
    for key, known in choices.items():
        if key in values and values[key] not in known:
            raise InputError(f"{where}: {key}", values[key], "is not known", nearest(values[key], known))
    for key, minimum in (("turn_instructions", 1), ("timeout_s", 1), ("repeats", 1), ("cpus", 0)):
        if values.get(key, 1) < minimum:
            raise InputError(f"{where}: {key}", values[key], f"must be at least {minimum}", "raise it")
    if not _SIZE.fullmatch(values.get("machine_memory", "1M")):
        raise InputError(f"{where}: machine_memory", values["machine_memory"], "is not a size", "write 512M or 1G")
    return values


def check_name(what: str, name: str) -> None:
    """Raise `InputError` for a name that cannot be part of a file's name; `what`: its option or key.

    >>> check_name("--name", "a/b")
    Traceback (most recent call last):
    simlib.InputError: --name = a/b: must be letters, digits, -, _ and ., and not begin with - or .; choose another name
    """
    if not _NAME.fullmatch(name):
        rule = "must be letters, digits, -, _ and ., and not begin with - or ."
        raise InputError(what, name, rule, "choose another name")


def _check_option(program: str, key: str, value: Any, where: str) -> None:
    """Refuse an option that the program does not have, or a value of the wrong type."""
    known = OPTIONS[program]
    if key not in known:
        raise InputError(where, value, f"is not an option of {program}", nearest(key, known))
    kind = known[key][1]
    if type(value) is not kind:
        raise InputError(where, value, f"must be {kind.__name__}", "docs/lab.md lists the options")
    if (isinstance(value, str) and not _WORD.fullmatch(value)) or (isinstance(value, int) and value < 0):
        raise InputError(where, value, "must be a keyword or a non-negative number", "docs/lab.md lists the options")
    if key == "memory_per_vcpu" and not _SIZE.fullmatch(str(value)):
        raise InputError(where, value, "is not a size", "write 4M or 1G")


def subtable(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """Return the table at a key, empty if the key is missing. Raises `InputError` if the value is not a table."""
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise InputError(f"{where}.{key}", value, "must be a table", f"write [{key}] or [experiment.{key}]")
    return value


def matrix_values(value: Any, where: str) -> tuple[Any, ...]:
    """Values of a key; a list is a dimension of the matrix. Raises `InputError` if a value appears twice."""
    values = tuple(value) if isinstance(value, list) and value else (value,)
    if len({parameter_text(choice) for choice in values}) < len(values):
        raise InputError(where, value, "lists a value twice", "remove one of them")
    return values


def parameter_text(value: object) -> str:
    """Format a parameter's value as the kernel expects it."""
    return ("Y" if value else "N") if isinstance(value, bool) else str(value)
