# SPDX-License-Identifier: BSD-3-Clause
"""Targets of the lab: the compiler, kernel image, emulator and MMU modes of each architecture."""

from __future__ import annotations

from dataclasses import dataclass

from simlib._lib.errors import InputError, nearest

OLDEST_QEMU = (9, 1)
"""First QEMU version whose plugins can end a CPU's turn. Older ones let it run until a timer expires, or starve it."""

QEMU_PACKAGES_SUITE = "bookworm-backports"
"""Debian suite with a QEMU for bookworm that is new enough; bookworm itself has 7.2."""


@dataclass(frozen=True)
class KernelMode:
    """Mode in which a target's KVM translates guest addresses."""

    cpu: str
    """Argument of QEMU's ``-cpu``."""
    arguments: tuple[str, ...] = ()
    """Kernel arguments that select the mode."""


@dataclass(frozen=True)
class Target:
    """An architecture that the lab builds for and boots.

    - `name`: of the target, and of its configuration fragment in ``configs/``.
    - `kernel_arch`, `compiler`: ``ARCH=`` and ``CROSS_COMPILE=`` of the kernel's Makefiles.
    - `image`, `kvm`: path of the kernel image in the object tree, and folder of the architecture's KVM code.
    - `qemu`, `machine`, `console`: the emulator, its arguments for the board, and kernel arguments for the console.
    - `modes`: MMU modes by name; the first is the default.
    - `packages`, `qemu_packages`: Debian packages for building and for running.
    """

    name: str
    kernel_arch: str
    compiler: str
    image: str
    kvm: str
    qemu: str
    machine: tuple[str, ...]
    console: str
    modes: dict[str, KernelMode]
    packages: tuple[str, ...]
    qemu_packages: tuple[str, ...]


BUILD_PACKAGES = (
    "bc", "bison", "flex", "gcc", "libc6-dev", "libelf-dev", "libssl-dev", "make", "patch", "rsync", "sparse",
)  # fmt: skip
"""Debian packages that every kernel build needs."""

TARGETS = {
    target.name: target
    for target in (
        Target(
            name="x86_64",
            kernel_arch="x86_64",
            compiler="x86_64-linux-gnu-",
            image="arch/x86/boot/bzImage",
            kvm="arch/x86/kvm",
            qemu="qemu-system-x86_64",
            machine=("-M", "q35"),
            console="console=ttyS0 no_timer_check tsc=reliable clocksource=tsc",
            modes={
                "npt": KernelMode("max,+svm,+npt", ("kvm_amd.npt=1",)),  # nested page tables: the TDP MMU
                "shadow": KernelMode("max,+svm,+npt", ("kvm_amd.npt=0",)),  # shadow paging: the shadow MMU
            },
            packages=BUILD_PACKAGES,
            qemu_packages=("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"),
        ),
        Target(
            name="arm64",
            kernel_arch="arm64",
            compiler="aarch64-linux-gnu-",
            image="arch/arm64/boot/Image",
            kvm="arch/arm64/kvm",
            qemu="qemu-system-aarch64",
            machine=("-M", "virt,virtualization=on,gic-version=3"),
            console="console=ttyAMA0",
            modes={
                "vhe": KernelMode("cortex-a76"),  # the host kernel runs at EL2
                "nvhe": KernelMode("cortex-a57"),  # the host kernel runs at EL1, KVM's own code at EL2
            },
            packages=(*BUILD_PACKAGES, "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
            qemu_packages=("qemu-system-arm", "qemu-system-common", "qemu-system-data"),
        ),
        Target(
            name="riscv64",
            kernel_arch="riscv",
            compiler="riscv64-linux-gnu-",
            image="arch/riscv/boot/Image",
            kvm="arch/riscv/kvm",
            qemu="qemu-system-riscv64",
            machine=("-M", "virt"),
            console="console=ttyS0",
            modes={"h": KernelMode("rv64,h=true")},
            packages=(*BUILD_PACKAGES, "gcc-riscv64-linux-gnu", "libc6-dev-riscv64-cross"),
            qemu_packages=("qemu-system-riscv", "qemu-system-common", "qemu-system-data", "opensbi"),
        ),
    )
}
"""Targets by name. LoongArch and s390x are absent, because TCG does not emulate their virtualisation extensions."""


def find_target(name: str) -> Target:
    """Look up a target. Raises `InputError` for an unknown name."""
    if name not in TARGETS:
        raise InputError("architecture", name, "the lab cannot emulate it", nearest(name, TARGETS))
    return TARGETS[name]
