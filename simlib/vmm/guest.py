# SPDX-License-Identifier: BSD-3-Clause
"""A running guest, as QEMU's replies or options describe it.

Memory is in bytes, bandwidth in bit/s, and dirty rates are in pages and seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simlib._lib.errors import InputError, nearest
from simlib.model.architectures import architecture
from simlib.model.quantities import format_bandwidth, size_text
from simlib.vmm import qemu_rules
from simlib.vmm.dirtying import DirtyingGuess, DirtyRate, with_zeros
from simlib.vmm.memory import LinkModel, WorkingSet
from simlib.vmm.population import log_uniform, sample_guests
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.samples import MigrationSample
from simlib.vmm.settings import PERIODIC_SINCE, QEMU_BEFORE_9_2, VMMS, Settings, Vmm

ARCHITECTURE = "x86-tdp"
"""Architecture that is assumed if the host's architecture is not known."""

_PAYLOAD = (0.94, 0.99)
"""Share of a link's bandwidth that remains after Ethernet, IP and TCP headers, with frames of 1500 to 9000 bytes."""

STREAM_BITS = (4e9, 20e9)
"""Throughput of one migration stream of QEMU, which one thread sends, bit/s. A prior; we know of no source."""

_MISSED_LIMIT, _MISSED_LINK = 0.2, 0.4
"""Largest share of max-bandwidth, and of a link, that a migration misses; usually it misses little. A prior."""

_SAME = (0.95, 1.05)
"""Ratio of the throughput of a migration to that which it, or another one of the guest, has reached. A prior."""

_MODEL_SPREAD = 0.15
"""Standard deviation of the logarithm of the rate of writes, if the user gives a working-set model. A prior."""

_CPU = (0.1, 1.0)
"""Use of a vCPU that is not known, as a share of its time. A prior."""

_FULL, _FULL_ZEROS, _ZEROS = 0.5, (0.0, 0.1), (0.1, 0.95)
"""Share of the guests whose memory is nearly full of data, as that of one with a page cache is after some time; and
share of the pages of zeros in the memory that such a guest, and another, does not write. A prior."""

_OWN_BYTES = {False: (20e6, 100e6), True: (100e6, 160e6)}
"""Resident memory of QEMU apart from the guest's memory, bytes: with KVM, and with TCG, which also has the translated
code. A prior."""

_RESIDENT_ZEROS = (0.0, 0.1)
"""Share of the resident memory that consists of pages of zeros, which the guest's kernel has cleared. A prior."""

_ZERO_SCAN = (8e9, 20e9)
"""Speed at which one thread of QEMU finds that pages are zero, bytes/s: a guest of 1 TiB with 1007.6 GiB of zeros took
72 to 83 s (J. Quintela, 2 Aug 2022, 20220802063907.18882-1-quintela@redhat.com). A prior."""

_FAULT_S = (0.3e-6, 4e-6)
"""Time that a vCPU needs to log a page: an entry of the PML buffer, or a write-protection fault, s. A prior."""

_WAIT_S = (0.3e-3, 6e-3)
"""Time from a fault after the switch to post-copy to the arrival of its page, s: a prior, which includes the time for
pages that are queued before it."""

_SWITCH_S = (0.005, 0.1)
"""Downtime apart from the time to send memory, s: stopping, saving and starting devices. A prior."""

SWITCH_MOST_S = _SWITCH_S[0] * (_SWITCH_S[1] / _SWITCH_S[0]) ** 0.95
"""95th percentile of `_SWITCH_S`, s."""

_LATE_S = (5e-5, 5e-4)
"""Time by which a throttled vCPU oversleeps, s: at least Linux's timer slack (PR_SET_TIMERSLACK). A prior."""

_DIRTY_HINT = "run calc-dirty-rate for 1, 10 and 60 s (docs/migrate.md), and give each as --dirty '250000/s in 10s'"


class GuestSample(NamedTuple):
    """A guest and a link that are consistent with the known values.

    - `pages`: working set.
    - `bits`: bandwidth of the link without headers, `stream_bits`: throughput of one stream, bit/s.
    - `vmm`: the VMM's rules.
    - `limit_share`: share of max-bandwidth that is reached. `zero_s`: time to scan a page of zeros, s.
    - `switch_s`: downtime apart from the time to send memory. `late_s`: time by which a throttled vCPU oversleeps.
    - `fault_s`: time that a vCPU needs to log a page. `wait_s`: time that a fault waits after the switch to post-copy.
    """

    pages: WorkingSet
    vmm: Vmm
    bits: float
    stream_bits: float
    limit_share: float
    zero_s: float
    switch_s: float
    late_s: float
    fault_s: float
    wait_s: float


@dataclass(frozen=True)
class RunningGuest:
    """A guest that runs under QEMU or another VMM. A value that is not known is 0 or empty.

    - `vcpus`: number of vCPUs. `memory`: bytes that a migration sends, including the display's and the firmware's
      memory.
    - `link`: bandwidth that the migration may use, bit/s. `reached`: True if it is the throughput that one has reached.
    - `dirty`: the guest's writes: several `DirtyRate`, the newest last, or one `DirtyingGuess`.
    - `cpu`: mean use of a vCPU, as a share of its time (1: always busy).
    - `resident`: resident memory of the VMM's process, bytes.
    - `zeros`: memory that consists of pages of zeros, bytes; None if not known.
    - `channel`: throughput of one stream or multifd channel, bit/s.
    - `running`: states of a migration that runs or has ended, the newest last.
    - `settings`: migration settings that are in force.
    - `architecture`: a name of `simlib.model.architectures`. `dirty_tracking`: mechanism by which the host logs writes;
      the default is that of `simlib.preset_scenario` for the architecture (PML on x86).
    - `ring_entries`: size of each vCPU's dirty ring; 0: QEMU uses the dirty bitmap.
    - `chunk`: memory that one CLEAR covers, bytes (QEMU's x-clear-bitmap-shift).
    - `vmm`: a name of `simlib.vmm.settings.VMMS`. `version`: first two numbers of QEMU's version; None
      if not known. `emulated`: True if QEMU runs the guest without KVM (TCG).
    - `emit`: output format of the tool whose log describes the guest; empty if it is not known.
    - `names`: names of the guest and the destination, by placeholder (`simlib.vmm.logs.names`).
    - `notes`: sources of the numbers. `missing`: why a number is not known, by the name of its option.

    Raises `InputError` if a value is impossible, or contradicts another.
    """

    vcpus: int = 0
    memory: int = 0
    link: int = 0
    dirty: tuple[DirtyRate | DirtyingGuess, ...] = ()
    cpu: float = 0.0
    resident: int = 0
    zeros: int | None = None
    reached: bool = False
    channel: int = 0
    running: tuple[MigrationSample, ...] = ()
    settings: Settings = field(default_factory=lambda: Settings(max_bandwidth=0))
    architecture: str = ""
    dirty_tracking: str = ""
    ring_entries: int = 0
    chunk: int = 2**30
    vmm: str = "qemu"
    version: tuple[int, int] | None = None
    emulated: bool = False
    emit: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("vcpus", "memory", "link"):
            value = getattr(self, name)
            if value < 0:
                raise InputError(name, value, "must not be negative", _HINTS[name], flag=f"--{name}")
        if not 0 <= self.cpu <= 1:
            rule, hint = "must be a share of the time from 0 to 100 %", "give the mean of the vCPUs, such as --cpu 20%"
            raise InputError("cpu", f"{self.cpu:.0%}", rule, hint, flag="--cpu")
        self._check_vmm()
        self._check_host()
        if len(self.dirty) > 1 and any(isinstance(rate, DirtyingGuess) for rate in self.dirty):
            rule = "a working-set model cannot be combined with measured rates"
            raise InputError("dirty", "several", rule, "give the model or the rates", flag="--dirty")

    def check_complete(self) -> None:
        """Raise `InputError` if a value on which the migration depends is not known."""
        for name, hint in _HINTS.items():
            value = getattr(self, name)
            if not (value if name != "dirty" else self.written):
                raise InputError(name, "nothing", "must be given by QEMU's replies or by an option", hint,
                                 flag=f"--{name}")  # fmt: skip
        self.settings.check()

    def _check_vmm(self) -> None:
        if self.vmm not in VMMS:
            raise InputError("vmm", self.vmm, "must be a modelled VMM", nearest(self.vmm, VMMS), flag="--emit")
        if self.vmm == "cloud-hypervisor" and self.ring_entries:
            rule = "Cloud Hypervisor has no dirty rings"
            raise InputError("ring", self.ring_entries, rule, "do not give a ring size", flag="--ring")
        known = VMMS[self.vmm].settings
        for name, value in self.settings.changes_from(Settings(max_bandwidth=0)).items():
            if known is not None and name not in known:
                rule, hint = f"is not a setting of {self.vmm}", f"use one of {', '.join(sorted(known))}"
                raise InputError(name, value, rule, hint, flag="--current")

    def _check_host(self) -> None:
        facts = architecture(self.architecture or ARCHITECTURE)
        if self.dirty_tracking and self.dirty_tracking not in facts.dirty_tracking:
            rule, hint = f"is not available on {facts.name}", f"use one of {', '.join(facts.dirty_tracking)}"
            raise InputError("dirty_tracking", self.dirty_tracking, rule, hint, flag="--dirty-tracking")
        entries = self.ring_entries
        if entries and (entries & (entries - 1) or not 128 <= entries <= 65536):
            rule = "must be a power of two from 128 to 65536"
            raise InputError("ring", entries, rule, "QEMU's default is 4096", flag="--ring")
        if self.chunk < 2**21 or self.chunk & (self.chunk - 1):
            rule = "must be a power of two of at least 2 MiB"
            raise InputError("chunk", size_text(self.chunk), rule, "QEMU's default is 1G", flag="--chunk")

    @property
    def pages(self) -> float:
        """Number of pages in the guest's memory."""
        return self.memory / PAGE

    @property
    def written(self) -> tuple[DirtyRate | DirtyingGuess, ...]:
        """Rates in `dirty` that may be above 0; QEMU reports rates below 1 MiB/s as 0."""
        return tuple(rate for rate in self.dirty if isinstance(rate, DirtyingGuess) or rate.pages + rate.rounding > 0)

    @property
    def description(self) -> str:
        """The guest's size, link and writes, as a string."""
        size, rates = size_text(self.memory), "; ".join(rate.description for rate in self.dirty)
        return f"{self.vcpus} vCPU{'s' * (self.vcpus != 1)}, {size}, {format_bandwidth(self.link)}; {rates}"

    def samples(self, count: int, seed: int = 1) -> list[GuestSample]:
        """Sample guests and links that are consistent with the known values.

        Raises `InputError` if more pages were dirtied than the memory has.
        """
        random = np.random.default_rng([17, seed])
        first = self.dirty[0]
        if isinstance(first, DirtyingGuess):
            pages = first.pages(self.pages)
            spread = np.exp(_MODEL_SPREAD * random.standard_normal(count))
            sampled = [pages._replace(rate=pages.rate * factor) for factor in spread]
        else:
            rates = [rate for rate in self.written if isinstance(rate, DirtyRate)]
            sampled = sample_guests(rates, self.pages, count, random, self._most_written(rates))
        return [self._sample(pages, random) for pages in sampled]

    def _most_written(self, rates: Sequence[DirtyRate]) -> float:
        """Number of pages that may be written: those with contents, and those that were zeros and are written since."""
        if self.resident:
            return min(self.pages, self.resident / PAGE)
        return max(self.pages - (self.zeros or 0) / PAGE, *(rate.pages for rate in rates))

    def _sample(self, pages: WorkingSet, random: np.random.Generator) -> GuestSample:
        """Sample what the measured dirty rates do not determine."""
        cpu = self.cpu or random.uniform(*_CPU)
        if random.random() < 0.5:  # some vCPUs do more than others
            cpu *= max(1, self.vcpus) ** random.random()
        active = pages.burst_s / (pages.burst_s + pages.pause_s) if pages.pause_s else 1.0
        pages = pages._replace(cpu=min(1.0, cpu / active))
        bits = self.link * self._link_share(random)
        reached = bits / self.settings.streams if self.reached else 0.0
        return GuestSample(
            pages=with_zeros(pages, self._zero_pages(float(pages.number[-1]), random)),
            vmm=self._sample_vmm(random),
            bits=bits,
            stream_bits=self.channel or max(reached, float(log_uniform(random, STREAM_BITS))),
            limit_share=_reached(_MISSED_LIMIT, random),
            zero_s=PAGE / float(log_uniform(random, _ZERO_SCAN)),
            switch_s=float(log_uniform(random, _SWITCH_S)),
            late_s=float(log_uniform(random, _LATE_S)),
            fault_s=float(log_uniform(random, _FAULT_S)),
            wait_s=float(log_uniform(random, _WAIT_S)),
        )

    def _link_share(self, random: np.random.Generator) -> float:
        """Sample the share of the bandwidth that sends memory."""
        if self.reached:
            return float(random.uniform(*_SAME))
        return float(random.uniform(*_PAYLOAD) * _reached(_MISSED_LINK, random))

    def _sample_vmm(self, random: np.random.Generator) -> Vmm:
        """Sample the rules of the VMM; if the version of QEMU is not known, half of the samples are old."""
        periodic = random.random() < 0.5 if self.version is None else self.version >= PERIODIC_SINCE
        return VMMS[self.vmm] if periodic or self.vmm != "qemu" else QEMU_BEFORE_9_2

    def _zero_pages(self, unwritten: float, random: np.random.Generator) -> float:
        """Sample the number of pages of zeros, which are not written."""
        if self.zeros is not None:
            return self.zeros / PAGE
        if not self.resident:
            return unwritten * float(random.uniform(*(_FULL_ZEROS if random.random() < _FULL else _ZEROS)))
        resident = max(0.0, self.resident - random.uniform(*_OWN_BYTES[self.emulated])) / PAGE
        return max(0.0, self.pages - resident) + resident * random.uniform(*_RESIDENT_ZEROS)

    def link_of(self, sample: GuestSample, settings: Settings) -> LinkModel:
        """Return the link of a sample with these settings."""
        bits = min(sample.bits, sample.stream_bits * settings.streams)
        chunk = 0.0 if self.ring_entries or VMMS[self.vmm].whole_passes else self.chunk / PAGE
        return LinkModel(
            page_s=qemu_rules.WHOLE_PAGE * 8 / bits, zero_s=sample.zero_s, chunk_pages=chunk,
            switch_s=sample.switch_s, late_s=sample.late_s, vcpus=float(self.vcpus),
            ring_entries=float(self.ring_entries), limit_share=sample.limit_share,
            fault_s=sample.fault_s,
        )  # fmt: skip


_HINTS = {
    "vcpus": "give the number of vCPUs, such as --vcpus 64", "memory": "give the total memory, such as --memory 512G",
    "link": "give the bandwidth of the link, such as --link 25Gbit/s", "dirty": _DIRTY_HINT,
}  # fmt: skip
"""Hints for missing values on which a migration depends."""


def _reached(missed: float, random: np.random.Generator) -> float:
    """Share of a bandwidth that is reached: near 1 for most migrations, and at least 1 - `missed`."""
    return float(1 - missed * random.random() ** 3)
