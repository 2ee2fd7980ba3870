# SPDX-License-Identifier: BSD-3-Clause
"""One migration of a guest of 16 GiB and 4 vCPUs, as each tool would log it, in three versions where they differ.

The first pass takes 100 s at 1 Gbit/s; the guest dirties 24,000 pages/s over it; the second pass takes 70 s.
"""

from __future__ import annotations

import json

GIB, MIB, KIB, PAGE = 2**30, 2**20, 2**10, 4096
TOTAL = 16 * GIB + 5 * MIB
PAGES = TOTAL // PAGE
ZERO = PAGES - 3_000_000
"""Pages of zeros: the other 3,000,000 are sent with their content."""

RATE = 24_000
SPEED = 3_000_000 * PAGE / 100
"""Bytes/s."""


def state(seconds):
    """Pass, bytes sent, bytes remaining, normal and zero pages, and dirty rate at a time of the migration."""
    share = min(1.0, seconds / 100)
    sent = round(seconds * SPEED)
    if seconds < 100:
        return 1, sent, TOTAL - round(share * TOTAL), round(share * 3_000_000), round(share * ZERO), 0
    return 2, sent, round((RATE * 100 * PAGE) - (seconds - 100) * SPEED), round(seconds * 30_000), ZERO, RATE


TIMES = (20, 50, 80, 101, 120, 140)


def old_monitor(seconds, milliseconds="ms", more=""):
    number, sent, left, normal, zero, rate = state(seconds)
    return f"""(qemu) info migrate
globals:
store-global-state: on
{more}Migration status: active
total time: {seconds * 1000} {milliseconds}
expected downtime: 5400 {milliseconds}
setup: 14 {milliseconds}
transferred ram: {sent >> 10} kbytes
throughput: {SPEED * 8 / 1e6:.2f} mbps
remaining ram: {left >> 10} kbytes
total ram: {TOTAL >> 10} kbytes
duplicate: {zero} pages
skipped: 0 pages
normal: {normal} pages
normal bytes: {normal * 4} kbytes
dirty sync count: {number}
page size: 4 kbytes
multifd bytes: 0 kbytes
""" + (f"dirty pages rate: {rate} pages\n" if rate else "")


def monitor_10_1(seconds):
    number, sent, left, normal, zero, rate = state(seconds)
    return f"""(qemu) info migrate
Status: active
Time (ms): total={seconds * 1000}, setup=14, exp_down=5400
RAM info:
  Throughput (Mbps): {SPEED * 8 / 1e6:.2f}
  Sizes (KB): psize=4, total={TOTAL >> 10},
    transferred={sent >> 10}, remain={left >> 10},
    precopy={sent >> 10}, multifd=0, postcopy=0
  Pages: normal={normal}, zero={zero}, rate_per_sec=30000
  Others: dirty_syncs={number}""" + (f", dirty_pages_rate={rate}\n" if rate else "\n")


def sized(value):
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value >= size:
            return f"{value / size:.3f} {unit}"
    return f"{value} B"


def monitor_10_2(seconds):
    number, sent, left, normal, zero, rate = state(seconds)
    return (
        f"""(qemu) info migrate
Status: \t\tactive
Time (ms): \t\ttotal={seconds * 1000}, setup=14, exp_down=5400
RAM info:
  Throughput (Mbps): \t{SPEED * 8 / 1e6:.2f}
  Sizes: \t\tpagesize=4 KiB, total={sized(TOTAL)}
  Transfers: \t\ttransferred={sized(sent)}, remain={sized(left)}
    Channels: \t\tprecopy={sized(sent)}, multifd=0 B, postcopy=0 B
    Page Types: \tnormal={normal}, zero={zero}
  Page Rates (pps): \ttransfer=30000"""
        + (f", dirty={rate}" if rate else "")
        + f"""
  Others: \t\tdirty_syncs={number}
"""
    )


def domjobinfo(seconds, page=True):
    number, sent, left, normal, zero, rate = state(seconds)
    operation = "Operation:        Outgoing migration\n" if page else ""
    rates = f"Dirty rate:       {rate:<12} pages/s\n" if rate else ""
    rates += "Page size:        4096         bytes\n" if page else ""
    return f"""Job type:         Unbounded
{operation}Time elapsed:     {seconds * 1000:<12} ms
Data processed:   {sized(sent)}
Data remaining:   {sized(left)}
Data total:       {sized(TOTAL)}
Memory processed: {sized(sent)}
Memory remaining: {sized(left)}
Memory total:     {sized(TOTAL)}
Memory bandwidth: {SPEED / MIB:.3f} MiB/s
{rates}Iteration:        {number:<12}
Constant pages:   {zero:<12}
Normal pages:     {normal:<12}
Normal data:      {sized(normal * PAGE)}
Expected downtime: 5400         ms
Setup time:       14           ms

"""


def kubevirt(seconds, version=2):
    number, sent, left, normal, zero, rate = state(seconds)
    size = (lambda value: f"{value}B") if version == 0 else (lambda value: f"{value // MIB}MiB")
    speed = {0: lambda value: f"{value:.0f}B/s", 1: lambda value: f"{value / 8e6:.0f}Mbps",
             2: lambda value: f"{value * 8 / 1e6:.0f}Mbps"}[version]  # fmt: skip
    disk = "DiskBps:0" if version == 0 else "DiskMbps:0"
    message = (
        f"Migration info for 3b7c-11: TimeElapsed:{seconds * 1000}ms DataProcessed:{size(sent)} "
        f"DataRemaining:{size(left)} DataTotal:{size(TOTAL)} MemoryProcessed:{size(sent)} MemoryRemaining:{size(left)} "
        f"MemoryTotal:{size(TOTAL)} MemoryBandwidth:{speed(SPEED)} DirtyRate:{speed(rate * PAGE)} "
        f"Iteration:{number} PostcopyRequests:0 "
        f"ConstantPages:{zero} NormalPages:{normal} NormalData:{size(normal * PAGE)} ExpectedDowntime:5400ms {disk}"
    )
    return json.dumps({"component": "virt-launcher", "level": "info", "msg": message, "pos": "live.go:1"}) + "\n"


def stamp(seconds):
    return f"2026-01-02 10:{seconds // 60:02}:{seconds % 60:02}"


def proxmox(times):
    text = [f"{stamp(0)} migration downtime limit: 100 ms", f"{stamp(0)} start migrate command to unix:/run/1.migrate"]
    for seconds in times:
        _, sent, _, _, _, rate = state(seconds)
        lots = f", VM dirties lots of memory: {rate * PAGE * 1.28 / MIB:.1f} MiB/s" if rate else ""
        text.append(f"{stamp(seconds)} migration active, transferred {sent / GIB:.1f} GiB of {TOTAL / GIB:.1f} GiB "
                    f"VM-state, {SPEED / MIB:.1f} MiB/s{lots}")  # fmt: skip
    return "\n".join([*text, f"{stamp(times[-1])} auto-increased downtime to continue migration: 200 ms\n"])


def proxmox_2019(times):
    rows = [(second, state(second)) for second in times]
    lines = [f"{stamp(second)} migration status: active (transferred {row[1]}, remaining {row[2]}), total {TOTAL})"
             for second, row in rows]  # fmt: skip
    return f"{stamp(0)} start migrate command to tcp:10.0.0.1:60000\n" + "\n".join(lines) + "\n"


def nova(times, disk=False):
    more = "; disk 100% remaining (bytes processed=0, remaining=0, total=0)." if disk else ""
    head = "2026-01-02 10:00:00.123 7 INFO nova.virt.libvirt.driver [None req-1 - -] [instance: 0e5e1a8c-0001]"
    lines = [f"{head} Increasing downtime to 50 ms after 0 sec elapsed time"]
    for seconds in times:
        _, sent, left, *_ = state(seconds)
        lines.append(f"{head} Migration running for {seconds} secs, memory {round(100 * left / TOTAL)}% remaining"
                     f"{'' if disk else ';'} (bytes processed={sent}, remaining={left}, "
                     f"total={TOTAL}){more}")  # fmt: skip
    return "\n".join(lines) + "\n"


def cloud_hypervisor():
    head = "cloud-hypervisor:  12.70s: <vmm> DEBUG:vmm/src/lib.rs:1313 --"
    return f"""{head} Precopy: iter=0 total=16384MiB curr=16384MiB bw=1024.00MiB/s transfer=16.00s overhead=0ms \
est_downtime=0ms elapsed=16.00s avg_bw=1024.00MiB/s
{head} Precopy: iter=1 total=20480MiB curr=4096MiB bw=1024.00MiB/s transfer=4.00s overhead=50ms est_downtime=4000ms \
elapsed=20.05s avg_bw=1021.00MiB/s
{head} Precopy: iter=2 curr=1600MiB total=22080MiB bw=1024.00MiB/s transfer=1.56s overhead=50ms est_downtime=1562ms \
elapsed=21.66s avg_bw=1019.00MiB/s
cloud-hypervisor:  39.10s: <vmm> INFO:vmm/src/lib.rs:1794 -- Migration completed after 22.2s with a downtime of 298ms \
(goal was 300ms)
"""


def qmp(seconds):
    number, sent, left, normal, zero, rate = state(seconds)
    ram = {"total": TOTAL, "transferred": sent, "remaining": left, "normal": normal, "duplicate": zero,
           "page-size": PAGE, "dirty-sync-count": number, "dirty-pages-rate": rate,
           "mbps": SPEED * 8 / 1e6}  # fmt: skip
    reply = {"status": "active", "total-time": seconds * 1000, "setup-time": 14, "expected-downtime": 5400, "ram": ram}
    return json.dumps({"return": reply}) + "\n"


def guestperf():
    history = []
    for seconds in TIMES:
        number, sent, left, normal, zero, rate = state(seconds)
        ram = {"transferred_bytes": sent, "remaining_bytes": left, "total_bytes": TOTAL, "duplicate_pages": zero,
               "skipped_pages": 0, "normal_pages": normal, "normal_bytes": normal * PAGE, "dirty_rate_pps": rate,
               "transfer_rate_mbs": SPEED * 8 / 1e6, "iterations": number}  # fmt: skip
        history.append({"status": "active", "ram": ram, "now": 1e9 + seconds, "duration": seconds * 1000, "downtime": 0,
                        "downtime_expected": 5400, "setup_time": 14, "throttle_pcent": 0})  # fmt: skip
    timings = [{"tid": 7, "timestamp": 1e9 - 10 + at, "value": 500 * at} for at in range(10)]
    return json.dumps({"hardware": {"cpus": 4, "mem": 16}, "scenario": {"name": "x", "downtime": 500},
                       "progress_history": history, "guest_timings": [], "qemu_timings": [],
                       "vcpu_timings": timings}, indent=4) + "\n"  # fmt: skip


PARAMETERS = """announce-initial: 50 ms
throttle-trigger-threshold: 50
cpu-throttle-initial: 30
max-cpu-throttle: 80
tls-creds: ''
max-bandwidth: 104857600 bytes/second
downtime-limit: 500 ms
multifd-channels: 4
vcpu-dirty-limit: 1 MB/s
"""
OLD_PARAMETERS = (
    "parameters: compress-level: 1 cpu-throttle-initial: 30 max-cpu-throttle: 80 tls-creds: '' max-bandwidth: "
    "104857600 bytes/second downtime-limit: 500 milliseconds\n"
)
CAPABILITIES = "xbzrle: off\nrdma-pin-all: off\nauto-converge: on\nmultifd: off\n"
DIRTY_RATE = """(qemu) info dirty_rate
Status: measured
Start Time: 1693900 (ms)
Sample Pages: 512 (per GB)
Period: 10 (sec)
Mode: page-sampling
Dirty rate: 90 (MB/s)
"""
RING_RATE = DIRTY_RATE.replace("page-sampling", "dirty-ring") + "".join(
    f"vcpu[{vcpu}], Dirty rate: 22 (MB/s)\n" for vcpu in range(4)
)


def domstats(busy=0):
    vcpus = "".join(f"  vcpu.{vcpu}.state=1\n  vcpu.{vcpu}.time={busy}\n  vcpu.{vcpu}.wait=0\n" for vcpu in range(4))
    return f"""Domain: 'guest'
  balloon.current=16777216
  balloon.maximum=16777216
  balloon.rss=12582912
  vcpu.current=4
  vcpu.maximum=8
{vcpus}  dirtyrate.calc_status=2
  dirtyrate.calc_start_time=348414
  dirtyrate.calc_period=10
  dirtyrate.megabytes_per_second=90
  dirtyrate.calc_mode=dirty-bitmap
"""


DOMMEMSTAT = "actual 16777216\nswap_in 0\nunused 1048576\navailable 16200000\nrss 12582912\n"

COMPLETED = f"""Job type:         Completed
Operation:        Outgoing migration
Time elapsed:     180300       ms
Memory processed: {sized(round(180 * SPEED))}
Memory remaining: 0.000 B
Memory total:     {sized(TOTAL)}
Memory bandwidth: {SPEED / MIB:.3f} MiB/s
Page size:        4096         bytes
Iteration:        5
Constant pages:   {ZERO}
Normal pages:     5400000
Total downtime:   187          ms
"""

SERIES = {
    "domjobinfo": "".join(map(domjobinfo, TIMES)),
    "domjobinfo of 2014": "".join(domjobinfo(seconds, page=False) for seconds in TIMES),
    "domjobinfo and --completed": "".join(map(domjobinfo, TIMES)) + COMPLETED,
    "info migrate, 10.0": "".join(map(old_monitor, TIMES)),
    "info migrate, 4.2": "".join(
        old_monitor(seconds, "milliseconds", "capabilities: xbzrle: off auto-converge: off \n") for seconds in TIMES),
    "info migrate, 10.1": "".join(map(monitor_10_1, TIMES)),
    "info migrate, 10.2": "".join(map(monitor_10_2, TIMES)),
    "virt-launcher": "".join(map(kubevirt, TIMES)),
    "virt-launcher of 2023": "".join(kubevirt(seconds, 1) for seconds in TIMES),
    "virt-launcher of 2022": "".join(kubevirt(seconds, 0) for seconds in TIMES),
    "Proxmox VE 8": proxmox(range(1, 140)),
    "Proxmox VE 6": proxmox_2019(range(1, 140)),
    "Nova": nova(range(5, 145, 5), disk=True),
    "Nova of 2017": nova(range(5, 145, 5)),
    "QMP": "".join(map(qmp, TIMES)),
    "guestperf": guestperf(),
}  # fmt: skip
"""Logs of the migration by their formats."""

OTHERS = {
    "parameters": PARAMETERS, "parameters, 2.12": OLD_PARAMETERS, "capabilities": CAPABILITIES,
    "dirty_rate": DIRTY_RATE, "dirty_rate, ring": RING_RATE, "domstats": domstats(), "dommemstat": DOMMEMSTAT,
    "completed": COMPLETED, "Cloud Hypervisor": cloud_hypervisor(),
}  # fmt: skip
"""Logs that are no series of this migration."""
