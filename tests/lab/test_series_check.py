# SPDX-License-Identifier: BSD-3-Clause
"""``checks/series_check.py``: style, maintainers, warnings and coverage, with fake scripts and compilers."""

from __future__ import annotations

import shutil
import types

import pytest
import series_check
from lab_fakes import series

from simlib._lib.errors import SimlibError
from simlib.lab import find_target

X86 = find_target("x86_64")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--arch", "mips"], "architecture = mips: the lab cannot emulate it"),
        ([], "checkpatch.pl = perl: not found; apt-get install perl"),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_2(capsys, only, lab, arguments, expected):
    assert series_check.main(arguments) == 2
    assert f"simlib: {expected}" in capsys.readouterr().err
    assert not lab.exists()


@pytest.fixture
def kernel(tmp_path):
    """A tree whose scripts print what the test wants."""
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
        ("unknown", "one.patch: checkpatch: unknown"),
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


def test_warnings_are_equal_whatever_their_lines_and_folders():
    known = series_check._warnings("../virt/kvm/a.c:10:5: warning: unused variable 'x'\nvirt/kvm/a.c:3:1: note: no\n")
    assert known == {("virt/kvm/a.c", "unused variable 'x'")}
    assert series_check._warnings("virt/kvm/a.c:12:5: warning: unused variable 'x'\n") - known == set()
    through = "/virt/lab/{}/arch/x86/kvm/../../../virt/kvm/a.c:1:5: warning: unused variable 'x'\n"
    assert series_check._warnings(through.format("source") + through.format("pristine")) == known
    new = series_check._warnings("virt/kvm/a.c:12:5: warning: unused variable 'y'\ninclude/b.h:1:1: warning: z\n")
    assert new - known == {("virt/kvm/a.c", "unused variable 'y'"), ("include/b.h", "z")}


@pytest.mark.parametrize("before", [True, False])
def test_only_new_warnings_fail_the_series(kernel, monkeypatch, tmp_path, before):
    """After a warning, KVM is compiled once without the series; warnings that it has there, too, are not new."""
    tree = kernel(TOTAL.format(0, 0, 0))
    warning, compiled = "/lab/{}/arch/x86/kvm/../../../virt/kvm/mmu_lock_stat.c:{}:1: warning: odd\n", []

    def compile_fake(target, kernel, tree, rebuild=True):
        compiled.append((kernel, tree.name))
        return warning.format("pristine", 9) * before if tree.name == "pristine" else warning.format("source", 12)

    prepared = types.SimpleNamespace(origin="linux.tar.xz", version=(6, 12, 117), tree=tree)
    monkeypatch.setattr(series_check, "prepare_source", lambda *arguments: prepared)
    monkeypatch.setattr(series_check, "compile_kvm", compile_fake)
    monkeypatch.setattr(series_check, "prepare_step", lambda lab, series, number: tree)
    patches = series(tmp_path / "s", one="Subject: nothing\n")
    monkeypatch.setattr(series_check, "read_series", lambda: patches)
    if not before:
        with pytest.raises(
            SimlibError, match=r"x86_64-statistics: 1 new warnings, the first: virt/kvm/mmu_lock_stat\.c: odd"
        ):
            series_check.check_series([X86], progress=lambda text: None)
        return
    passed = series_check.check_series([X86], progress=lambda text: None)
    assert passed[0] == "1 patches apply to linux.tar.xz (6.12.117)"
    assert compiled == [("statistics", tree.name), ("plain", "pristine"), ("plain", tree.name)]


CODE = """\
Subject: code
--- a/{0}
+++ b/{0}
@@ -1 +1 @@
-int a;
+int b;
"""


def test_a_touched_file_that_no_target_compiled_is_refused(lab, tmp_path):
    """A file needs an object of its name, or of EL2's; files of other architectures are only named."""
    names = ("virt/kvm/a.c", "arch/x86/kvm/b.c", "arch/arm64/kvm/c.c", "tools/testing/selftests/kvm/t.c")
    patches = series(tmp_path / "s", **{f"p{n}": CODE.format(name) for n, name in enumerate(names)})
    objects, tree = lab / "objects" / "x86_64-check-source", tmp_path / "source"
    (objects / "virt/kvm").mkdir(parents=True)
    (objects / "virt/kvm/a.o").touch()
    compiled = series_check._compiled_files(X86, tree, patches.touched())
    assert compiled == {"virt/kvm/a.c"}
    with pytest.raises(SimlibError, match=r"^arch/x86/kvm/b\.c: not compiled, so not checked: simlib/lab/configs must"):
        series_check._check_coverage([X86], patches, compiled)
    (objects / "arch/x86/kvm").mkdir(parents=True)
    (objects / "arch/x86/kvm/b.nvhe.o").touch()
    text = series_check._check_coverage([X86], patches, series_check._compiled_files(X86, tree, patches.touched()))
    assert text.startswith("2 source files")
    assert text.endswith("not compiled, as they belong to other architectures: arch/arm64/kvm/c.c")


def test_each_patch_is_compiled_for_what_it_can_break(lab, tmp_path, monkeypatch):
    """Common code for x86, an architecture's code for its target; with the statistics once they exist; selftests."""
    patches = {
        "p1": CODE.format("include/linux/kvm_host.h"),
        "p2": CODE.format("arch/arm64/kvm/c.c"),
        "p3": CODE.format("virt/kvm/mmu_lock_stat.c"),
        "p4": CODE.format("Documentation/virt/kvm/api.rst"),
        "p5": CODE.format("tools/testing/selftests/kvm/x86_64/t.c"),
    }
    bundle, tree, done = series(tmp_path / "s", **patches), tmp_path / "steps", []

    def step(lab, series, number):
        for name in ("virt/kvm/mmu_lock_stat.c", "tools/testing/selftests/kvm/x86_64/t.c"):
            if number >= 3:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).touch()
        return tree

    def compile_fake(target, kernel, where, rebuild=True):
        assert where == tree
        assert not rebuild
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
    text = series_check._compile_each_patch(targets, bundle, lambda text: None)
    with_and_without = [("x86_64", "statistics"), ("x86_64", "plain")]
    assert done == [("x86_64", "plain"), ("arm64", "plain"), *with_and_without, ("x86_64", "x86_64/t")]
    assert text == "each patch by itself: 5 compilations of KVM and selftests succeed"
    broken = True
    with pytest.raises(SimlibError, match=r"p5\.patch: t\.c:1:2: warning: odd"):
        series_check._compile_each_patch(targets, bundle, lambda text: None)
