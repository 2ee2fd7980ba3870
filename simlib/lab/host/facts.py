# SPDX-License-Identifier: BSD-3-Clause
"""What a host is: its CPUs, its kernel, and how its KVM translates guest addresses. Nothing is changed to find out."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError
from simlib.lab.native import cpu_model

KVM_PARAMETERS = (
    "tdp_mmu", "eager_page_split", "nx_huge_pages", "ept", "npt", "pml", "dirty_log_clear_batch", "vgic_mode",
)  # fmt: skip
"""Parameters of KVM's modules that decide how it logs; others are not kept."""

VENDORS = ("kvm_intel", "kvm_amd", "kvm_pvm")
"""Modules of x86 that run guests; the first that is loaded is the one."""


@dataclass(frozen=True)
class HostFacts:
    """A host, as far as its kernel tells."""

    machine: str
    """As ``uname -m`` says."""
    kernel: str
    """As ``uname -r`` says."""
    cpu: str
    """Model name."""
    cpus: tuple[int, ...]
    """Numbers of the CPUs that may be used."""
    cores: int
    sockets: int
    threads_per_core: int
    """Of these: cores, sockets, and most threads of a core."""
    nodes: Mapping[str, tuple[int, ...]]
    """Those CPUs by NUMA node."""
    memory_bytes: int
    governor: str
    """Frequency policy of the first CPU; "not stated" without one."""
    hypervisor: bool
    """Whether the host is itself a guest, as far as it can tell."""
    transparent_huge_pages: str
    """always, madvise, never, or "not stated"."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """KVM's modules' parameters that decide how it logs, as ``module.parameter``."""
    architecture: str = ""
    """Name in `simlib.model.architectures`: how its KVM takes mmu_lock."""
    page_tables: str = ""
    """The same in words."""
    patched: bool = False
    """Whether the kernel has the patch series of ``kernel-patches/``."""

    def as_dict(self) -> dict[str, Any]:
        """The facts as JSON holds them."""
        return {**asdict(self), "cpus": list(self.cpus), "nodes": {name: list(own) for name, own in self.nodes.items()}}


def read_facts(cpus: Sequence[int], root: Path = Path("/")) -> HostFacts:
    """Look at a host.

    - `cpus`: numbers of the CPUs that are to be used.
    - `root`: where its ``proc`` and ``sys`` lie.
    """
    system = root / "sys"
    places = {cpu: _place(system, cpu) for cpu in cpus}
    cores = set(places.values())
    modules = _modules(system)
    machine, kernel = platform.machine(), platform.release()
    architecture, words = page_tables(machine, kernel, modules)
    info = _text(root / "proc/cpuinfo")
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    chosen = re.search(r"\[(\w+)\]", _text(system / "kernel/mm/transparent_hugepage/enabled"))
    return HostFacts(
        machine=machine,
        kernel=kernel,
        cpu=cpu_model(info),
        cpus=tuple(cpus),
        cores=len(cores),
        sockets=len({socket for socket, _ in cores}),
        threads_per_core=max(list(places.values()).count(core) for core in cores),
        nodes=_nodes(system, cpus),
        memory_bytes=int(memory[1]) * 1024 if memory else 0,
        governor=_text(system / f"devices/system/cpu/cpu{cpus[0]}/cpufreq/scaling_governor") or "not stated",
        hypervisor=" hypervisor" in info or (system / "hypervisor/type").exists(),
        transparent_huge_pages=chosen[1] if chosen else "not stated",
        modules=modules,
        architecture=architecture,
        page_tables=words,
        patched="kvm.dirty_log_clear_batch" in modules,
    )


def tracking_here(root: Path = Path("/")) -> str:
    """How this machine's KVM learns of writes (`tracking_of`); `root`: where its ``sys`` lies."""
    return tracking_of(_modules(root / "sys"))


def tracking_of(modules: Mapping[str, str]) -> str:
    """How KVM learns of writes (`simlib.model.architectures.TRACKING`); empty if its modules do not say.

    AMD's has no PML before September 2026. Source: arch/x86/kvm/vmx/vmx.c enable_pml, kvm_amd's parameter ``pml``.

    >>> tracking_of({"kvm_intel.pml": "Y"}), tracking_of({"kvm_amd.npt": "Y"}), tracking_of({})
    ('pml', 'write_protect', '')
    """
    said = modules.get("kvm_intel.pml", modules.get("kvm_amd.pml", ""))
    if said:
        return "pml" if said in ("Y", "1") else "write_protect"
    return "write_protect" if any(name.startswith("kvm_amd.") for name in modules) else ""


def page_tables(machine: str, kernel: str, modules: Mapping[str, str]) -> tuple[str, str]:
    """How a host's KVM takes mmu_lock, by the name of `simlib.model.architectures`, and in words.

    Sources: arch/x86/kvm/mmu/mmu.c kvm_configure_mmu and is_tdp_mmu_enabled; arm64 takes an rwlock since 5.18 and
    handles all faults under its read lock since 6.2 (arch/arm64/kvm/mmu.c user_mem_abort); riscv took a spinlock at
    least until 6.12.

    Raises `InputError` if the machine is none that is modelled, or its KVM does not say.
    """
    version = kernel_version(kernel)
    if machine == "x86_64":
        return _x86(modules)
    if machine == "aarch64":
        name = "arm64" if version >= (6, 2) else "arm64-2022" if version >= (5, 18) else "arm64-spinlock"
        return name, f"stage 2, as of Linux {version[0]}.{version[1]}"
    if machine == "riscv64":
        name = "riscv-spinlock" if version < (7, 0) else "riscv"
        return name, f"G-stage, as of Linux {version[0]}.{version[1]}"
    raise InputError("this host", machine, "is not modelled", "known: x86_64, aarch64, riscv64")


def kernel_version(release: str) -> tuple[int, int]:
    """The first two numbers of a release.

    >>> kernel_version("6.18.44-generic")
    (6, 18)
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None:
        raise InputError("kernel", release, "has no version", "it must begin as 6.12 does")
    return int(found[1]), int(found[2])


def _x86(modules: Mapping[str, str]) -> tuple[str, str]:
    """Two-dimensional paging with one of its two MMUs, or shadow paging."""
    for vendor, switch, name in (("kvm_intel", "ept", "EPT"), ("kvm_amd", "npt", "NPT")):
        if vendor in modules:
            if modules.get(f"{vendor}.{switch}", "Y") in ("N", "0"):
                return "x86-shadow-paging", f"shadow paging ({name} is off)"
            if modules.get("kvm.tdp_mmu", "Y") == "N":
                return "x86-shadow", f"two-dimensional paging ({name}), shadow MMU"
            return "x86-tdp", f"two-dimensional paging ({name}), TDP MMU"
    if "kvm_pvm" in modules:
        return "x86-shadow-paging", "shadow paging (PVM: guests run without virtualisation hardware)"
    raise InputError("this host", "x86_64", f"none of {', '.join(VENDORS)} is loaded", "load the one of its vendor")


def _modules(system: Path) -> dict[str, str]:
    """KVM's modules that are there, and those of their parameters that decide how it logs."""
    found = {}
    for module in ("kvm", *VENDORS):
        folder = system / "module" / module
        if not folder.is_dir():
            continue
        found[module] = _text(folder / "version")
        for name in KVM_PARAMETERS:
            if value := _text(folder / "parameters" / name):
                found[f"{module}.{name}"] = value
    return found


def _place(system: Path, cpu: int) -> tuple[int, int]:
    """Socket and core of a CPU; a core of its own where nothing is said."""
    folder = system / f"devices/system/cpu/cpu{cpu}/topology"
    socket, core = (_text(folder / name) for name in ("physical_package_id", "core_id"))
    return (max(int(socket), 0) if socket else 0, int(core) if core else cpu)


def _nodes(system: Path, cpus: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """CPUs by NUMA node; one node where the kernel knows none."""
    found = {}
    for folder in sorted((system / "devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        own = tuple(cpu for cpu in parse_cpus(_text(folder / "cpulist")) if cpu in cpus)
        if own:
            found[folder.name[4:]] = own
    return found or {"0": tuple(cpus)}


def parse_cpus(text: str) -> tuple[int, ...]:
    """Numbers of CPUs, as the kernel and taskset write them."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise InputError("CPUs", text, "must be numbers and ranges", "write 0-3,8", flag="--cpus")
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(numbers))


def _text(path: Path) -> str:
    """What a file says; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""
