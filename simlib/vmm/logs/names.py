# SPDX-License-Identifier: BSD-3-Clause
"""Names of the guest and of the destination in a log, by the placeholders of `simlib.vmm.paste` for them."""

from __future__ import annotations

import re

_NAME = r"[\w.:@+-]{1,128}"
"""Regular expression of a name that a shell takes as one word, and as no option of a command if `_first` returns it."""

_URI = rf"qemu(?:\+\w+)?://{_NAME}(?:/system|/session)"
_COMMAND = re.compile(
    r"virsh (?P<virsh>(?:domjobinfo|domjobabort|domstats|dommemstat|domdirtyrate-calc|qemu-monitor-command|"
    r"migrate-\w+)(?: +[\w./:@+-]+)+)"
    rf"|virsh migrate [^\n]*?(?P<domain>{_NAME}) +(?P<uri>{_URI})(?= |$)"
    rf"|migration of VM (?P<vmid>\d{{1,9}}) to node '(?P<node>{_NAME})'"
    r"|\[instance: (?P<instance>[0-9a-fA-F-]{8,36})\]",
    re.MULTILINE | re.ASCII,
)


def names_in(text: str) -> dict[str, str]:
    """Return the names that a log states, by placeholder; a placeholder with several names is left out.

    >>> names_in("# virsh migrate --live vm7 qemu+ssh://node4/system\\n# virsh domjobinfo vm7 --completed\\n")
    {'DOMAIN': 'vm7', 'qemu+ssh://HOST/system': 'qemu+ssh://node4/system'}
    >>> names_in("starting migration of VM 104 to node 'pve2' (192.0.2.7)")
    {'VMID': '104', 'NODE': 'pve2'}
    """
    by_placeholder: dict[str, set[str]] = {}
    for match in _COMMAND.finditer(text):
        groups = match.groupdict()
        given = {
            "DOMAIN": groups["domain"] or _first(groups["virsh"] or ""), "qemu+ssh://HOST/system": groups["uri"],
            "VMID": groups["vmid"], "NODE": groups["node"],
            "SERVER": groups["instance"], "INSTANCE": groups["instance"],
        }  # fmt: skip
        for placeholder, name in given.items():
            if name:
                by_placeholder.setdefault(placeholder, set()).add(name)
    return {placeholder: names.pop() for placeholder, names in by_placeholder.items() if len(names) == 1}


def _first(command: str) -> str:
    """Return the first word of a command that is no option: libvirt's commands for a domain begin with it."""
    words = command.split()[1:]
    if "--domain" in words[:-1]:
        word = words[words.index("--domain") + 1]
    else:
        word = next((word for word in words if not word.startswith("-")), "")
    return word if re.fullmatch(_NAME, word, re.ASCII) and not word.startswith("-") else ""
