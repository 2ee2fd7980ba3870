# SPDX-License-Identifier: BSD-3-Clause
"""The cells that a trial runs, as data: which operations, on which machines, how often."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simlib.lab.experiment import Cell, parse_experiment
from simlib.lab.targets import TARGETS, Target


@dataclass(frozen=True)
class TrialDesign:
    """Cells that are run alike.

    - `boot`: designs with the same word are run in one boot, one after the other.
    - `test`: options of the test; a list is a dimension.
    - `layouts`, `seeds`: each cell is run on each kernel in so many layouts, with so many seeds.
    - `modes`: where it is run, ``target/mode``; empty: everywhere.
    - `quick`: whether it belongs to the small matrix, too.
    """

    name: str
    what: str
    boot: str
    test: Mapping[str, Any]
    layouts: int
    seeds: int = 1
    modes: tuple[str, ...] = ()
    quick: bool = True

    @property
    def turn(self) -> int:
        """Mean length of a CPU's turn, instructions: short where vCPUs meet the thread that clears."""
        return 2000 if self.test.get("parked") else 200


_WALK = {"vcpus": 4, "memory_per_vcpu": "2M", "rounds": 2, "flush_accesses": 64}
_PARKED = {**_WALK, "vcpus": 2, "memory_per_vcpu": "4M", "parked": True}
_BLOCKS = {"vcpus": 1, "memory_per_vcpu": "16M", "rounds": 1, "flush_accesses": 64, "parked": True,
           "backing": "anonymous_thp"}  # fmt: skip
_RINGS = ("x86_64/npt", "x86_64/shadow", "arm64/vhe")

CHECK = TrialDesign(
    "check", "no write is lost", "check",
    {"vcpus": 4, "memory_per_vcpu": "512K", "access": "random", "pause_us": 100, "chunk_pages": [0, 64], "rounds": 32,
     "check": True}, 1,
)  # fmt: skip
"""What a kernel has to pass before it is measured.

Rounds are short, so that words are partly dirty and a vCPU writes a page again before it leaves the guest: else a bit
too many that is cleared, or a flush too few, is not found (`make lab-control`).  Chunks of 64 pages leave time for
writes between GET and CLEAR.
"""

DESIGNS = (
    TrialDesign("parked", "faults, GET, CLEAR, teardown", "parked", _PARKED, 5),
    TrialDesign("enable", "enabling that protects", "parked", {**_PARKED, "protect_at_enable": True}, 5),
    TrialDesign("get", "GET that clears", "parked", {**_PARKED, "get_clears": True}, 5),
    TrialDesign("ring", "dirty rings", "parked", {**_PARKED, "vcpus": 1, "ring_entries": 512}, 5, modes=_RINGS),
    TrialDesign("blocks", "2 MiB blocks, enabling", "parked", {**_BLOCKS, "protect_at_enable": True}, 5),
    TrialDesign("load", "CLEAR while vCPUs write", "load", _WALK, 5, 2),
    TrialDesign("blocks-late", "2 MiB blocks, CLEAR", "sizes", _BLOCKS, 5, quick=False),
    TrialDesign(
        "sizes", "CLEAR in parts", "sizes", {**_PARKED, "vcpus": [1, 4], "chunk_pages": [64, 512]}, 5, quick=False
    ),
    TrialDesign("load-64", "CLEAR of 64 pages an ioctl", "load-64", {**_WALK, "chunk_pages": 64}, 5, 4, quick=False),
    TrialDesign(
        "load-more", "CLEAR, other numbers of vCPUs", "load-more", {**_WALK, "vcpus": [1, 2, 8]}, 5, 3, quick=False
    ),
    TrialDesign("load-get", "GET that clears", "load-get", {**_WALK, "get_clears": True}, 5, 4, quick=False),
    TrialDesign("load-ring", "dirty rings", "load-ring", {**_WALK, "ring_entries": 512}, 5, 4, _RINGS, quick=False),
)
"""All that a trial runs; `quick`: in ten minutes."""

TURNS_FROM, TURNS_TO = "kvm_arch_sync_dirty_log kvm_dirty_ring_reset", "kvm_vm_release"
"""Functions between whose calls vCPUs and the thread that clears meet: the first GET, CLEAR or reset, and the end."""

CHECK_TIMEOUT_S = 120
"""Wall time after which the boot that checks is given up, s: one that ends takes 20 to 30; others have the usual."""

_ONLY = (
    (r"arch/x86/kvm/mmu/tdp_(mmu|iter)\.[ch]", ("x86_64/npt",)),
    (r"arch/x86/kvm/mmu/(paging_tmpl\.h|page_track\.[ch])", ("x86_64/shadow",)),
    (r"arch/x86/", ("x86_64/npt", "x86_64/shadow")),
    (r"arch/arm64/", ("arm64/vhe",)),
    (r"arch/riscv/", ("riscv64/h",)),
    (r"arch/|Documentation/|tools/|MAINTAINERS", ()),
)
"""Files that only some machines are built from."""

MACHINES = ("x86_64/npt", "x86_64/shadow", "arm64/vhe", "riscv64/h")
"""What is tried, ``target/mode``."""


def machines_for(files: Iterable[str], empty: bool = False) -> tuple[str, ...]:
    """The machines whose kernels are built from some files; all of them if the series is `empty`.

    >>> machines_for(["arch/x86/kvm/mmu/tdp_mmu.c"]), machines_for(["arch/arm64/kvm/mmu.c", "MAINTAINERS"])
    (('x86_64/npt',), ('arm64/vhe',))
    >>> machines_for(["virt/kvm/kvm_main.c"]) == MACHINES
    True
    """
    touched = {machine for name in files for machine in _built_from(name)}
    return tuple(machine for machine in MACHINES if machine in touched or empty)


def _built_from(name: str) -> tuple[str, ...]:
    return next((machines for pattern, machines in _ONLY if re.match(pattern, name)), MACHINES)


def target_of(machine: str) -> Target:
    """The target of a machine.

    >>> target_of("arm64/vhe").name
    'arm64'
    """
    return TARGETS[machine.partition("/")[0]]


def designs(machine: str, quick: bool) -> Iterator[TrialDesign]:
    """What is run on a machine."""
    for design in DESIGNS:
        if (design.quick or not quick) and (not design.modes or machine in design.modes):
            yield design


def cells(machine: str, design: TrialDesign, layout: int, parameters: Mapping[str, Any], kernel: str) -> Sequence[Cell]:
    """The cells of a design for a kernel of some kind in one layout; each layout has seeds of its own.

    >>> [cell.test["seed"] for cell in cells("riscv64/h", DESIGNS[5], 1, {}, "statistics")]
    [3, 4]
    """
    target, _, mode = machine.partition("/")
    seeds = [layout * design.seeds + number + 1 for number in range(design.seeds)]
    own = {"protect_at_enable": True} if target == "riscv64" and not design.test.get("get_clears") else {}
    table = {
        "name": f"try.{target}.{mode}.{design.name}", "target": target, "mode": mode, "kernel": kernel,
        "turn_instructions": design.turn, "turns_from": TURNS_FROM, "turns_to": TURNS_TO,
        "parameters": dict(parameters), "test": {**own, **design.test, "seed": seeds},
    }  # fmt: skip
    limit = {"timeout_s": CHECK_TIMEOUT_S} if design is CHECK else {}
    return list(parse_experiment({**table, **limit}, "try").cells())
