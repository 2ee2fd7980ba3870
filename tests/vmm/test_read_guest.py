# SPDX-License-Identifier: BSD-3-Clause
"""A running guest's numbers: pasted in every style, asked over a socket, and put into a scenario."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import sys
import threading
import types

import pytest

from simlib._lib.errors import InputError
from simlib.analysis.simulate import run_scenario
from simlib.model.architectures import ARCHITECTURES
from simlib.model.scenario import Scenario
from simlib.vmm import read_guest as reader
from simlib.vmm.dirtying import DirtyRate
from simlib.vmm.guest import RunningGuest
from simlib.vmm.guest_scenario import apply, pages_written
from simlib.vmm.read_guest import parse_guest, read_guest

GIB, MIB = 2**30, 2**20
DIRTY = {"status": "measured", "sample-pages": 512, "dirty-rate": 108, "mode": "page-sampling",
         "start-time": 1693900454, "calc-time": 10, "calc-time-unit": "second"}  # fmt: skip
RAM = {"total": 4 * GIB + 655360, "postcopy-requests": 0, "dirty-sync-count": 4, "multifd-bytes": 0,
       "pages-per-second": 131072, "page-size": 4096, "remaining": 201326592, "mbps": 940.5, "transferred": 5368709120,
       "duplicate": 240752, "dirty-pages-rate": 25600, "skipped": 0, "normal-bytes": 5368709120,
       "normal": 1310720}  # fmt: skip
MIGRATE = {"status": "active", "setup-time": 100, "total-time": 40100, "expected-downtime": 300, "ram": RAM}


def cpus(count, target="x86_64"):
    return [
        {"thread-id": 4000 + i, "props": {"core-id": i, "thread-id": 0, "socket-id": 0}, "target": target,
         "qom-path": f"/machine/unattached/device[{i}]", "cpu-index": i}
        for i in range(count)
    ]  # fmt: skip


def numbers(guest):
    rates = [(rate.pages * 4096 / rate.seconds, rate.seconds) for rate in guest.dirty[-1:]] or [(0, 0)]
    return (guest.vcpus, guest.architecture, guest.memory, guest.link, *rates[0])


ALL = (8, "x86-tdp", 4 * GIB + 655360, 940_500_000, 108.0 * MIB, 10.0)

EVENT = {"timestamp": {"seconds": 1693900460, "microseconds": 1}, "event": "MIGRATION_PASS", "data": {"pass": 4}}
GREETING = {"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 8}, "package": ""}, "capabilities": ["oob"]}}

BARE = "\n".join(json.dumps(v) for v in (DIRTY, cpus(8), MIGRATE))

VIRSH = f"""\
[root@host ~]# virsh qemu-monitor-command --pretty guest '{{"execute": "query-cpus-fast"}}'
{json.dumps({"return": cpus(8), "id": "libvirt-37"}, indent=2)}

[root@host ~]# virsh qemu-monitor-command guest '{{"execute":"query-migrate"}}'; date
{json.dumps({"id": "libvirt-38", "return": MIGRATE})}
Tue Sep  5 08:01:02 UTC 2023
[root@host ~]# virsh qemu-monitor-command guest '{{"execute":"query-dirty-rate"}}'
{json.dumps({"return": DIRTY, "id": "libvirt-39"})}
"""

QMP_SHELL = f"""\
$ ./qmp-shell -p /run/qmp.sock
Welcome to the QMP low-level shell!
Connected to QEMU 8.2.0

(QEMU) query-status
{json.dumps({"return": {"running": True, "singlestep": False, "status": "running"}}, indent=4)}
(QEMU) query-dirty-rate
{json.dumps({"return": DIRTY}, indent=4, sort_keys=True)}
(QEMU) query-block
{json.dumps({"return": []})}
(QEMU) query-cpus-fast
{json.dumps({"return": cpus(8)}, indent=4, sort_keys=True)}
(QEMU) query-migrate
{json.dumps({"return": MIGRATE}, indent=4, sort_keys=True)}
(QEMU) \
"""

SOCAT = "\r\n".join(
    json.dumps(v)
    for v in (
        GREETING, {"execute": "qmp_capabilities"}, {"return": {}}, {"execute": "query-dirty-rate"}, EVENT,
        {"return": DIRTY | {"status": "measuring"}}, {"execute": "query-migrate"}, {"return": MIGRATE}, EVENT,
        {"execute": "query-cpus-fast"}, {"return": cpus(8)}, {"execute": "query-dirty-rate"}, {"return": DIRTY},
    )
)  # fmt: skip


@pytest.mark.parametrize("text", [BARE, VIRSH, QMP_SHELL, SOCAT], ids=["bare", "virsh", "qmp-shell", "socat"])
def test_pasted_replies(text):
    assert numbers(parse_guest(text)) == ALL


def test_a_file_and_standard_input(tmp_path, monkeypatch):
    (tmp_path / "guest.txt").write_text(VIRSH, encoding="utf-8")
    stdin = types.SimpleNamespace(buffer=io.BytesIO(BARE.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert read_guest(tmp_path / "guest.txt") == parse_guest(VIRSH)
    assert read_guest("-") == parse_guest(BARE)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("aarch64", "arm64"),
        ("riscv64", "riscv"),
        ("loongarch64", "loongarch"),
        ("ppc64", "ppc-radix"),
        ("s390x", "s390"),
    ],
)
def test_architectures(target, name):
    assert parse_guest(json.dumps(cpus(1, target))).architecture == name
    assert name in ARCHITECTURES


def test_what_is_missing_is_said():
    guest = parse_guest(json.dumps(cpus(1, "mips64")))
    assert numbers(guest) == (1, "", 0, 0, 0, 0)
    assert guest.notes == (
        "1 vCPU: entries of query-cpus-fast",
        "architecture not known: target mips64 of query-cpus-fast is not modelled",
    )
    assert guest.missing == {
        "memory": "memory not known: no reply to query-migrate",
        "link": "link not known: no reply to query-migrate about a migration",
        "dirty": "dirty rate not known: neither query-dirty-rate nor query-migrate has one",
    }
    refused = {"error": {"class": "CommandNotFound", "desc": "The command query-dirty-rate has not been found"}}
    guest = parse_guest('{"return": {"status": "none"}} (QEMU) query-dirty-rate\n' + json.dumps(refused))
    assert guest.missing["link"] == "link not known: nothing is being migrated, or not for long enough (status none)"
    assert guest.notes[-1] == "QEMU refused a query: The command query-dirty-rate has not been found"
    guest = parse_guest(json.dumps(DIRTY | {"status": "unstarted"}))
    assert "query-dirty-rate: the measurement (calc-dirty-rate) was not started" in guest.notes


def test_without_a_measurement_the_migration_tells_the_rate():
    guest = parse_guest(json.dumps({"return": MIGRATE | {"cpu-throttle-percentage": 20}}))
    first_s = (RAM["total"] - RAM["duplicate"] * 4096) * 8 / (RAM["mbps"] * 1e6)
    assert numbers(guest)[-2:] == (100.0 * MIB, pytest.approx((40 - first_s) / 2.5))  # of four passes
    (note,) = (note for note in guest.notes if note.startswith("100 MiB/s dirtied over 4.74 s: dirty rate of query-m"))
    assert "throttled by 20 %" in note
    assert guest.dirty[0].between_s
    done = MIGRATE | {"status": "completed", "ram": RAM | {"remaining": 0, "dirty-pages-rate": 0}}
    guest = parse_guest(json.dumps(done))
    assert guest.link == 940_500_000
    assert not guest.dirty


def test_units_of_the_time():
    guest = parse_guest(json.dumps(DIRTY | {"calc-time": 500, "calc-time-unit": "millisecond"}))
    assert guest.dirty[0].seconds == 0.5
    old = {key: value for key, value in DIRTY.items() if key != "calc-time-unit"}
    ring = old | {"mode": "dirty-ring", "vcpu-dirty-rate": [{"id": 0, "dirty-rate": 54}, {"id": 1, "dirty-rate": 54}]}
    guest = parse_guest(json.dumps(ring))
    assert (guest.dirty[0].seconds, guest.vcpus) == (10.0, 2)


def ram(**changes):
    return json.dumps(MIGRATE | {"ram": RAM | {key.replace("_", "-"): value for key, value in changes.items()}})


FAULTS = {
    "": "guest.txt = empty: has no reply to query-migrate, query-dirty-rate or query-cpus-fast, and no virsh domjob",
    "hello\n{}": "guest.txt = hello: has no reply",
    "x\n" + json.dumps({"return": MIGRATE})[:99]: 'guest.txt, line 2 = {"return": {"status": "active", "setup-t: is cu',
    json.dumps(cpus(8))[:300]: "is cut off; paste the whole reply",
    '{"return": {"status": active}}': "is not JSON (Expecting value, guest.txt, line 1)",
    json.dumps(cpus(2)) + json.dumps(cpus(3)): "vCPUs = 2 and 3: the replies contradict each other; paste the replies",
    json.dumps([*cpus(1), cpus(2, "aarch64")[1]]): "target = aarch64 and x86_64: must be the same for all vCPUs",
    ram(total=-5): "query-migrate ram.total = -5: must be a whole number, at least 0",
    ram(mbps="fast"): "query-migrate ram.mbps = fast: must be a number",
    ram() + ram(total=5 * GIB): "memory = 4295622656 (ram.total of query-migrate) and 5368709120 (ram.total of query-",
    json.dumps(DIRTY | {"dirty-rate": -1}): "query-dirty-rate dirty-rate = -1: must be a whole number",
    json.dumps(DIRTY | {"calc-time": 0}): 'calc-time = 0: must be more than 0 (whole seconds are rounded down); query',
    json.dumps(DIRTY | {"calc-time": "10"}): "query-dirty-rate calc-time = 10: must be a whole number",
    json.dumps({"status": "measured"}): "query-dirty-rate = measured: must have dirty-rate and calc-time",
    "[" * 100_000: "nested too deep",
    '{"return": ' + "9" * 5000 + "}": "is not JSON (Exceeds the limit",
}  # fmt: skip


@pytest.mark.parametrize("text", FAULTS, ids=range(len(FAULTS)))
def test_wrong_texts_in_their_sentences(text):
    with pytest.raises(InputError) as fault:
        parse_guest(text, "guest.txt")
    assert FAULTS[text] in str(fault.value)


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="Is a directory: must be a readable text file or QMP socket"):
        read_guest(tmp_path)
    (tmp_path / "long").write_bytes(b" " * (2**26 + 1))
    with pytest.raises(InputError, match="is too long for replies or a log; paste its end only"):
        read_guest(tmp_path / "long")


@contextlib.contextmanager
def qemu_at(folder, monkeypatch, talk):
    """A socket in a short path, at which `talk(connection, lines)` serves one client."""
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind("qmp.sock")
        listening.listen(1)
        over = threading.Event()

        def serve():
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                with contextlib.suppress(OSError):  # the client may leave first
                    talk(connection, lines)
                over.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield "qmp.sock"
        finally:
            over.set()
            thread.join()


def answering(replies, asked, indent=None):
    """A server that answers each command by its name, with events in between and in pieces."""

    def say(connection, value):
        data = json.dumps(value, indent=indent).encode() + b"\r\n"
        connection.sendall(data[:7])
        connection.sendall(data[7:])

    def talk(connection, lines):
        say(connection, GREETING)
        say(connection, EVENT)
        for line in lines:
            command = json.loads(line)
            asked.append((command["execute"], command.get("arguments")))
            say(connection, EVENT)
            say(connection, replies(command) | {"id": command["id"]})
            say(connection, EVENT)

    return talk


def by_name(command):
    refused = {"error": {"class": "CommandNotFound", "desc": "not found"}}
    if command["execute"] == "query-dirty-rate" and "arguments" in command:
        return {"return": DIRTY | {"calc-time": 10500, "calc-time-unit": "millisecond"}}
    known = {"qmp_capabilities": {}, "query-migrate": MIGRATE, "query-dirty-rate": DIRTY, "query-cpus-fast": cpus(8),
             "query-migrate-parameters": {"downtime-limit": 500, "max-bandwidth": 0},
             "query-migrate-capabilities": [{"capability": "multifd", "state": True}],
             "query-memory-size-summary": {"base-memory": 4 * GIB, "plugged-memory": 0},
             "query-kvm": {"enabled": True, "present": True},
             "query-version": {"qemu": {"micro": 2, "minor": 0, "major": 10}, "package": "Debian"}}  # fmt: skip
    return {"return": known[command["execute"]]} if command["execute"] in known else refused


@pytest.mark.parametrize("indent", [None, 4])
def test_asking_qemu(tmp_path, monkeypatch, indent):
    asked = []
    with qemu_at(tmp_path, monkeypatch, answering(by_name, asked, indent)) as path:
        guest = read_guest(path)
    assert numbers(guest) == (*ALL[:-1], 10.5)
    assert asked == [("qmp_capabilities", None), ("query-migrate", None), ("query-dirty-rate", None),
                     ("query-dirty-rate", {"calc-time-unit": "millisecond"}), ("query-cpus-fast", None),
                     ("query-migrate-parameters", None), ("query-migrate-capabilities", None),
                     ("query-memory-size-summary", None), ("query-kvm", None), ("query-version", None)]  # fmt: skip
    assert (guest.settings.downtime_limit, guest.settings.max_bandwidth, guest.settings.multifd) == (500, 0, True)


def test_a_query_that_qemu_does_not_know_is_a_note(tmp_path, monkeypatch):
    def old(command):
        unknown = {"error": {"class": "CommandNotFound", "desc": "The command has not been found"}}
        return unknown if command["execute"] == "query-dirty-rate" else by_name(command)

    with qemu_at(tmp_path, monkeypatch, answering(old, [])) as path:
        guest = read_guest(path)
    assert guest.notes[-1] == "QEMU refused query-dirty-rate: The command has not been found"
    assert numbers(guest)[-2] == 100 * MIB


def no_answer(connection, lines):
    """A server that says nothing."""


def only_greets(connection, lines):
    connection.sendall(json.dumps(GREETING).encode() + b"\n")


def only_events(connection, lines):
    only_greets(connection, lines)
    connection.settimeout(5)
    while True:
        connection.sendall(json.dumps(EVENT).encode() + b"\n")


def human(connection, lines):
    connection.sendall(b"QEMU 8.2.0 monitor - type 'help' for more information\r\n(qemu) ")


def hangs_up(connection, lines):
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("talk", "sentence"),
    [
        (no_answer, "qmp.sock = no answer: must answer within 0.3 s; waited for its greeting; a QMP socket serves one"),
        (only_greets, "qmp.sock = no answer: must answer within 0.3 s; waited for qmp_capabilities"),
        (only_events, "no answer: must answer within 0.3 s; waited for qmp_capabilities"),
        (human, "qmp.sock = QEMU 8.2.0 monitor - type 'help' for more information: must be a QMP message; give the"),
        (hangs_up, "hung up: must answer"),
        (answering(lambda _: {"error": {"class": "GenericError", "desc": "no"}}, []),
         "qmp.sock = QEMU refused qmp_capabilities: no: must accept queries"),
        (answering(lambda _: {"return": {}}, []), "qmp.sock, query-dirty-rate = {}: is not a reply to this query"),
    ],
)  # fmt: skip
def test_a_qemu_that_does_not_answer_as_it_should(tmp_path, monkeypatch, talk, sentence):
    monkeypatch.setattr(reader, "TIMEOUT", 0.3)
    with qemu_at(tmp_path, monkeypatch, talk) as path, pytest.raises(InputError) as fault:
        read_guest(path)
    assert sentence in str(fault.value)


def test_a_socket_that_nobody_serves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind("left")
    with pytest.raises(InputError, match="left = Connection refused: must be a QMP socket that accepts connections"):
        read_guest("left")


def migration(guest=None, **workload):
    return Scenario.parse(
        {"guest": {"vcpus": 4, "memory": "128M"} | (guest or {}), "policy": {"architecture": "x86-tdp"},
         "workload": {"kind": "migration", "access": "uniform", "shared": True} | workload}
    )  # fmt: skip


def test_sizes_are_rounded_up_to_what_the_scenario_needs():
    guest = RunningGuest(vcpus=3, memory=4 * GIB + 655360, link=940_500_000)
    found = apply(guest, migration(clear_chunk="128M"))
    assert (found.guest.memory, found.guest.vcpus, found.workload.link) == (683 * 6 * MIB, 3, 940_500_000)
    assert found.workload.clear_chunk == 128 * MIB
    assert apply(RunningGuest(), found) == found
    small = apply(RunningGuest(vcpus=3, memory=1), migration(clear_chunk="128M", clear_threads=4))
    assert small.guest.memory == small.workload.clear_chunk == 6 * MIB
    assert apply(RunningGuest(vcpus=5), migration()).guest.memory == 130 * MIB
    large = apply(RunningGuest(memory=GIB), migration({"page_size": "64K", "memory": "2G"}))
    assert large.guest.memory == 2 * GIB  # blocks of 512 MiB, one for each vCPU


@pytest.mark.parametrize(
    "workload",
    [{}, {"write_percent": 40}, {"access": "zipf"}, {"access": "zipf", "shared": False}, {"access": "sequential"},
     {"access": "sequential", "shared": False}],
    ids=["uniform", "partly read", "zipf", "zipf apart", "sequential", "sequential apart"],
)  # fmt: skip
@pytest.mark.parametrize("share", [0.01, 0.35])
def test_the_interval_dirties_as_much_as_was_measured(workload, share):
    seconds = 2.0
    found = apply(RunningGuest(dirty=(DirtyRate(share * 128 * MIB / 4096, seconds),)), migration(**workload))
    accesses = 4 * seconds * 1e12 / found.workload.access_interval
    assert pages_written(found, accesses) == pytest.approx(share * 32768, rel=1e-5)


@pytest.mark.parametrize("workload", [{}, {"access": "zipf", "write_percent": 50}], ids=["uniform", "zipf"])
def test_a_simulated_guest_dirties_as_much(workload):
    """CLEAR of everything takes nothing, and sending it as long as the measurement took."""
    costs = dict.fromkeys(
        ("fault_unlocked", "fault_hold", "split_hold", "line_transfer", "line_local", "clear_page", "clear_word",
         "clear_ioctl", "reacquire", "flush", "flush_per_vcpu", "kick"), "1ps",
    )  # fmt: skip
    base = migration({"memory": "32M"}, pass_limit=1, downtime="0ps", warm_up="1us", clear_when="at_once", **workload)
    base = base.with_costs(**costs)
    seconds, wanted = 0.02, 0.3 * 32 * MIB
    link = round(32 * MIB * 8 / seconds)
    guest = RunningGuest(link=link, dirty=(DirtyRate(wanted / 4096, seconds),))
    result = run_scenario(apply(guest, base), seed=1)
    assert result.metrics["dirty_left"] == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize(
    ("guest", "scenario", "sentence"),
    [
        (RunningGuest(vcpus=4), Scenario(), "must be migration to use a running guest's numbers"),
        (RunningGuest(vcpus=4), Scenario.parse({"workload": {"kind": "migration"}, "variants": {"a": {}}}),
         "variants = a: must be empty: a running guest is one scenario"),
        (RunningGuest(vcpus=4096), migration(), "guest.vcpus = 4096: must be a whole number from 1 to 1023"),
        (RunningGuest(dirty=(DirtyRate(0.0, 1.0),)), migration(),
         "dirty rate = 0 MiB/s over 1 s: must be above 0: the guest must write during a migration; measure while the "
         "guest works"),
        (RunningGuest(dirty=(DirtyRate(32768.0, 2.0),)), migration(write_percent=50),
         "dirty rate = 64 MiB/s over 2 s: is 128 MiB of distinct pages, but the scenario's guest writes only "
         "50 % of its 128 MiB; measure over a shorter time"),
        (RunningGuest(dirty=(DirtyRate(30720.0, 1.0),)), migration(access="zipf", zipf_exponent=4),
         "more than one access per picosecond"),
    ],
)  # fmt: skip
def test_what_a_scenario_cannot_do(guest, scenario, sentence):
    with pytest.raises(InputError) as fault:
        apply(guest, scenario)
    assert sentence in str(fault.value)
