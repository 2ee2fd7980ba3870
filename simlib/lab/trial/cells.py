# SPDX-License-Identifier: BSD-3-Clause
"""The cells that a trial runs, as data: operations, MMU modes, layouts and seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simlib.lab.experiment import Cell, parse_experiment
from simlib.lab.targets import TARGETS, Target


@dataclass(frozen=True)
class TrialDesign:
    """Cells with common options.

    - `boot`: name of the boot; designs with the same name run in one boot, one after the other.
    - `test`: options of the test; a list is a dimension of the matrix.
    - `layouts`, `seeds`: numbers of layouts of each kernel, and of seeds for each layout.
    - `modes`: MMU modes, ``target/mode``, in which it is run; empty: all.
    - `quick`: True if the small matrix includes it.
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
        """Mean length of a CPU's turn, instructions: short if vCPUs contend with the thread that clears."""
        return 2000 if self.test.get("parked") else 200


_LOAD = {"vcpus": 4, "memory_per_vcpu": "2M", "rounds": 2, "flush_accesses": 64}
_PARKED = {**_LOAD, "vcpus": 2, "memory_per_vcpu": "4M", "parked": True}
_HUGE = {"vcpus": 1, "memory_per_vcpu": "16M", "rounds": 1, "flush_accesses": 64, "parked": True,
         "backing": "anonymous_thp"}  # fmt: skip
_SIZES, _MORE_VCPUS = {**_PARKED, "vcpus": [1, 4], "chunk_pages": [64, 512]}, {**_LOAD, "vcpus": [1, 2, 8]}
_RINGS = ("x86_64/npt", "x86_64/shadow", "arm64/vhe")

CHECK = TrialDesign(
    "check", "no write is lost", "check",
    {"vcpus": 4, "memory_per_vcpu": "512K", "access": "random", "pause_us": 100, "chunk_pages": [0, 64], "rounds": 32,
     "check": True}, 1,
)  # fmt: skip
"""Test that a kernel has to pass before it is measured.

Rounds are short, so that bitmap words are partly dirty, and a vCPU writes a page again before it leaves the guest.
Longer rounds do not detect a kernel that clears one bit too many or omits a TLB flush (`make lab-control`). Chunks of
64 pages leave time for writes between GET and CLEAR.
"""

DESIGNS = (
    TrialDesign("parked", "faults, GET, CLEAR, teardown", "parked", _PARKED, 5),
    TrialDesign("enable", "enabling write-protects", "parked", {**_PARKED, "protect_at_enable": True}, 5),
    TrialDesign("get", "GET that clears", "parked", {**_PARKED, "get_clears": True}, 5),
    TrialDesign("ring", "dirty rings", "parked", {**_PARKED, "vcpus": 1, "ring_entries": 512}, 5, modes=_RINGS),
    TrialDesign("blocks", "2 MiB mappings, enabling", "parked", {**_HUGE, "protect_at_enable": True}, 5),
    TrialDesign("load", "CLEAR while vCPUs write", "load", _LOAD, 5, 2),
    TrialDesign("blocks-late", "2 MiB mappings, CLEAR", "sizes", _HUGE, 5, quick=False),
    TrialDesign("sizes", "CLEAR in parts", "sizes", _SIZES, 5, quick=False),
    TrialDesign("load-64", "CLEAR of 64 pages per ioctl", "load-64", {**_LOAD, "chunk_pages": 64}, 5, 4, quick=False),
    TrialDesign("load-more", "CLEAR, other numbers of vCPUs", "load-more", _MORE_VCPUS, 5, 3, quick=False),
    TrialDesign("load-get", "GET that clears", "load-get", {**_LOAD, "get_clears": True}, 5, 4, quick=False),
    TrialDesign("load-ring", "dirty rings", "load-ring", {**_LOAD, "ring_entries": 512}, 5, 4, _RINGS, quick=False),
)
"""Designs of a trial; those with `quick` take ten minutes."""

TURNS_FROM, TURNS_TO = "kvm_arch_sync_dirty_log kvm_dirty_ring_reset", "kvm_vm_release"
"""Functions whose calls begin and end the contention of vCPUs with the thread that clears."""

_MODES_OF_FILES = (
    (r"arch/x86/kvm/mmu/tdp_(mmu|iter)\.[ch]", ("x86_64/npt",)),
    (r"arch/x86/kvm/mmu/(paging_tmpl\.h|page_track\.[ch])", ("x86_64/shadow",)),
    (r"arch/x86/", ("x86_64/npt", "x86_64/shadow")),
    (r"arch/arm64/", ("arm64/vhe",)),
    (r"arch/riscv/", ("riscv64/h",)),
    (r"arch/|Documentation/|tools/|MAINTAINERS", ()),
)
"""MMU modes that use a file, by patterns of its path: the first match counts; all modes use a file without a match."""

MMU_MODES = ("x86_64/npt", "x86_64/shadow", "arm64/vhe", "riscv64/h")


def mmu_modes_for(files: Iterable[str], empty: bool = False) -> tuple[str, ...]:
    """MMU modes that use at least one of the given files; all modes for an `empty` series.

    >>> mmu_modes_for(["arch/x86/kvm/mmu/tdp_mmu.c"]), mmu_modes_for(["arch/arm64/kvm/mmu.c", "MAINTAINERS"])
    (('x86_64/npt',), ('arm64/vhe',))
    >>> mmu_modes_for(["virt/kvm/kvm_main.c"]) == MMU_MODES
    True
    """
    touched = {mode for name in files for mode in _modes_of_file(name)}
    return tuple(mode for mode in MMU_MODES if mode in touched or empty)


def _modes_of_file(name: str) -> tuple[str, ...]:
    return next((modes for pattern, modes in _MODES_OF_FILES if re.match(pattern, name)), MMU_MODES)


def target_of(mmu_mode: str) -> Target:
    """Target of an MMU mode.

    >>> target_of("arm64/vhe").name
    'arm64'
    """
    return TARGETS[mmu_mode.partition("/")[0]]


def designs(mmu_mode: str, quick: bool) -> Iterator[TrialDesign]:
    """Iterate over the designs that are run in an MMU mode."""
    for design in DESIGNS:
        if (design.quick or not quick) and (not design.modes or mmu_mode in design.modes):
            yield design


def cells(mmu_mode: str, design: TrialDesign, layout: int, parameters: Mapping[str, Any], kernel: str) -> list[Cell]:
    """Cells of a design for one layout of a kernel; each layout has its own seeds.

    - `parameters`: of the module kvm.
    - `kernel`: its kind, of `simlib.lab.build.KERNELS`.

    >>> [cell.test["seed"] for cell in cells("riscv64/h", DESIGNS[5], 1, {}, "statistics")]
    [3, 4]
    """
    target, _, mode = mmu_mode.partition("/")
    seeds = [layout * design.seeds + number + 1 for number in range(design.seeds)]
    protection = {"protect_at_enable": True} if target == "riscv64" and not design.test.get("get_clears") else {}
    table = {
        "name": f"try.{target}.{mode}.{design.name}", "target": target, "mode": mode, "kernel": kernel,
        "turn_instructions": design.turn, "turns_from": TURNS_FROM, "turns_to": TURNS_TO,
        "parameters": dict(parameters), "test": {**protection, **design.test, "seed": seeds},
    }  # fmt: skip
    limit = {"timeout_s": 120} if design is CHECK else {}  # its boot takes 20 to 30 s
    return list(parse_experiment({**table, **limit}, "try").cells())
