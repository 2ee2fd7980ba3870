# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of logs that are easily misread: each becomes a note or a refusal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from texts import (
    CAPABILITIES,
    DIRTY_RATE,
    GIB,
    SERIES,
    SPEED,
    TIMES,
    domjobinfo,
    kubevirt,
    monitor_10_1,
    nova,
    old_monitor,
    proxmox,
    qmp,
)

from simlib._lib.errors import InputError
from simlib.vmm.logs.content import LogContent
from simlib.vmm.logs.series import pass_rates
from simlib.vmm.read_guest import parse_guest
from simlib.vmm.samples import MigrationSample

BANDWIDTH_RATE = round(SPEED / 4096)


def noted(text, part):
    guest = parse_guest(text)
    notes = [*guest.notes, *guest.missing.values()]
    assert any(part in note for note in notes), notes
    return guest


def changed(reply, **ram):
    content = json.loads(reply)
    content["return"]["ram"] |= {key.replace("_", "-"): value for key, value in ram.items()}
    return json.dumps(content)


TRAPS = {
    "rate equals bandwidth": (
        old_monitor(120).replace("rate: 24000", f"rate: {BANDWIDTH_RATE}"), "equals its throughput"),
    "compression, a capability": (old_monitor(120) + CAPABILITIES.replace("xbzrle: off", "xbzrle: on"), "compressed"),
    "compression, counted": (old_monitor(120) + "xbzrle pages: 1221 pages\n", "pages are compressed"),
    "compression, by the bytes": (qmp(120).replace('"transferred": ', '"transferred": 1, "x": '), "compressed"),
    "compression, Proxmox VE": (
        proxmox([9, 10]) + "2026-01-02 10:00:11 xbzrle: send updates to 1221 pages in 1.1 MiB\n", "compressed"),
    "scan for zeros": (
        "Migration status: active\ntotal time: 1000 ms\ntransferred ram: 40000 kbytes\ntotal ram: 16782336 kbytes\n"
        "duplicate: 4000000 pages\nnormal: 2000 pages\n", "scans pages of zeros"),
    "fewer pages than memory": (changed(qmp(120), duplicate=7), "free-page hinting"),
    "underflow, JSON": (changed(qmp(120), remaining=2**64 - 4096), "counter below 0"),
    "underflow, monitor": (
        old_monitor(120).replace("remaining ram: ", "remaining ram: 18014398509481983 kbytes\nx: "), "counter below 0"),
    "-nan": (qmp(120).replace('"mbps": ', '"mbps": -nan, "y": '), "bits per s of query-migrate is not a number"),
    "-nan in the monitor": (old_monitor(120).replace("throughput: 983.04", "throughput: -nan"), "is not a number"),
    "disk, monitor": (old_monitor(120) + "total disk: 4096 kbytes\n", "a disk is migrated, too"),
    "disk, JSON": (
        qmp(120).replace('"ram"', '"disk": {"total": 5, "transferred": 1, "remaining": 4}, "ram"'), "a disk is"),
    "disk, libvirt": (domjobinfo(120).replace("Constant", "File total:   20.000 GiB\nConstant"), "a disk is"),
    "disk, Nova": (nova([60], disk=True).replace("remaining=0, total=0", "remaining=4, total=5"), "a disk is"),
    "disk, KubeVirt": (kubevirt(120).replace("DiskMbps:0", "DiskMbps:300"), "a disk is"),
    "state device": (qmp(120).replace('"active"', '"device"'), "only memory is predicted"),
    "VFIO, monitor": (monitor_10_1(120).replace("postcopy=0", "postcopy=0, vfio=4096"), "(VFIO)"),
    "VFIO, Proxmox VE": (
        proxmox([9, 10]).replace("MiB/s\n", "MiB/s (+ 1.2 GiB VFIO-state)\n"), "(VFIO)"),
    "downtime far above the limit": (
        "Migration completed after 2.2s with a downtime of 2980ms (goal was 300ms)", "is far above the limit"),
    "mean speed of Proxmox VE": (
        proxmox([9, 10]) + "2026-01-02 10:00:11 average migration speed: 90.1 MiB/s - downtime 187 ms\n", "ignored"),
    "low watermark": (
        nova([60]) + "Data remaining 800000000 bytes, low watermark 2000000 bytes 12 seconds ago\n", "is the remainder"
    ),
    "expected downtime below the limit": (
        domjobinfo(120).replace("5400", "200") + "downtime-limit: 300 milliseconds\n", "but QEMU does not switch over"),
    "virsh was stopped": (
        f"# virsh migrate --live vm7 qemu+ssh://node4/system\nMigration: [ 71 %]\n^Z\n{domjobinfo(120)}",
        "was stopped (^Z)"),
    "huge pages": (changed(qmp(120), remaining=4 * GIB), "whole number of 16 MiB"),
    "bytes/s divided by 8": (kubevirt(120, 1), "multiplied by 64"),
    "bytes/s as Mbps": (kubevirt(120).replace("Bandwidth:983", "Bandwidth:122"), "multiplied by 8"),
    "ns as s": (kubevirt(120).replace("Elapsed:120000ms", "Elapsed:120000000000sec"), "is in ns"),
    "a short last pass": (
        kubevirt(120).replace("DirtyRate:786", "DirtyRate:9999").replace("MemoryRemaining:7031", "MemoryRemaining:3")
        .replace("Iteration:2", "Iteration:9"), "is the rate of a short last pass"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_noted(name):
    noted(*TRAPS[name])


def test_a_corrected_unit_gives_the_same_guest():
    expected = parse_guest(SERIES["virt-launcher"])
    for text in (kubevirt(120, 1), kubevirt(120).replace("Elapsed:120000ms", "Elapsed:120000000000sec")):
        assert parse_guest(text).link == pytest.approx(expected.link, rel=0.03)


def test_an_unknown_unit_is_not_used():
    text = kubevirt(120).replace("Bandwidth:983", "Bandwidth:99999")
    assert noted(text, "differs from DataProcessed over TimeElapsed").link == 0


def test_no_migration_is_judged_by_numbers_that_are_not_sure():
    assert parse_guest(changed(qmp(120), duplicate=7)).zeros is None  # free-page hinting
    assert parse_guest(TRAPS["underflow, JSON"][0]).running[0].remaining_bytes is None
    assert parse_guest(old_monitor(50)).zeros is None  # the first pass has not ended
    throttled = "".join(old_monitor(seconds) + "cpu throttle percentage: 20\n" for seconds in TIMES)
    (rate,) = parse_guest(throttled).dirty
    assert rate.between_s  # no pass of an unthrottled guest


def rate_of(mib, mode="dirty-bitmap", start=1):
    reply = {"status": "measured", "dirty-rate": mib, "calc-time": 10, "mode": mode, "start-time": start}
    return json.dumps({"return": reply}) + "\n"


def test_zeros_are_measurements_unless_this_qemu_does_not_count():
    guest = noted("".join(rate_of(0, start=start) for start in (1, 2, 3)), "this QEMU does not count (TCG)")
    assert not guest.dirty
    (rate, other) = parse_guest(rate_of(0) + rate_of(0, start=2)).dirty
    assert (rate.pages, rate.rounding, other.seconds) == (0, 2560, 10)
    assert len(parse_guest("".join(rate_of(0, "page-sampling", start) for start in (1, 2, 3))).dirty) == 3
    assert len(parse_guest("".join(rate_of(value, start=value) for value in (0, 0, 0, 5))).dirty) == 2
    assert parse_guest(DIRTY_RATE.replace("90 (MB", "0 (MB")).dirty[0].rounding == 2560


def test_a_version_of_cloud_hypervisor_with_other_units_is_refused():
    with pytest.raises(InputError, match="Cloud Hypervisor transfer = ms: must be in s; this version is not known"):
        parse_guest("Precopy: iter=0 total=1MiB curr=1MiB bw=1.0MiB/s transfer=16ms elapsed=16.00s")


def test_the_passes_between_two_samples_have_their_own_mean_length():
    """The first pass, which sends all memory, took 102 s; the four passes between the samples 17 s each."""
    last = MigrationSample(
        "active", 480.0, 2.0**36, bits_per_s=3.78e9, dirty_pages_per_s=1e5, zero_pages=5e6, passes=21
    )
    content = LogContent("a log", samples=[replace(last, time_s=412.0, passes=17), last])
    (rate,) = (reading.rate for reading in pass_rates(content.samples, content))
    assert rate.seconds == 17.0
    assert rate.pages == 17e5
    (alone,) = (reading.rate for reading in pass_rates(content.samples[1:], content))
    assert alone.seconds == pytest.approx((480 - (2**36 - 5e6 * 4096) * 8 / 3.78e9) / 19.5)
