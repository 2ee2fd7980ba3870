# SPDX-License-Identifier: BSD-3-Clause
"""The formats of logs: their names, the words by which they are recognised, and the functions that read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simlib.vmm.logs import (
    cloud_hypervisor,
    dirty_rate,
    domjobinfo,
    domstats,
    info_migrate,
    kubevirt,
    monitor_settings,
    nova,
    proxmox,
)
from simlib.vmm.logs.content import LogContent
from simlib.vmm.logs.text import LogText


class LogReader(NamedTuple):
    """Format of a log.

    - `title`: name of the tool, for people.
    - `marks`: strings of which a text in this format has at least one.
    - `read`: function that returns the content, or None if there is none.
    - `emit`: output format of the tool (`simlib.vmm.paste.FORMATS`); empty if several can have written the text.
    """

    title: str
    marks: tuple[str, ...]
    read: Callable[[LogText], LogContent | None]
    emit: str = ""


READERS = (
    LogReader("virsh domjobinfo", domjobinfo.MARKS, domjobinfo.read),
    LogReader("virsh domstats and dommemstat", domstats.MARKS, domstats.read),
    LogReader("QEMU's info migrate", info_migrate.MARKS, info_migrate.read),
    LogReader("QEMU's info migrate_parameters and migrate_capabilities", monitor_settings.MARKS, monitor_settings.read),
    LogReader("QEMU's info dirty_rate", dirty_rate.MARKS, dirty_rate.read),
    LogReader("Proxmox VE task log", proxmox.MARKS, proxmox.read, "proxmox"),
    LogReader("Nova compute log", nova.MARKS, nova.read, "nova"),
    LogReader("KubeVirt virt-launcher log", kubevirt.MARKS, kubevirt.read, "kubevirt"),
    LogReader("Cloud Hypervisor log", cloud_hypervisor.MARKS, cloud_hypervisor.read, "cloud-hypervisor"),
)
"""Formats of text; QMP's JSON and guestperf's reports are read by `simlib.vmm.replies`."""


def read_logs(log: LogText) -> list[LogContent]:
    """Return the content of each format that the text has.

    >>> [content.tool for content in read_logs(LogText("Dirty rate: 5 (MB/s)\\nvcpu.current=4\\n"))]
    ['virsh domstats', 'info dirty_rate']
    """
    contents = []
    for reader in READERS:
        content = reader.read(log) if any(mark in log.text for mark in reader.marks) else None
        if content is not None:
            content.emit = reader.emit
            contents.append(content)
    return contents
