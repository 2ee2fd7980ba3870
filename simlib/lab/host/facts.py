# SPDX-License-Identifier: BSD-3-Clause
"""Facts about a host, read without changing it: its CPUs, its kernel, and how its KVM translates guest addresses."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError
from simlib.lab.native import cpu_model

KVM_PARAMETERS = ("tdp_mmu", "eager_page_split", "nx_huge_pages", "ept", "npt", "pml", "dirty_log_clear_batch")
"""Parameters of KVM's modules that are recorded."""

VENDORS = ("kvm_intel", "kvm_amd", "kvm_pvm")
"""KVM's x86 modules that run guests; the facts are those of the first one that is loaded."""


@dataclass(frozen=True)
class HostFacts:
    """A host, as its kernel describes it."""

    machine: str
    kernel: str
    cpu: str
    cpus: tuple[int, ...]
    """Numbers of the CPUs to use."""
    cores: int
    sockets: int
    threads_per_core: int
    """Numbers of cores and sockets of these CPUs, and maximum number of threads per core."""
    nodes: Mapping[str, tuple[int, ...]]
    """These CPUs by NUMA node."""
    memory_bytes: int
    governor: str
    """cpufreq governor of the first CPU; "not stated" if there is none."""
    hypervisor: bool
    """True if the host is itself a guest, as its CPU flags or sysfs report."""
    transparent_huge_pages: str
    """Setting of transparent huge pages: always, madvise, never, or "not stated"."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Parameters of KVM's modules that affect dirty logging, as ``module.parameter``."""
    architecture: str = ""
    """Name in `simlib.model.architectures`, which determines how KVM takes mmu_lock."""
    page_tables: str = ""
    patched: bool = False
    """True if the kernel has the patch series of ``kernel-patches/``."""

    def as_dict(self) -> dict[str, Any]:
        """The facts for a JSON file."""
        nodes = {name: list(cpus) for name, cpus in self.nodes.items()}
        return {**asdict(self), "cpus": list(self.cpus), "nodes": nodes}


def read_facts(cpus: Sequence[int], root: Path = Path("/")) -> HostFacts:
    """Read the facts of a host.

    - `cpus`: numbers of the CPUs to use.
    - `root`: folder of ``proc`` and ``sys``.
    """
    system = root / "sys"
    topology = {cpu: _topology(system, cpu) for cpu in cpus}
    cores = set(topology.values())
    modules = _modules(system)
    machine, kernel = platform.machine(), platform.release()
    architecture, description = page_tables(machine, kernel, modules)
    cpuinfo = _read_text(root / "proc/cpuinfo")
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _read_text(root / "proc/meminfo"), re.MULTILINE)
    huge_pages = re.search(r"\[(\w+)\]", _read_text(system / "kernel/mm/transparent_hugepage/enabled"))
    return HostFacts(
        machine=machine,
        kernel=kernel,
        cpu=cpu_model(cpuinfo),
        cpus=tuple(cpus),
        cores=len(cores),
        sockets=len({socket for socket, _ in cores}),
        threads_per_core=max(list(topology.values()).count(core) for core in cores),
        nodes=_nodes(system, cpus),
        memory_bytes=int(memory[1]) * 1024 if memory else 0,
        governor=_read_text(system / f"devices/system/cpu/cpu{cpus[0]}/cpufreq/scaling_governor") or "not stated",
        hypervisor=" hypervisor" in cpuinfo or (system / "hypervisor/type").exists(),
        transparent_huge_pages=huge_pages[1] if huge_pages else "not stated",
        modules=modules,
        architecture=architecture,
        page_tables=description,
        patched="kvm.dirty_log_clear_batch" in modules,
    )


def detect_dirty_tracking(root: Path = Path("/")) -> str:
    """Detect how this host's KVM tracks writes (`dirty_tracking_of`); `root`: folder of ``sys``."""
    return dirty_tracking_of(_modules(root / "sys"))


def dirty_tracking_of(modules: Mapping[str, str]) -> str:
    """Return how KVM tracks writes (`simlib.model.architectures.TRACKING`); empty if no module reports it.

    KVM has supported PML on AMD since September 2026. Sources: arch/x86/kvm/vmx/vmx.c enable_pml; kvm_amd.pml.

    >>> [dirty_tracking_of(modules) for modules in ({"kvm_intel.pml": "Y"}, {"kvm_amd.npt": "Y"}, {})]
    ['pml', 'write_protect', '']
    """
    pml = modules.get("kvm_intel.pml", modules.get("kvm_amd.pml", ""))
    if pml:
        return "pml" if pml in ("Y", "1") else "write_protect"
    return "write_protect" if any(name.startswith("kvm_amd.") for name in modules) else ""


def page_tables(machine: str, kernel: str, modules: Mapping[str, str]) -> tuple[str, str]:
    """Determine the architecture of `simlib.model.architectures` that matches a host's KVM, with a description.

    Sources: arch/x86/kvm/mmu/mmu.c kvm_configure_mmu and is_tdp_mmu_enabled; arm64 has taken an rwlock since 5.18 and
    handled all faults under its read lock since 6.2 (arch/arm64/kvm/mmu.c user_mem_abort); riscv took a spinlock at
    least until 6.12.

    Raises `InputError` if the machine is not modelled, or no module of KVM for x86 is loaded.
    """
    version = kernel_version(kernel)
    if machine == "x86_64":
        return _x86(modules)
    if machine == "aarch64":
        name = "arm64" if version >= (6, 2) else "arm64-2022" if version >= (5, 18) else "arm64-spinlock"
        return name, f"stage 2, as in Linux {version[0]}.{version[1]}"
    if machine == "riscv64":
        name = "riscv-spinlock" if version < (7, 0) else "riscv"
        return name, f"G-stage, as in Linux {version[0]}.{version[1]}"
    raise InputError("this host", machine, "is not modelled", "supported: x86_64, aarch64, riscv64")


def kernel_version(release: str) -> tuple[int, int]:
    """Return the first two numbers of a kernel release.

    >>> kernel_version("6.18.44-generic")
    (6, 18)
    """
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None:
        raise InputError("kernel", release, "has no version", "it must begin with a version such as 6.12")
    return int(match[1]), int(match[2])


def _x86(modules: Mapping[str, str]) -> tuple[str, str]:
    """Distinguish two-dimensional paging (TDP MMU or shadow MMU) from shadow paging."""
    for vendor, switch, name in (("kvm_intel", "ept", "EPT"), ("kvm_amd", "npt", "NPT")):
        if vendor in modules:
            if modules.get(f"{vendor}.{switch}", "Y") in ("N", "0"):
                return "x86-shadow-paging", f"shadow paging ({name} is off)"
            if modules.get("kvm.tdp_mmu", "Y") == "N":
                return "x86-shadow", f"two-dimensional paging ({name}), shadow MMU"
            return "x86-tdp", f"two-dimensional paging ({name}), TDP MMU"
    if "kvm_pvm" in modules:
        return "x86-shadow-paging", "shadow paging (PVM: guests run without virtualisation hardware)"
    rule = f"needs one of the modules {', '.join(VENDORS)}"
    raise InputError("this host", "x86_64", rule, "load the module of the CPU's vendor")


def _modules(system: Path) -> dict[str, str]:
    """Versions of KVM's loaded modules, and their parameters that affect dirty logging."""
    modules = {}
    for module in ("kvm", *VENDORS):
        folder = system / "module" / module
        if not folder.is_dir():
            continue
        modules[module] = _read_text(folder / "version")
        for name in KVM_PARAMETERS:
            if value := _read_text(folder / "parameters" / name):
                modules[f"{module}.{name}"] = value
    return modules


def _topology(system: Path, cpu: int) -> tuple[int, int]:
    """Socket and core of a CPU; without topology in sysfs, socket 0 and a separate core."""
    folder = system / f"devices/system/cpu/cpu{cpu}/topology"
    socket, core = (_read_text(folder / name) for name in ("physical_package_id", "core_id"))
    return (max(int(socket), 0) if socket else 0, int(core) if core else cpu)


def _nodes(system: Path, cpus: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """CPUs by NUMA node; a single node if the kernel reports none."""
    nodes = {}
    for folder in sorted((system / "devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        local = tuple(cpu for cpu in parse_cpus(_read_text(folder / "cpulist")) if cpu in cpus)
        if local:
            nodes[folder.name[4:]] = local
    return nodes or {"0": tuple(cpus)}


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse a list of CPUs, as the kernel and taskset write it.

    Raises `InputError` if it is not a list of numbers and ranges.
    """
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError("CPUs", text, "must be numbers and ranges", "write 0-3,8", flag="--cpus")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(numbers))


def _read_text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""
