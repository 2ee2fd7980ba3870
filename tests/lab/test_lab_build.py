# SPDX-License-Identifier: BSD-3-Clause
"""Building kernels and checking the host, with shell scripts in place of compilers."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time

import psutil
import pytest
from lab_fakes import program

from simlib._lib.errors import InputError, SimlibError
from simlib.lab import build as build_kernel
from simlib.lab import check_host, collect, find_target, process
from simlib.lab.build import _configure, built_dir, compile_kvm, find_built, find_program, require_compiler, run_logged
from simlib.lab.cache import lab_lock, require_space
from simlib.lab.targets import TARGETS

building = importlib.import_module("simlib.lab.build")  # the package's own name is the function
X86 = find_target("x86_64")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_missing_tools_name_their_packages(only, target):
    tools = f"make, patch, bison, flex, bc, rsync, {target.compiler}gcc"
    with pytest.raises(InputError) as caught:
        require_compiler(target)
    expected = f"building for {target.name} = {tools}: not found; apt-get install {' '.join(target.packages)}"
    assert str(caught.value) == expected
    for tool in ("make", "patch", "bison", "flex", "rsync", f"{target.compiler}gcc"):
        program(only / tool, "exit 0")
    with pytest.raises(InputError, match=f"building for {target.name} = bc: not found"):
        require_compiler(target)


def test_a_missing_kernel_or_selftest_names_the_command_that_builds_it(lab):
    with pytest.raises(
        InputError, match="kernel = arm64-plain: is not built; run simlib lab build --arch arm64 --kernel"
    ):
        find_built("arm64", "plain")
    with pytest.raises(InputError, match="selftest = x: is not built; run simlib lab build --arch arm64"):
        find_program("arm64", "x")
    with pytest.raises(InputError, match="kernel = debug: is not known; known: plain, statistics, lock-stat"):
        build_kernel("arm64", "debug")
    assert not lab.exists()


def test_a_disk_that_is_too_small_is_refused_before_anything_begins(tmp_path):
    with pytest.raises(SimlibError) as caught:
        require_space(tmp_path / "not" / "there", 1e9, "the kernel source")
    assert str(caught.value).startswith("the kernel source needs 1e+09 GiB in ")
    hint = "free some space, or set SIMLIB_LAB (or TMPDIR) to a folder with more space"
    assert str(caught.value).endswith(f" GiB is free: {hint}")
    assert not list(tmp_path.iterdir())


FRAGMENT = "# a comment\nCONFIG_KVM=y\nCONFIG_NR_CPUS=16\nCONFIG_MODULES=n\n# CONFIG_WERROR is not set\n"
KEPT = "CONFIG_KVM=y\nCONFIG_NR_CPUS=16\n# CONFIG_MODULES is not set\n"


@pytest.mark.parametrize(
    ("config", "lost"),
    [
        (KEPT, ""),
        (KEPT.replace("CONFIG_KVM=y", "# CONFIG_KVM is not set"), "CONFIG_KVM=y"),
        (KEPT.replace("16", "64"), "CONFIG_NR_CPUS=16"),
        (KEPT.replace("# CONFIG_MODULES is not set", "CONFIG_MODULES=y"), "CONFIG_MODULES=n"),
        ("", "CONFIG_KVM=y, CONFIG_NR_CPUS=16"),
    ],
)
def test_a_configuration_that_loses_a_line_is_refused(tmp_path, config, lost):
    objects = tmp_path / "objects"
    objects.mkdir()
    (tmp_path / "config").write_text(config)
    make = [str(program(tmp_path / "make", f"echo \"$@\" >> '{tmp_path}/goals'; cp '{tmp_path}/config' .config"))]
    make = ["env", "-C", str(objects), *make]
    for _ in range(2):  # the second run finds the configuration and only updates it
        if not lost:
            _configure(make, objects, FRAGMENT, lambda text: None)
            continue
        with pytest.raises(SimlibError, match=rf"Kconfig dropped {lost}: add the missing dependency"):
            _configure(make, objects, FRAGMENT, lambda text: None)
    first, second = (tmp_path / "goals").read_text().splitlines()
    assert (first, second) == (f"KCONFIG_ALLCONFIG={objects}/fragment.config allnoconfig", "olddefconfig")


@pytest.mark.parametrize(
    ("output", "printed", "hint"),
    [
        ("  CC lib/error-inject.o\nkvm_main.c:7:1: error: expected ;\n  CC a.o\nmake[2]: *** [kvm_main.o] Error 1",
         ["kvm_main.c:7:1: error: expected ;", "make[2]: *** [kvm_main.o] Error 1"], "see {log}"),
        ("one\ntwo\nthree\nfour", ["two", "three", "four"], "see {log}"),
    ],
)  # fmt: skip
def test_a_failing_make_prints_its_errors(tmp_path, capsys, output, printed, hint):
    (tmp_path / "output").write_text(output)
    make, log = program(tmp_path / "make", f"cat '{tmp_path}/output'; exit 2"), tmp_path / "logs" / "build.log"
    with pytest.raises(SimlibError) as caught:
        run_logged([str(make), "bzImage"], log)
    assert str(caught.value) == f"{make} exited with status 2: {hint.format(log=log)}"
    assert capsys.readouterr().err.splitlines() == [f"  {line}" for line in printed]
    assert log.read_text() == output


def test_a_make_that_fills_the_disk_has_a_hint(tmp_path):
    make = program(tmp_path / "make", "echo 'ld: vmlinux: No space left on device'; exit 2")
    with pytest.raises(SimlibError, match=r"^ld: vmlinux: No space left on device: free some space, or set SIMLIB_LAB"):
        run_logged([str(make)], tmp_path / "build.log")


@pytest.mark.parametrize(("trap", "grace"), [("trap 'exit 0' TERM", 10.0), ("trap '' TERM", 0.2)])
def test_an_interrupt_ends_a_step_with_all_its_children(tmp_path, monkeypatch, trap, grace):
    """As a signal does; make may remove unfinished files before."""
    monkeypatch.setattr(process, "GRACE_S", grace)
    mark = tmp_path / "alive"
    script = f"{trap}; (while :; do echo >> '{mark}'; sleep 0.05; done) & while :; do sleep 0.05; done"

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        process.run([str(program(tmp_path / "make", script))], stop, stdout=subprocess.DEVNULL)
    assert time.monotonic() - start < 5
    size = mark.stat().st_size
    time.sleep(0.3)
    assert mark.stat().st_size == size


def test_a_make_within_a_make_ends_with_the_command_that_was_killed(tmp_path):
    (tmp_path / "Makefile").write_text("all:\n\t$(MAKE) inner\ninner:\n\techo $$$$ >pid; exec sleep 60\n")
    code = "from simlib.lab.process import run; run(['make', '-s'])"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as command:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = psutil.Process(command.pid).children(recursive=True)
        assert len(children) >= 3  # two makes and the sleep
        command.kill()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "image").unlink(),
        lambda folder: (folder / "initramfs.cpio").unlink(),
        lambda folder: (folder / "build.json").write_text('{"key": "k", "prov'),
        lambda folder: (folder / "build.json").write_text('["key", "provenance"]'),
        lambda folder: (folder / "build.json").write_text('{"key": "k"}'),
    ],
)
def test_a_damaged_kernel_is_not_built(lab, damage):
    folder = built_dir("arm64", "plain")
    folder.mkdir(parents=True)
    for name in ("image", "initramfs.cpio"):
        (folder / name).write_bytes(b"")
    (folder / "build.json").write_text('{"key": "k", "provenance": {}}')
    assert find_built("arm64", "plain").image.is_file()
    damage(folder)
    with pytest.raises(InputError, match="kernel = arm64-plain: is not built; run simlib lab build"):
        find_built("arm64", "plain")


def test_two_labs_at_once(lab, monkeypatch):
    """Runs share the lock on the lab; a build takes it exclusively."""
    monkeypatch.setattr(building, "require_compiler", lambda target, source: None)
    busy = rf"another simlib process is using {lab}: wait until it ends, or set SIMLIB_LAB"
    with lab_lock(exclusive=False), lab_lock(exclusive=False), pytest.raises(SimlibError, match=busy):
        build_kernel("x86_64")
    with lab_lock(exclusive=True), pytest.raises(SimlibError, match=busy):
        collect([])
    assert collect([]).records == []


def test_compiling_kvm_returns_the_log(only, lab, tmp_path):
    """With a make that configures, and prints its arguments when it compiles."""
    for tool in ("patch", "bison", "flex", "bc", "rsync", "x86_64-linux-gnu-gcc"):
        program(only / tool, "exit 0")
    objects = lab / "objects" / "x86_64-check-tree"
    configure = f"/bin/cp '{objects}/fragment.config' '{objects}/.config'"
    program(only / "make", f'case "$*" in *allnoconfig*) {configure};; *) echo "$@";; esac')
    stale = objects / "virt" / "kvm" / "a.o"
    stale.parent.mkdir(parents=True)
    stale.touch()
    words = compile_kvm(X86, "plain", tmp_path / "tree").split()
    assert {"-C", str(tmp_path / "tree"), f"O={objects}", "ARCH=x86_64", "W=1", "arch/x86/kvm/"} <= set(words)
    assert not stale.exists()  # make would not compile it again, and would print no warning


def test_a_bare_host_lists_what_to_install(only):
    findings = {finding.what: finding for finding in check_host()}
    assert {
        "patch series",
        "kernel source",
        "disk",
        "native /dev/kvm",
        *(f"kernels {name}" for name in TARGETS),
    } <= set(findings)
    for name, target in TARGETS.items():
        assert not findings[f"compiler {name}"].present
        assert findings[f"compiler {name}"].detail == f"not found: apt-get install {' '.join(target.packages)}"
        assert not findings[f"QEMU {name}"].present
        assert "run simlib lab qemu" in findings[f"QEMU {name}"].detail
        assert findings[f"kernels {name}"].detail == f"none: run simlib lab build --arch {name}"
