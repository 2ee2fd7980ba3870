# SPDX-License-Identifier: BSD-3-Clause
"""``info migrate_parameters`` and ``info migrate_capabilities`` of QEMU's human monitor, in one or several lines.

QEMU's migration/migration-hmp-cmds.c hmp_info_migrate_parameters and hmp_info_migrate_capabilities.
"""

from __future__ import annotations

import re

from simlib.vmm.logs.content import LogContent
from simlib.vmm.logs.records import COMPRESSED
from simlib.vmm.logs.text import LogText
from simlib.vmm.settings import CAPABILITIES, NAMES

MARKS = (*(f"{name}: " for name in sorted(NAMES)), "xbzrle: on", "compress: on", "multifd-compression: ")

_SWITCHES = CAPABILITIES | {"cpu-throttle-tailslow"}
_SETTING = re.compile(
    rf"(?<![\w-])({'|'.join(sorted(NAMES, key=len, reverse=True))}): (on|off|\d{{1,19}})"
    r"(?: (ms|milliseconds|bytes/second|MB/s))?(?=\s|$)"
)
_COMPRESSION = re.compile(r"(?<![\w-])(?:(?:xbzrle|compress): on|multifd-compression: (?!none\b)[a-z]+)(?=\s|$)")


def read(log: LogText) -> LogContent | None:
    """Read the settings; the last value of each counts.

    >>> read(LogText("downtime-limit: 300 milliseconds\\nauto-converge: on")).settings
    {'downtime-limit': 300, 'auto-converge': True}
    """
    content = LogContent("info migrate_parameters and migrate_capabilities")
    for match in _SETTING.finditer(log.text):
        if (match[1] in _SWITCHES) == (match[2] in ("on", "off")):
            content.settings[match[1]] = match[2] == "on" if match[1] in _SWITCHES else int(match[2])
    if _COMPRESSION.search(log.text):
        content.note(COMPRESSED)
    if content.settings:
        content.note(f"current settings: {content.tool}")
    return None if content.empty else content
