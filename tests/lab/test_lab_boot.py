# SPDX-License-Identifier: BSD-3-Clause
"""A boot: parsing the console, detecting failures, and QEMU's command line."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from lab_fakes import OUTPUT, built, cell, console, program

from simlib._lib.errors import InputError, SimlibError
from simlib.lab import boot as module
from simlib.lab import find_target, needs_qemu, packages, qemu
from simlib.lab.boot import boot
from simlib.lab.build import cpio
from simlib.lab.collect import Boot
from simlib.lab.qemu import Qemu, command_line, find_qemu, portable_command

X86 = find_target("x86_64")
PLAIN = cell()
SWITCHED = cell({"dirty_log_clear_batch": 64})
THREADS = cell(clock="multithreaded")


def parse(text: str, of=PLAIN, ended: bool = True, wall_s: float = 2.0):
    """Parse a console."""
    return module._parse_console(text.encode(), "" if ended else "CPU 0 in spin", of, "qemu", wall_s)


def test_a_good_console_gives_the_outputs():
    outcome = parse("BIOS\r\n" + console(SWITCHED) + "reboot: Power down\r\n", SWITCHED)
    assert outcome.outputs == ("", OUTPUT.strip("\n"))
    assert (outcome.guest_s, outcome.wall_s) == (1.0, 2.0)
    assert parse(console(SWITCHED, stop=9.0), SWITCHED).digest == outcome.digest  # of the output, not of its time
    assert parse(console(SWITCHED, ["", "{}"]), SWITCHED).digest != outcome.digest


def test_a_test_may_print_the_words_of_a_panic():
    text = '{"name": "BUG: x"}\nno Kernel panic here'
    assert parse(console(PLAIN, [text])).outputs == (text,)


GOOD = console(PLAIN)
REFUSED = console(
    SWITCHED, ["/sys/module/kvm/parameters/dirty_log_clear_batch: 64 refused: Invalid argument"], status=22
)
PANIC = "[ 0.5] Kernel panic - not syncing: Attempted to kill init!"
FAULTS = {
    "panic": (PLAIN, console(PLAIN)[:200] + f"\r\n{PANIC}\r\n---[ end", True, f"the guest kernel crashed: {PANIC}"),
    "panic, last line": (PLAIN, PANIC, True, f"fake: the guest kernel crashed: {PANIC}"),
    "a panic within a line of the test's": (PLAIN, f"x{PANIC}", True, f"the guest kernel crashed: x{PANIC}"),
    "the panic that failed the test": (
        PLAIN,
        f"{PANIC}\r\n" + console(PLAIN, status=139),
        True,
        f"fake: the guest kernel crashed: {PANIC}",
    ),
    "empty": (
        PLAIN,
        "",
        True,
        "QEMU exited before the experiment ended; last line of the console: (the console is",
    ),
    "QEMU's own fault": (
        PLAIN,
        "qemu: no such CPU\n",
        True,
        "before the experiment ended; last line of the console: qemu: no such",
    ),
    "hang": (
        PLAIN,
        GOOD[: GOOD.index("@simlib end")],
        False,
        "fake: timed out after 20 s (raise timeout_s if the host is slow",
    ),
    "no stop": (PLAIN, GOOD[: GOOD.index("@simlib stop")], True, "QEMU exited before the experiment ended"),
    "no start": (PLAIN, GOOD.replace("@simlib start", "@simlib st"), True, "QEMU exited before the experiment"),
    "a line is missing": (SWITCHED, console(SWITCHED, [""]), True, "QEMU exited before the experiment ended"),
    "refused": (
        SWITCHED,
        REFUSED,
        True,
        "fake: the kernel refused 'parameter dirty_log_clear_batch 64': /sys/module/kvm/parameters/"
        "dirty_log_clear_batch: 64 refused: Invalid argument; check the value, and that the kernel is patched",
    ),
    "skipped": (
        PLAIN,
        console(PLAIN, ["1..0 # SKIP no KVM"], status=4),
        True,
        "fake: the test was skipped: 1..0 # S",
    ),
    "failed": (
        PLAIN,
        console(PLAIN, ["x\n  errno 12"], status=254),
        True,
        "fake: 'run /mmu_lock_contention_test -v 1 -b 2M -r 2 -p' exited with status 254:   errno 12",
    ),
    "silent": (PLAIN, console(PLAIN, [""], status=1), True, "exited with status 1: it printed nothing"),
    "more lines than it has": (
        PLAIN,
        GOOD + console(PLAIN, ["x"], status=1),
        True,
        "fake: 'an unexpected line' exited with status 1: x",
    ),
    "frames of others": (
        PLAIN,
        "@simlib end x 1\n@simlib start 1.2.3\n@simlib end 0 1\n",
        True,
        "QEMU exited befo",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_console_is_one_sentence(fault):
    of, text, ended, expected = FAULTS[fault]
    with pytest.raises(SimlibError) as caught:
        parse(text, of, ended)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("fake: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("at", range(0, len(GOOD) - 2, 97))
def test_a_console_cut_anywhere_is_no_result(at):
    with pytest.raises(SimlibError, match="QEMU exited before the experiment ended"):
        parse(GOOD[:at])


@pytest.mark.parametrize(("stop", "wall_s", "good"), [(10.5, 11.0, True), (10.5, 3.0, False), (10.5, 60.0, False)])
def test_the_multithreaded_clock_must_agree_with_the_wall_clock(stop, wall_s, good):
    text = console(THREADS, stop=stop)
    assert parse(text, PLAIN, wall_s=wall_s).wall_s == wall_s  # the deterministic clock is not compared
    if good:
        assert parse(text, THREADS, wall_s=wall_s).guest_s == pytest.approx(10.0)
        return
    with pytest.raises(
        SimlibError, match=r"10\.5 s passed on the guest's clock and .* s on the wall clock: the guest's times are"
    ):
        parse(text, THREADS, wall_s=wall_s)


def start(tmp_path: Path, script: str, of=THREADS, **options):
    """Boot a cell with a QEMU that is a shell script."""
    emulator = program(tmp_path / "qemu", script)
    return boot(of, X86, built(tmp_path / "built"), Qemu(str(emulator), (10, 0, 0)), **options)


def test_a_boot_end_to_end(tmp_path):
    """The fake emulator finds the experiment in the initramfs, as the kernel would, and prints a console."""
    (tmp_path / "console").write_text(console(THREADS, start=0.0, stop=0.1))
    script = f"""
        while [ "$1" != -initrd ]; do shift; done
        grep -aq 'run /mmu_lock_contention_test -v 1 -b 2M -r 2 -p' "$2" && cat '{tmp_path}/console'
        sleep 0.2
    """
    outcome = start(tmp_path, script, core=None)
    assert outcome.outputs == (OUTPUT.strip("\n"),)
    assert outcome.wall_s >= 0.2
    assert outcome.command.startswith("qemu -M q35 -cpu max,+svm,+npt -smp 2 -m 768M -accel tcg,thread=multi")
    assert str(tmp_path) not in outcome.command


REGISTERS = """
CPU#0
RAX=0000000000000000 RIP=ffffffff81000105 RFL=00000246
CPU#1
RIP=0000000000401000
 PC=ffffffff81000200 X00=1
 pc       ffffffff81000100
"""


def test_a_hang_is_reported_with_the_location_of_each_cpu(tmp_path, monkeypatch):
    """On x86 (the second one outside of the kernel), arm64 and riscv."""
    kernel = built(tmp_path)
    (tmp_path / "System.map").write_text("ffffffff81000100 T spin\nffffffff81000200 t idle\n")
    assert "the CPUs' registers cannot be read" in module._cpu_locations(tmp_path / "none", kernel)
    monitor = contextlib.nullcontext(types.SimpleNamespace(ask=lambda *_: {"return": REGISTERS}))
    monkeypatch.setattr(module, "Monitor", lambda path: monitor)
    locations = module._cpu_locations(tmp_path / "qmp", kernel)
    assert locations == "CPU 0 in spin, CPU 1 in user or guest code, CPU 2 in idle, CPU 3 in spin"


@pytest.mark.parametrize("silenced", ["", "exec >/dev/null 2>&1; "])
def test_a_hang_is_killed_with_all_its_children(tmp_path, silenced):
    mark = tmp_path / "alive"
    loop = f"(while :; do echo >> '{mark}'; sleep 0.05; done) >/dev/null 2>&1 & echo hello; {silenced}sleep 9 & sleep 9"
    seconds: list[float] = []
    begun = time.monotonic()
    with pytest.raises(SimlibError, match=r"timed out after 1 s .*; last line of the console: hello"):
        start(tmp_path, loop, cell(clock="multithreaded", timeout_s=1), progress=seconds.append)
    assert time.monotonic() - begun < 10
    assert seconds
    size = mark.stat().st_size
    time.sleep(0.3)
    assert mark.stat().st_size == size


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="the program setpriv is not installed")
def test_an_emulator_ends_even_if_nobody_is_left_to_end_it(tmp_path, popen):
    mark = tmp_path / "alive"
    emulator = program(tmp_path / "qemu", f"while :; do echo >> '{mark}'; sleep 0.05; done")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path; import lab_fakes; from simlib.lab import boot, find_target, qemu\n"
        "cell = lab_fakes.cell(clock='multithreaded')\n"
        f"built = lab_fakes.built(Path({str(tmp_path / 'built')!r}))\n"
        f"boot.boot(cell, find_target('x86_64'), built, qemu.Qemu({str(emulator)!r}, (10, 0, 0)))\n"
    )
    process = popen([sys.executable, "-c", code], stdout=None, stderr=None)
    while not mark.exists():
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    time.sleep(0.3)
    size = mark.stat().st_size
    time.sleep(0.3)
    assert mark.stat().st_size == size


def test_a_flooded_console_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOG_BYTES", 2**20)
    with pytest.raises(SimlibError, match=r"fake: the console log exceeds 1 MiB; its last line: pte pte"):
        start(tmp_path, "while :; do echo pte pte; done")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            None,
            r"qemu-system-x86_64 = not found: the lab's target x86_64 needs QEMU 9\.1 or later; run simlib lab q.*",
        ),
        ("7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)", r"qemu-system-x86_64 = 7\.2\.22: is too old: before 9\.1, plugins"),
        ("9.0.4", "is too old"),
        (
            "nonsense",
            r"qemu-system-x86_64 = /.* prints no version: QEMU emulator version nonsense: .*target x86_64 needs QEMU",
        ),
    ],
)
def test_a_missing_or_old_qemu_has_a_hint(only, version, expected):
    if version:
        program(only / X86.qemu, f"echo 'QEMU emulator version {version}'")
    with pytest.raises(InputError, match=expected) as caught:
        find_qemu(X86)
    assert caught.value.hint.endswith("(packages qemu-system-x86 qemu-system-common qemu-system-data seabios)")
    assert needs_qemu([X86])


BROKEN = "echo 'error while loading shared libraries: libfdt.so.1: no such file' >&2; exit 127"


def test_a_broken_qemu_is_named_unless_another_works(only, lab):
    private = program(lab / "qemu" / "bin" / X86.qemu, BROKEN)
    with pytest.raises(InputError, match=rf"= {private} prints no version: error while .* libfdt\.so\.1: no such file"):
        find_qemu(X86)
    private.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(
        InputError, match=rf"= {private} does not start: Exec format error: the lab's target x86_64 needs QEMU"
    ):
        find_qemu(X86)
    program(only / X86.qemu, "echo 'QEMU emulator version 7.2.0'")
    with pytest.raises(InputError, match=rf"= {private} does not start: Exec format error; 7\.2\.0: is too old"):
        find_qemu(X86)
    program(only / X86.qemu, "echo 'QEMU emulator version 9.1.0'")
    assert find_qemu(X86).version == (9, 1, 0)


@pytest.mark.parametrize("writer", ["everybody", "another user"])
def test_a_private_qemu_that_others_could_have_put_there_is_not_run(lab, only, monkeypatch, tmp_path, writer):
    program(lab / "qemu" / "bin" / X86.qemu, f"touch {tmp_path / 'ran'}; echo 'QEMU emulator version 10.0.0'")
    if writer == "everybody":
        (lab / "qemu").chmod(0o777)
    else:
        monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(InputError, match=r"belongs to another user|is world-writable"):
        find_qemu(X86)
    assert not (tmp_path / "ran").exists()


def test_a_fetched_qemu_joins_the_others_and_must_start(tmp_path, lab, monkeypatch):
    """The fake apt fetches packages that contain `script`."""
    arm64 = find_target("arm64")
    other = program(lab / "qemu" / "bin" / arm64.qemu, "echo 'QEMU emulator version 10.0.2'")
    script = "echo 'QEMU emulator version 10.0.3'"

    def apt(command, log):
        if "--download-only" in command:
            folder = log.parent
            (folder / "cache/archives/one.deb").touch()
            (folder / "cache/archives/libc6_2.36-9_amd64.deb").touch()
        elif command[0] == "dpkg":
            assert "libc6" not in command[-2]
            path = Path(command[-1]) / "usr" / "bin" / X86.qemu
            path.unlink(missing_ok=True)  # as dpkg does: the file may be a hard link
            program(path, script)

    monkeypatch.setattr(packages, "run_logged", apt)
    root = qemu._fetch([X86], ["deb x bookworm main"], lambda text: None)
    assert find_qemu(X86).command == str(root / "bin" / X86.qemu)
    assert find_qemu(arm64).command == str(other)
    script = BROKEN
    with pytest.raises(SimlibError, match="prints no version: error while loading shared libraries"):
        qemu._fetch([X86], ["deb x bookworm main"], lambda text: None)
    assert find_qemu(X86).version == (10, 0, 3)


def test_the_private_qemu_comes_first_unless_it_is_too_old(only, lab):
    program(only / X86.qemu, "echo 'QEMU emulator version 9.1.0'")
    assert find_qemu(X86).version == (9, 1, 0)
    (lab / "qemu" / "usr" / "share" / "seabios").mkdir(parents=True)
    private = program(lab / "qemu" / "bin" / X86.qemu, "echo 'QEMU emulator version 10.0.2 (Debian)'")
    emulator = find_qemu(X86)
    assert (emulator.command, emulator.text) == (str(private), "10.0.2")
    assert emulator.folders == (str(lab / "qemu/usr/share/seabios"), str(lab / "qemu/usr/share"))
    program(private, "echo 'QEMU emulator version 8.2.0'")
    assert find_qemu(X86).command == str(only / X86.qemu)
    assert not needs_qemu([X86])


def test_debian_sources_are_read_in_both_formats(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    assert packages.debian_sources(tmp_path, "bookworm-backports") == []
    sources = tmp_path / "sources.list.d" / "debian.sources"
    sources.write_text(
        "Types: deb\nURIs: file:/d\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /k.gpg\n\n"
        "Types: deb\nURIs: file:/s\nSuites: bookworm-security\nComponents: main\n"
    )
    assert packages.debian_sources(tmp_path, "bookworm-backports") == [
        "deb [signed-by=/k.gpg] file:/d bookworm main", "deb [signed-by=/k.gpg] file:/d bookworm-backports main",
    ]  # fmt: skip
    sources.unlink()
    (tmp_path / "sources.list").write_text("# deb file:/x bookworm main\ndeb file:/d bookworm main contrib\n")
    assert packages.debian_sources(tmp_path, "bookworm-backports") == [
        "deb file:/d bookworm main",
        "deb file:/d bookworm-backports main",
    ]
    (tmp_path / "sources.list").write_text("deb file:/d trixie main\n")
    assert packages.debian_sources(tmp_path, "bookworm-backports") == []


def test_qemu_is_fetched_on_debian_only(only, monkeypatch):
    with pytest.raises(
        InputError, match=r"QEMU = apt-get, dpkg: not found: .* on Debian 12 only; install QEMU 9\.1 or"
    ):
        qemu.fetch_qemu([X86])


def test_the_deterministic_command(tmp_path, monkeypatch):
    monkeypatch.setattr(qemu, "build_plugin", lambda: Path("/lab/slices-1.so"))
    emulator = Qemu("/lab/qemu/usr/bin/qemu-system-x86_64", (10, 0, 2), ("/lab/qemu/usr/share/seabios",))
    command = command_line(
        emulator, cell(mode="shadow", turn_instructions=500, test={"seed": 7}), X86, built(tmp_path), f"{tmp_path}/i"
    )
    text = " ".join(command)
    for part in (
        "-accel tcg,thread=single -icount shift=0,sleep=off,align=off",
        "-rtc base=2026-01-01T00:00:00,clock=vm",
        "-plugin /lab/slices-1.so,quantum=500,seed=7 -seed 7",
        "-nodefaults -display none -no-reboot -serial stdio -monitor none",
    ):
        assert part in text
    arguments = command[command.index("-append") + 1]
    assert {"nokaslr", "norandmaps", "kvm_amd.npt=0", "rdinit=/init", "panic=-1"} <= set(arguments.split())
    public = portable_command(command)
    assert public.startswith("qemu-system-x86_64 -M q35 ")
    assert "-plugin slices-1.so,quantum=500,seed=7 " in public
    assert f"-kernel image -initrd i -append '{arguments}'" in public
    assert "/lab" not in public
    assert str(tmp_path) not in public


def test_turns_are_long_until_a_function_of_the_kernel_is_called(tmp_path, monkeypatch):
    monkeypatch.setattr(qemu, "build_plugin", lambda: Path("slices.so"))
    kernel = built(tmp_path)
    (tmp_path / "System.map").write_text("f100 T begin\nf200 t finish\n")

    def plugin(turns_from):
        limited = cell(turns_from=turns_from, turns_to="finish")
        command = command_line(Qemu("qemu", (10, 0, 2)), limited, X86, kernel, "i")
        return command[command.index("-plugin") + 1]

    assert plugin("other begin").endswith(",from=f100,to=f200")
    assert plugin("other").endswith(",seed=1")  # the kernel lacks the function: all turns are short
    assert plugin("").endswith(",seed=1")


def test_the_name_of_a_result_depends_on_all_inputs(tmp_path, monkeypatch, lab):
    monkeypatch.setattr(qemu, "build_plugin", lambda: Path("/lab/slices-1.so"))
    emulator, kernel = Qemu("/lab/qemu-system-x86_64", (10, 0, 2)), built(tmp_path)

    def path(*parameters, emulator=emulator, kernel=kernel, **fields):
        return Boot(cell(*parameters, **fields), kernel, emulator).path.name

    plain = path()
    others = [
        path(mode="shadow"),
        path(clock="multithreaded"),
        path(turn_instructions=500),
        path(cpus=4),
        path(machine_memory="1G"),
        path(test={"seed": 2}),
        path(parameters={"dirty_log_clear_batch": 64}),
        path(emulator=dataclasses.replace(emulator, version=(9, 2, 0))),
        path(kernel=dataclasses.replace(kernel, provenance={"series_sha256": "2"})),
    ]
    monkeypatch.setattr(qemu, "build_plugin", lambda: Path("/lab/slices-2.so"))
    others.append(path())
    assert len({plain, *others}) == 1 + len(others)
    monkeypatch.setattr(qemu, "build_plugin", lambda: Path("/elsewhere/slices-1.so"))
    assert path(name="other", repeats=3, timeout_s=5) == plain


def test_without_a_compiler_there_is_no_plugin(only):
    with pytest.raises(InputError, match="building QEMU's plugin = gcc: not found; apt-get install gcc libc6-dev"):
        qemu.build_plugin()


def test_a_plugin_that_does_not_compile_is_an_error(only, lab):
    program(only / "gcc", "echo 'slices.c:1: error: no' >&2; exit 1")
    with pytest.raises(SimlibError, match=r"slices\.c does not compile: slices\.c:1: error: no"):
        qemu.build_plugin()
    assert not list(lab.glob("*.so"))


def members(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and content of the files of concatenated archives, read as the kernel's unpack_to_rootfs() does."""
    files, at = {}, 0
    while at < len(archive):
        if not archive[at]:  # padding between archives
            at += 4
            continue
        assert archive[at : at + 6] == b"070701"
        numbers = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        name = archive[at + 110 : at + 110 + numbers[11]]
        assert name.endswith(b"\0")
        begin = at + 110 + numbers[11] + (-(110 + numbers[11]) % 4)
        if name != b"TRAILER!!!\0":
            files[name[:-1].decode()] = (numbers[1], archive[begin : begin + numbers[6]])
        at = begin + numbers[6] + (-numbers[6] % 4)
    return files


def test_archives_can_be_concatenated():
    first = cpio({"init": b"#!\n", "odd": b"12345"}, ("dev", "proc"), console=True)
    second = cpio({"experiment": b"run /x\n"})
    assert len(first) % 512 == len(second) % 512 == 0
    assert first == cpio({"init": b"#!\n", "odd": b"12345"}, ("dev", "proc"), console=True)
    assert members(first + second) == {
        "dev": (0o040755, b""),
        "proc": (0o040755, b""),
        "dev/console": (0o020600, b""),
        "init": (0o100755, b"#!\n"),
        "odd": (0o100755, b"12345"),
        "experiment": (0o100755, b"run /x\n"),
    }


@pytest.mark.skipif(shutil.which("cpio") is None, reason="the program cpio is not installed")
def test_cpio_reads_the_archive():
    archive = cpio({"init": b"#!\n", "odd": b"12345"}, ("proc",))
    done = subprocess.run(["cpio", "-t"], input=archive, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["proc", "init", "odd"]
