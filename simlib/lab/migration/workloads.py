# SPDX-License-Identifier: BSD-3-Clause
"""Workloads of the Linux guest: the keys of each, and the programs of Debian that some of them run.

The writers are in ``workload.c``. A new program is an entry of `WORKLOADS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simlib._lib.errors import InputError, nearest
from simlib.lab.migration.values import byte_count, number_within

MIB = 2**20

Values = Mapping[str, Any]
"""Value of each key of a workload."""


@dataclass(frozen=True)
class WorkloadKey:
    """Key of a workload.

    - `default`: value of a missing key.
    - `minimum`, `maximum`: range of a number. `size`: the number is a size in bytes, such as "64M".
    - `choices`: the possible words, for a key that is not a number.
    """

    default: int | str
    minimum: int = 0
    maximum: int = 0
    size: bool = False
    choices: tuple[str, ...] = ()

    def parse(self, value: Any, where: str) -> int | str:
        """Check a value from an experiment file. Raises `InputError` if it is invalid; `where`: its key."""
        if self.choices:
            if value not in self.choices:
                raise InputError(where, value, "is not known", f"one of {', '.join(self.choices)}")
            return str(value)
        number = number_within(byte_count(value, where) if self.size else value, where, self.minimum, self.maximum)
        if number != int(number):
            raise InputError(where, value, "must be a whole number", "docs/lab.md lists the keys")
        return int(number)


@dataclass(frozen=True)
class LinuxWorkload:
    """Work of a Linux guest.

    - `description`: noun phrase.
    - `keys`: numbers and words that an experiment can set.
    - `packages`, `programs`: Debian packages, and the paths of the programs in them; empty for a writer of
      ``workload.c``.
    - `lines`: further lines of the guest's file ``/workload`` by the values: commands, and the counter of the
      operations.
    """

    description: str
    keys: Mapping[str, WorkloadKey]
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    lines: Callable[[Values], list[str]] = field(default=lambda values: [])


def _size(default: int, minimum: int = MIB) -> WorkloadKey:
    return WorkloadKey(default, minimum, 2**34, size=True)


def _percent(default: int, minimum: int = 0) -> WorkloadKey:
    return WorkloadKey(default, minimum, 100)


_RATE = WorkloadKey(10_000, 1, 10**7)
_DEMAND = {"set": _size(256 * MIB), "rate": _RATE, "cpu_percent": _percent(0)}
"""Keys of the writers: memory, operations per second, and CPU time of a vCPU that the operations use in addition to
the writes; 100: the vCPU is always busy."""

_PAUSE = WorkloadKey(0, 0, 60_000)
_SOCKET = "/run.socket"


def _redis(values: Values) -> list[str]:
    benchmark = (
        f"redis-benchmark -s {_SOCKET} -t {values['command']} -d {values['value_bytes']} -r {values['keys']} -q"
        f" >/dev/null"
    )
    server = f"redis-server --port 0 --unixsocket {_SOCKET} --save '' --appendonly no --loglevel warning"
    fill = f"{benchmark.replace(values['command'], 'set', 1)} -n {3 * values['keys']} -P 64"
    client = f"while :; do {benchmark} -n {values['requests']} -c 4; sleep {values['pause_ms'] / 1000:g}; done"
    return [
        f"run {server}", f"setup until redis-cli -s {_SOCKET} ping >/dev/null; do sleep 0.1; done; {fill}",
        f"run {client}", "counter server", f"socket {_SOCKET}", "request INFO stats",
        "field total_commands_processed:",
    ]  # fmt: skip


def _stress(values: Values) -> list[str]:
    hang = f" --vm-hang {values['hang_s']}" if values["hang_s"] else ""
    stress = f"stress-ng --vm {values['workers']} --vm-bytes {values['set']} --vm-method {values['method']}{hang}"
    return [f"run {stress} -t 0 --temp-path /tmp -q", "counter faults"]


# With its full path, a program runs instead of busybox's applet of the same name.


def _compress(values: Values) -> list[str]:
    return [f"run while :; do /bin/xz -{values['level']} -T1 -c >/dev/null; done", "counter input"]


def _sort(values: Values) -> list[str]:
    sort = f"head -c {values['set']} | /bin/sort -S {values['set'] // 2} -T /tmp >/dev/null"
    return [f"run while :; do {sort}; sleep {values['pause_ms'] / 1000:g}; done", "counter input"]


WORKLOADS: dict[str, LinuxWorkload] = {
    "uniform": LinuxWorkload("writes to any page of a set", _DEMAND),
    "hot-cold": LinuxWorkload(
        "writes of which a share goes to a hot part of the set",
        {**_DEMAND, "hot_set": _size(16 * MIB), "hot_percent": _percent(90)},
    ),
    "zipf": LinuxWorkload(
        "writes to pages with Zipf-distributed popularity", {**_DEMAND, "skew_percent": WorkloadKey(99, 1, 200)}
    ),
    "bursts": LinuxWorkload(
        "writes to any page of a set, in the first part of each period",
        {**_DEMAND, "period_ms": WorkloadKey(4000, 100, 60_000), "share_percent": _percent(25, 1)},
    ),
    "sweep": LinuxWorkload("memset of the pages of a set, one after the other", _DEMAND),
    "page-cache": LinuxWorkload("file in memory that grows to the size of the set, and starts again", _DEMAND),
    "idle-fresh": LinuxWorkload("guest that has just booted, with a timer", {"rate": WorkloadKey(100, 1, 1000)}),
    "filled": LinuxWorkload(
        "memory that was filled once, and writes to any page of a small set",
        {**_DEMAND, "set": _size(32 * MIB), "rate": WorkloadKey(2000, 1, 10**7), "fill": _size(512 * MIB)},
    ),
    "redis": LinuxWorkload(
        "redis-server with redis-benchmark as its client",
        {
            "keys": WorkloadKey(50_000, 1, 10**7), "value_bytes": WorkloadKey(1000, 1, MIB),
            "command": WorkloadKey("set", choices=("set", "get", "incr", "lpush", "hset")),
            "requests": WorkloadKey(1000, 1, 10**9), "pause_ms": _PAUSE,
        },
        ("redis-server", "redis-tools"), ("usr/bin/redis-server", "usr/bin/redis-benchmark", "usr/bin/redis-cli"),
        _redis,
    ),
    "stress-ng": LinuxWorkload(
        "stress-ng --vm: memory is mapped, written by a method, and unmapped",
        {
            "set": _size(128 * MIB), "workers": WorkloadKey(1, 1, 8), "hang_s": WorkloadKey(0, 0, 60),
            "method": WorkloadKey("write64", choices=("write64", "flip", "galpat-0", "incdec", "modulo-x", "rand-set",
                                                      "rand-sum", "ror", "walk-0d", "zero-one", "all")),
        },
        ("stress-ng",), ("usr/bin/stress-ng",), _stress,
    ),
    "compress": LinuxWorkload(
        "xz, which compresses a stream without end", {"level": WorkloadKey(6, 0, 9)}, ("xz-utils",), ("usr/bin/xz",),
        _compress,
    ),
    "sort": LinuxWorkload(
        "sort of a stream, again and again, with files in memory",
        {"set": _size(64 * MIB), "pause_ms": _PAUSE}, ("coreutils",), ("usr/bin/sort", "usr/bin/head"), _sort,
    ),
}  # fmt: skip
"""Workloads by their names in ``[experiment.linux]``."""

PACKAGES = tuple(sorted({name for workload in WORKLOADS.values() for name in workload.packages}))


def find_workload(name: Any, where: str) -> LinuxWorkload:
    """Find a workload by its name. Raises `InputError` if there is none; `where`: its key."""
    if name not in WORKLOADS:
        raise InputError(where, name, "is not known", nearest(str(name), WORKLOADS))
    return WORKLOADS[name]


def parse_values(name: str, given: Mapping[str, Any], where: str) -> dict[str, int | str]:
    """Check the keys of a workload, and add the defaults. Raises `InputError` for an unknown key or an invalid value.

    >>> parse_values("sweep", {"set": "8M", "rate": 2000}, "e.toml: linux")
    {'set': 8388608, 'rate': 2000, 'cpu_percent': 0}
    """
    keys = find_workload(name, f"{where}.workload").keys
    for key, value in given.items():
        if key not in keys:
            raise InputError(f"{where}.{key}", value, f"is not a key of {name}", nearest(key, keys))
    return {key: spec.parse(given.get(key, spec.default), f"{where}.{key}") for key, spec in keys.items()}
