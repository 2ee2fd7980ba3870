# SPDX-License-Identifier: BSD-3-Clause
"""Combine the contents of logs to a guest, with a note on the source of each number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from simlib._lib.errors import InputError
from simlib.model.quantities import format_bandwidth, size_text
from simlib.vmm.guest import RunningGuest
from simlib.vmm.logs.content import LogContent, LogValue, RateReading
from simlib.vmm.logs.series import last_migration, pass_rates, sustained_bits, traps, zero_bytes
from simlib.vmm.samples import MigrationSample
from simlib.vmm.settings import VMMS, Settings

_ONE_GUEST = "paste the replies of one guest only"
_ZEROS = 3
"""Number of rates of 0 from which mode dirty-bitmap is known not to count."""

_UNLIMITED = 2**62
"""Smallest max-bandwidth that means no limit: libvirt sets 9223372036853727232 bytes/s."""


def guest_of_contents(contents: Sequence[LogContent], more: Sequence[str] = ()) -> RunningGuest:
    """Return the guest that the contents describe.

    Raises `InputError` if a value contradicts another.

    - `more`: notes to append to the guest's notes.
    """
    notes: list[str] = []
    missing: dict[str, str] = {}
    vcpus = _vcpus(contents, notes, missing)
    architecture = _architecture(contents, notes)
    memory = _memory(contents, notes, missing)
    series = [(content, last_migration(content)) for content in contents]
    limits_ms = [content.settings["downtime-limit"] for content in contents if "downtime-limit" in content.settings]
    for content, samples in series:
        traps(samples, content, limits_ms[-1] / 1000 if limits_ms else None)
    link = _link(series, notes, missing)
    dirty = _rates(series, memory, notes, missing)
    cpu = [quantity for content in contents for quantity in content.cpu]
    if cpu:
        notes.append(f"CPU use {100 * cpu[-1].value:.0f} % of each vCPU: {cpu[-1].source}")
    zeros = _zeros(series, memory)
    resident = 0 if zeros is not None else _resident(contents, memory, notes)
    settings = _settings(contents, notes)
    emit = next((content.emit for content in contents if content.emit), "")
    for content in contents:
        notes += [note for note in content.notes if note not in notes]
    return RunningGuest(
        vcpus, memory, link, tuple(reading.rate for reading in dirty), cpu=cpu[-1].value if cpu else 0.0,
        reached=link > 0, resident=resident, zeros=zeros,
        version=next((content.version for content in contents if content.version), None),
        emulated=any(content.emulated for content in contents),
        running=_joined(series), settings=settings, architecture=architecture,
        vmm=emit if emit in VMMS else "qemu", emit=emit,
        notes=(*notes, *more), missing=missing,
    )  # fmt: skip


def _reason(contents: Sequence[LogContent], name: str, otherwise: str) -> str:
    reasons = [content.missing[name] for content in contents if name in content.missing]
    return f"{name} not known: {reasons[-1] if reasons else otherwise}"


def _vcpus(contents: Sequence[LogContent], notes: list[str], missing: dict[str, str]) -> int:
    counts = [quantity for content in contents for quantity in content.vcpus]
    if len({quantity.value for quantity in counts}) > 1:
        given = " and ".join(sorted({f"{quantity.value:.0f}" for quantity in counts}))
        raise InputError("vCPUs", given, "the replies contradict each other", _ONE_GUEST)
    if not counts:
        missing["vcpus"] = _reason(contents, "vCPUs", "no query-cpus-fast, and no vcpu.current of virsh domstats")
        return 0
    plural = "vCPU" if counts[0].value == 1 else "vCPUs"
    notes.append(f"{counts[0].value:.0f} {plural}: {counts[0].source}")
    return int(counts[0].value)


def _architecture(contents: Sequence[LogContent], notes: list[str]) -> str:
    notes += [content.architecture_note for content in contents if content.architecture_note]
    names = [content.architecture for content in contents if content.architecture]
    return names[0] if names else ""


def _memory(contents: Sequence[LogContent], notes: list[str], missing: dict[str, str]) -> int:
    """Memory, bytes: of the most precise source; all must agree within their digits."""
    totals = sorted((quantity for content in contents for quantity in content.total), key=attrgetter("error"))
    configured = [quantity for content in contents for quantity in content.configured]
    best = totals[0] if totals else configured[-1] if configured else None
    if best is None:
        missing["memory"] = _reason(contents, "memory", "no log of a migration has it")
        return 0
    for quantity in totals:
        if abs(quantity.value - best.value) > quantity.error + best.error + 1:
            _contradict(best, quantity)
    for quantity in configured if totals else ():
        if best.value < 0.9 * quantity.value - best.error:
            _contradict(best, quantity)
    extra = ", including display and firmware" if totals else ""
    notes.append(f"memory {size_text(round(best.value))}: {best.source}{extra}")
    return round(best.value)


def _contradict(first: LogValue, second: LogValue) -> None:
    given = " and ".join(f"{quantity.value:.0f} ({quantity.source})" for quantity in (first, second))
    raise InputError("memory", given, "the replies contradict each other", _ONE_GUEST)


Series = Sequence[tuple[LogContent, list[MigrationSample]]]


def _link(series: Series, notes: list[str], missing: dict[str, str]) -> int:
    rates = [(sustained_bits(samples, content.page_error), content, len(samples)) for content, samples in series]
    bits, content, count = max(rates, key=lambda rate: rate[0], default=(0.0, None, 0))
    if content is None or not 1 <= bits < 1e15:
        missing["link"] = _reason([content for content, _ in series], "link", "no log has a throughput")
        return 0
    how = "highest throughput that was sustained in" if count > 1 else "throughput of"
    shown = format_bandwidth(int(round(bits, 2 - int(math.log10(bits)))))
    notes.append(f"link {shown}: {how} {content.tool}; the link may be faster")
    return round(bits)


def _rates(series: Series, memory: float, notes: list[str], missing: dict[str, str]) -> list[RateReading]:
    readings = [reading for content, _ in series for reading in content.rates]
    passes = [reading for content, samples in series for reading in pass_rates(samples, content)]
    passes = [reading for reading in passes if not memory or reading.rate.pages * 4096 <= 1.001 * memory]
    if any(reading.rate.between_s is None for reading in (*passes, *readings)):
        passes = [reading for reading in passes if reading.rate.between_s is None]
    readings = [*passes, *readings]
    if (
        len(readings) >= _ZEROS
        and all(not reading.rate.pages and reading.mode == "dirty-bitmap" for reading in readings)
    ):  # fmt: skip
        missing["dirty"] = (f"dirty rate not known: {len(readings)} rates of 0 in mode dirty-bitmap: this QEMU does "
                            "not count (TCG); measure in mode page-sampling")  # fmt: skip
        return []
    notes += [reading.note for reading in readings]
    if not readings:
        missing["dirty"] = _reason([content for content, _ in series], "dirty rate", "no log has one")
    return readings


def _zeros(series: Series, memory: int) -> int | None:
    values = [zero_bytes(samples, memory, content.notes) for content, samples in series]
    return next((round(value) for value in values if value is not None), None)


def _resident(contents: Sequence[LogContent], memory: int, notes: list[str]) -> int:
    sizes = [quantity for content in contents for quantity in content.resident]
    if not sizes:
        return 0
    notes.append(f"resident memory {size_text(round(sizes[-1].value))}: {sizes[-1].source}, including QEMU's own")
    return round(min(sizes[-1].value, memory or sizes[-1].value))


def _settings(contents: Sequence[LogContent], notes: list[str]) -> Settings:
    values: dict[str, int | bool] = {}
    for content in contents:
        values |= content.settings
    if values.get("max-bandwidth", 0) >= _UNLIMITED:
        values["max-bandwidth"] = 0
    if values.get("max-bandwidth") == Settings().max_bandwidth:
        del values["max-bandwidth"]
        notes.append("max-bandwidth is QEMU's default, which libvirt lifts when it migrates: assumed to be unlimited "
                     "(if the default applies, give --current max-bandwidth=134217728)")  # fmt: skip
    return Settings.of({"max-bandwidth": 0} | values)


def _joined(series: Series) -> tuple[MigrationSample, ...]:
    """Samples of all tools in the order of their times; if a time is not known, those of the longest series."""
    samples = [sample for _, part in series for sample in part]
    used: list[list[MigrationSample]] = [part for _, part in series if part]
    if len(used) > 1 and any(sample.time_s is None for sample in samples):
        longest: list[MigrationSample] = max(used, key=len)
        return tuple(longest)
    return tuple(samples if len(used) <= 1 else sorted(samples, key=lambda sample: sample.time_s or 0.0))
