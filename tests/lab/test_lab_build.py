# SPDX-License-Identifier: BSD-3-Clause
"""Building, looking at the host and checking the series, with programs that are shell scripts."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import time

import psutil
import pytest
from lab_fakes import program, series

from simlib._lib.errors import InputError, SimlibError
from simlib.lab import build as build_kernel
from simlib.lab import check_host, collect, find_target, process, series_check
from simlib.lab.build import _configure, built_dir, compile_kvm, find_built, find_program, need_compiler, run_logged
from simlib.lab.cache import at_work, need_space
from simlib.lab.targets import TARGETS

building = importlib.import_module("simlib.lab.build")  # the package's own name is the function
X86 = find_target("x86_64")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_missing_tools_name_their_packages(only, target):
    tools = f"make, patch, bison, flex, bc, rsync, {target.compiler}gcc"
    with pytest.raises(InputError) as caught:
        need_compiler(target)
    expected = f"building for {target.name} = {tools}: not found; apt-get install {' '.join(target.packages)}"
    assert str(caught.value) == expected
    for tool in ("make", "patch", "bison", "flex", "rsync", f"{target.compiler}gcc"):
        program(only / tool, "exit 0")
    with pytest.raises(InputError, match=f"building for {target.name} = bc: not found"):
        need_compiler(target)


def test_what_is_not_built_says_how(lab):
    with pytest.raises(
        InputError, match="kernel = arm64-plain: is not built; run simlib lab build --arch arm64 --kernel"
    ):
        find_built("arm64", "plain")
    with pytest.raises(InputError, match="selftest = x: is not built; run simlib lab build --arch arm64"):
        find_program("arm64", "x")
    with pytest.raises(InputError, match="kernel = debug: is not known; known: plain, statistics, lock-stat"):
        build_kernel("arm64", "debug")
    assert not lab.exists()


def test_a_disk_that_is_too_small_is_said_before_anything_begins(tmp_path):
    with pytest.raises(SimlibError) as caught:
        need_space(tmp_path / "not" / "there", 1e9, "the kernel source")
    assert str(caught.value).startswith("the kernel source needs 1e+09 GiB below ")
    assert str(caught.value).endswith(" GiB are free: free some space, or set SIMLIB_LAB (or TMPDIR) to a larger place")
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
    for _ in range(2):  # the second time it is there already, and is only brought up to date
        if not lost:
            _configure(make, objects, FRAGMENT, lambda text: None)
            continue
        with pytest.raises(SimlibError, match=rf"the kernel's configuration refused {lost}: a dependency is missing"):
            _configure(make, objects, FRAGMENT, lambda text: None)
    first, second = (tmp_path / "goals").read_text().splitlines()
    assert (first, second) == (f"KCONFIG_ALLCONFIG={objects}/fragment.config allnoconfig", "olddefconfig")


@pytest.mark.parametrize(
    ("output", "shown", "cure"),
    [
        ("  CC lib/error-inject.o\nkvm_main.c:7:1: error: expected ;\n  CC a.o\nmake[2]: *** [kvm_main.o] Error 1",
         ["kvm_main.c:7:1: error: expected ;", "make[2]: *** [kvm_main.o] Error 1"], "the whole log is {log}"),
        ("one\ntwo\nthree\nfour", ["two", "three", "four"], "the whole log is {log}"),
    ],
)  # fmt: skip
def test_a_failing_make_shows_why(tmp_path, capsys, output, shown, cure):
    (tmp_path / "output").write_text(output)
    make, log = program(tmp_path / "make", f"cat '{tmp_path}/output'; exit 2"), tmp_path / "logs" / "build.log"
    with pytest.raises(SimlibError) as caught:
        run_logged([str(make), "bzImage"], log)
    assert str(caught.value) == f"{make} ended with 2: {cure.format(log=log)}"
    assert capsys.readouterr().err.splitlines() == [f"  {line}" for line in shown]
    assert log.read_text() == output


def test_a_make_that_fills_the_disk_has_a_cure(tmp_path):
    make = program(tmp_path / "make", "echo 'ld: vmlinux: No space left on device'; exit 2")
    with pytest.raises(SimlibError, match=r"^ld: vmlinux: No space left on device: free some space, or set SIMLIB_LAB"):
        run_logged([str(make)], tmp_path / "build.log")


@pytest.mark.parametrize(("tidy", "grace"), [("trap 'exit 0' TERM", 10.0), ("trap '' TERM", 0.2)])
def test_what_ends_a_step_ends_all_its_children(tmp_path, monkeypatch, tidy, grace):
    """As a signal does; make may tidy up before."""
    monkeypatch.setattr(process, "GRACE_S", grace)
    mark = tmp_path / "alive"
    script = f"{tidy}; (while :; do echo >> '{mark}'; sleep 0.05; done) & while :; do sleep 0.05; done"

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        process.run([str(program(tmp_path / "make", script))], stop, stdout=subprocess.DEVNULL)
    assert time.monotonic() - begun < 5
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
        below = psutil.Process(command.pid).children(recursive=True)
        assert len(below) >= 3  # two makes and the sleep
        command.kill()
    _, alive = psutil.wait_procs(below, timeout=20)
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
    """Runs share the lab; who changes it wants it alone."""
    monkeypatch.setattr(building, "need_compiler", lambda target, source: None)
    busy = rf"another simlib lab is at work in {lab}: wait for it, or set SIMLIB_LAB"
    with at_work(alone=False), at_work(alone=False), pytest.raises(SimlibError, match=busy):
        build_kernel("x86_64")
    with at_work(alone=True), pytest.raises(SimlibError, match=busy):
        collect([])
    assert collect([]).records == []


def test_compiling_kvm_gives_the_log(only, lab, tmp_path):
    """With a make that configures as it is told and warns about whatever it compiles."""
    for tool in ("patch", "bison", "flex", "bc", "rsync", "x86_64-linux-gnu-gcc"):
        program(only / tool, "exit 0")
    objects = lab / "objects" / "x86_64-check-tree"
    configure = f"/bin/cp '{objects}/fragment.config' '{objects}/.config'"
    program(only / "make", f'case "$*" in *allnoconfig*) {configure};; *) echo "$@";; esac')
    old = objects / "virt" / "kvm" / "a.o"
    old.parent.mkdir(parents=True)
    old.touch()
    words = compile_kvm(X86, "plain", tmp_path / "tree").split()
    assert {"-C", str(tmp_path / "tree"), f"O={objects}", "ARCH=x86_64", "W=1", "arch/x86/kvm/"} <= set(words)
    assert not old.exists()  # it would not warn again


def test_a_bare_host_is_told_what_to_install(only):
    found = {finding.what: finding for finding in check_host()}
    assert {
        "patch series",
        "kernel source",
        "disk",
        "native /dev/kvm",
        *(f"kernels {name}" for name in TARGETS),
    } <= set(found)
    for name, target in TARGETS.items():
        assert not found[f"compiler {name}"].there
        assert found[f"compiler {name}"].detail == f"not found: apt-get install {' '.join(target.packages)}"
        assert not found[f"QEMU {name}"].there
        assert "run simlib lab qemu" in found[f"QEMU {name}"].detail
        assert found[f"kernels {name}"].detail == f"none; simlib lab build --arch {name}"


@pytest.fixture
def kernel(tmp_path):
    """A tree whose scripts say what the test wants."""
    if shutil.which("perl") is None:
        pytest.skip("perl is not installed")
    scripts = tmp_path / "scripts"
    scripts.mkdir()

    def prepare(checkpatch: str, maintainers: str = ""):
        for name, text in (("checkpatch.pl", checkpatch), ("get_maintainer.pl", maintainers)):
            (scripts / name).write_text(f"print <<'END';\n{text}\nEND\n")
        return tmp_path

    return prepare


TOTAL = "total: {} errors, {} warnings, {} checks, 10 lines checked"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("ERROR: trailing whitespace\n" + TOTAL.format(1, 0, 0), "one.patch: checkpatch: ERROR: trailing whitespace"),
        ("WARNING: line\nCHECK: blank\n" + TOTAL.format(0, 1, 1), "one.patch: checkpatch: WARNING: line; CHECK: blank"),
        ("who knows", "one.patch: checkpatch: who knows"),
        (None, "one.patch: checkpatch: Can't open perl script"),
    ],
)
def test_a_patch_against_the_style_is_named(kernel, tmp_path, output, expected):
    patch, tree = tmp_path / "one.patch", kernel(output or "")
    patch.write_text("--- a/x\n+++ b/x\n")
    if output is None:
        (tree / "scripts" / "checkpatch.pl").unlink()
    with pytest.raises(SimlibError) as caught:
        series_check._checkpatch(tree, patch)
    assert str(caught.value).startswith(expected)


def test_a_new_file_needs_a_maintainer(kernel, tmp_path):
    patch, good = tmp_path / "one.patch", TOTAL.format(0, 0, 0)
    patch.write_text("--- /dev/null\n+++ b/virt/kvm/new.c\n")
    series_check._checkpatch(kernel(good, "kvm@vger.kernel.org"), patch)
    with pytest.raises(SimlibError, match=r"one\.patch: virt/kvm/new\.c is new and MAINTAINERS has no entry for it"):
        series_check._checkpatch(kernel(good, "linux-kernel@vger.kernel.org"), patch)
    patch.write_text("--- a/virt/kvm/old.c\n+++ b/virt/kvm/old.c\n")
    series_check._checkpatch(kernel(good), patch)


def test_warnings_are_the_same_wherever_they_stand():
    known = series_check._warnings("../virt/kvm/a.c:10:5: warning: unused variable 'x'\nvirt/kvm/a.c:3:1: note: no\n")
    assert known == {("virt/kvm/a.c", "unused variable 'x'")}
    assert series_check._warnings("virt/kvm/a.c:12:5: warning: unused variable 'x'\n") - known == set()
    through = "/virt/lab/{}/arch/x86/kvm/../../../virt/kvm/a.c:1:5: warning: unused variable 'x'\n"
    assert series_check._warnings(through.format("source") + through.format("pristine")) == known
    new = series_check._warnings("virt/kvm/a.c:12:5: warning: unused variable 'y'\ninclude/b.h:1:1: warning: z\n")
    assert new - known == {("virt/kvm/a.c", "unused variable 'y'"), ("include/b.h", "z")}


@pytest.mark.parametrize("before", [True, False])
def test_only_new_warnings_fail_the_series(kernel, monkeypatch, tmp_path, before):
    """If anything warns, all is compiled without the series too, once; what it says there as well is not new."""
    tree = kernel(TOTAL.format(0, 0, 0))
    warning, compiled = "/lab/{}/arch/x86/kvm/../../../virt/kvm/mmu_lock_stat.c:{}:1: warning: odd\n", []

    def compile_fake(target, kernel, tree, again=True):
        compiled.append((kernel, tree.name))
        return warning.format("pristine", 9) * before if tree.name == "pristine" else warning.format("source", 12)

    class Fake:
        origin, version = "linux.tar.xz", (6, 12, 117)

    Fake.tree = tree
    monkeypatch.setattr(series_check, "prepare_source", lambda *arguments: Fake)
    monkeypatch.setattr(series_check, "compile_kvm", compile_fake)
    monkeypatch.setattr(series_check, "prepare_step", lambda lab, series, number: tree)
    found = series(tmp_path / "s", one="Subject: nothing\n")
    monkeypatch.setattr(series_check, "read_series", lambda: found)
    if not before:
        with pytest.raises(
            SimlibError, match=r"x86_64-statistics: 1 new warnings, the first: virt/kvm/mmu_lock_stat\.c: odd"
        ):
            series_check.check_series([X86], progress=lambda text: None)
        return
    good = series_check.check_series([X86], progress=lambda text: None)
    assert good[0] == "1 patches apply to linux.tar.xz (6.12.117)"
    assert compiled == [("statistics", tree.name), ("plain", "pristine"), ("plain", tree.name)]


CODE = """\
Subject: code
--- a/{0}
+++ b/{0}
@@ -1 +1 @@
-int a;
+int b;
"""


def test_what_nothing_compiled_is_not_checked(lab, tmp_path):
    """A file needs an object of its name, or of EL2's; those of other architectures are only named."""
    names = ("virt/kvm/a.c", "arch/x86/kvm/b.c", "arch/arm64/kvm/c.c", "tools/testing/selftests/kvm/t.c")
    found = series(tmp_path / "s", **{f"p{n}": CODE.format(name) for n, name in enumerate(names)})
    objects, tree = lab / "objects" / "x86_64-check-source", tmp_path / "source"
    (objects / "virt/kvm").mkdir(parents=True)
    (objects / "virt/kvm/a.o").touch()
    known = series_check._compiled(X86, tree, found.touched())
    assert known == {"virt/kvm/a.c"}
    with pytest.raises(SimlibError, match=r"^arch/x86/kvm/b\.c: not compiled, so not checked: simlib/lab/configs must"):
        series_check._all_compiled([X86], found, known)
    (objects / "arch/x86/kvm").mkdir(parents=True)
    (objects / "arch/x86/kvm/b.nvhe.o").touch()
    text = series_check._all_compiled([X86], found, series_check._compiled(X86, tree, found.touched()))
    assert text.startswith("2 source files")
    assert text.endswith("left out, being of other architectures: arch/arm64/kvm/c.c")


def test_each_patch_is_compiled_for_what_it_can_break(lab, tmp_path, monkeypatch):
    """Common code for x86, an architecture's own for it; with the statistics once there are any; changed selftests."""
    patches = {
        "p1": CODE.format("include/linux/kvm_host.h"),
        "p2": CODE.format("arch/arm64/kvm/c.c"),
        "p3": CODE.format("virt/kvm/mmu_lock_stat.c"),
        "p4": CODE.format("Documentation/virt/kvm/api.rst"),
        "p5": CODE.format("tools/testing/selftests/kvm/x86_64/t.c"),
    }
    found, tree, done = series(tmp_path / "s", **patches), tmp_path / "steps", []

    def step(lab, series, number):
        for name in ("virt/kvm/mmu_lock_stat.c", "tools/testing/selftests/kvm/x86_64/t.c"):
            if number >= 3:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).touch()
        return tree

    def compile_fake(target, kernel, where, again=True):
        assert where == tree
        assert not again
        done.append((target.name, kernel))
        return ""

    def selftests(target, where, programs, out):
        done.append((target.name, *programs))
        return "t.c:1:2: warning: odd\n" if broken else ""

    broken = False
    monkeypatch.setattr(series_check, "prepare_step", step)
    monkeypatch.setattr(series_check, "compile_kvm", compile_fake)
    monkeypatch.setattr(series_check, "compile_selftests", selftests)
    targets = [find_target("x86_64"), find_target("arm64")]
    text = series_check._each_compiles(targets, found, lambda text: None)
    both = [("x86_64", "statistics"), ("x86_64", "plain")]
    assert done == [("x86_64", "plain"), ("arm64", "plain"), *both, ("x86_64", "x86_64/t")]
    assert text == "each patch by itself: 5 compilations of KVM and selftests succeed"
    broken = True
    with pytest.raises(SimlibError, match=r"p5\.patch: t\.c:1:2: warning: odd"):
        series_check._each_compiles(targets, found, lambda text: None)
