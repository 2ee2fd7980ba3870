# SPDX-License-Identifier: BSD-3-Clause
"""Series and source: errors name what does not fit, and no tree remains half-patched or half-unpacked."""

from __future__ import annotations

import errno
import random
import shutil
import tarfile
from pathlib import Path

import pytest
from lab_fakes import ADD, CHANGE, contents, series, tree

from simlib._lib.errors import InputError, SimlibError
from simlib.lab import source
from simlib.lab.patches import apply_series, check_version
from simlib.lab.source import Source, prepare_source

needs_patch = pytest.mark.skipif(shutil.which("patch") is None, reason="the program patch is not installed")
BASE = "# base: linux-source-6.12 6.12.117"


def no_hunk(text: str) -> str:
    return text.replace("-int a4;", "-int other;")


def applied(text: str) -> str:
    return text.replace("-int a4;\n+long a4;", "-short a4;\n+int a4;")


def no_file(text: str) -> str:
    return text.replace("a.c", "missing.c")


@needs_patch
def test_a_series_changes_copies_only(tmp_path):
    kernel, patches = tree(tmp_path / "tree"), series(tmp_path / "s", one=CHANGE, two=ADD)
    before = contents(kernel)
    assert apply_series(kernel, patches, tmp_path / "stage") == ["virt/a.c", "virt/new.c"]
    staged = contents(tmp_path / "stage")
    assert staged == {"virt/a.c": before["virt/a.c"].replace("int a4", "long a4"), "virt/new.c": "int added;\n"}
    assert contents(kernel) == before


@needs_patch
@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (no_hunk, "two.patch does not apply: hunk 1 of virt/a.c, at line 4; the tree differs from the one the series"),
        (no_file, "two.patch does not apply: virt/missing.c does not exist; the tree differs"),
        (lambda text: ADD, "two.patch does not apply: virt/new.c exists already; the tree differs"),
        (applied, "two.patch or a similar change is already applied to virt/a.c: give a tree without the series"),
        (lambda text: "rubbish\n", "two.patch does not apply to the tree: patch: **** Only garbage was found"),
    ],
)
def test_a_patch_that_does_not_apply_is_named_and_leaves_nothing(tmp_path, spoil, expected):
    kernel, patches = tree(tmp_path / "tree"), series(tmp_path / "s", one=ADD, two=spoil(CHANGE))
    before = contents(kernel)
    with pytest.raises(SimlibError) as caught:
        apply_series(kernel, patches, tmp_path / "stage")
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
    assert contents(kernel) == before
    assert not (tmp_path / "stage").exists()


def test_without_the_program_patch(tmp_path, only):
    with pytest.raises(InputError, match="patch: not found; apt-get install patch"):
        apply_series(tree(tmp_path / "tree"), series(tmp_path / "s", one=CHANGE), tmp_path / "stage")


def test_a_series_has_to_name_its_kernel(tmp_path):
    with pytest.raises(InputError, match=r"series = no base: must name its kernel; add '# base: linux-source"):
        series(tmp_path / "s", base="# nothing", one=CHANGE)
    with pytest.raises(InputError, match=r"series = two\.patch: is not in the folder; restore the file, or remove"):
        series(tmp_path / "s", base=f"{BASE}\ntwo.patch")


def test_a_series_is_its_patches_and_their_order(tmp_path):
    first = series(tmp_path / "s", one=CHANGE, two=ADD)
    assert (first.package, first.version) == ("linux-source-6.12", (6, 12, 117))
    others = [series(tmp_path / "t", two=ADD, one=CHANGE), series(tmp_path / "u", one=CHANGE, two=ADD + "\n")]
    assert len({patches.sha256 for patches in (first, *others)}) == 3


def test_a_folder_without_a_kernel_is_refused_before_anything_is_copied(tmp_path, lab):
    (tmp_path / "tree").mkdir()
    with pytest.raises(InputError, match=r"source = .*: is not a Linux source tree; name the folder"):
        prepare_source(lab, series(tmp_path / "s", one=CHANGE), tmp_path / "tree")
    assert not lab.exists()


def test_a_source_package_of_another_version_is_refused(tmp_path):
    patches = series(tmp_path / "s", one=CHANGE)
    with pytest.raises(
        InputError, match=r"kernel source = 6\.11\.3: the patch series is for Linux 6\.12; install the pac"
    ):
        check_version(tree(tmp_path / "tree", "6.11.3"), patches)
    assert check_version(tree(tmp_path / "stable", "6.12.9"), patches) == (6, 12, 9)


@needs_patch
def test_a_tree_of_another_version_is_tried_and_reported(tmp_path, lab, monkeypatch):
    monkeypatch.setattr(source, "SOURCE_GIB", 0.0)
    steps = list[str]()
    made = prepare_source(lab, series(tmp_path / "s", one=CHANGE), tree(tmp_path / "tree", "7.1.3"), steps.append)
    assert made.version == (7, 1, 3)
    assert "long a4" in (made.tree / "virt" / "a.c").read_text()
    assert "the series was written for Linux 6.12, but this tree is Linux 7.1.3" in steps


@needs_patch
def test_all_patches_that_fail_are_named_and_can_be_left_out(tmp_path):
    """Patches after one that fails are tried without it."""
    bad, gone = no_hunk(CHANGE), no_file(CHANGE)
    kernel, patches = tree(tmp_path / "tree"), series(tmp_path / "s", p1=bad, p2=ADD, p3=gone)
    with pytest.raises(SimlibError) as caught:
        apply_series(kernel, patches, tmp_path / "stage")
    assert str(caught.value) == (
        "2 of 3 patches fail: p1.patch does not apply: hunk 1 of virt/a.c, at line 4; "
        "p3.patch does not apply: virt/missing.c does not exist; the tree differs from the one the series was written "
        "for: use the source package and version that kernel-patches/series names, or omit the patches that do "
        "not apply (--skip)"
    )
    assert apply_series(kernel, patches.without(["p1.patch", "p3.patch"]), tmp_path / "stage") == ["virt/new.c"]
    with pytest.raises(InputError, match=r"--skip = p4: is not a patch of the series; give its number, 1 to 3"):
        patches.without(["p4"])


def test_patches_are_left_out_by_number(tmp_path):
    named = {"0001-a": CHANGE, "0002-b": ADD, "0012-c": ADD}
    patches = series(tmp_path / "s", **named)
    assert [patch.name[:4] for patch in patches.without(["2", "0001"]).patches] == ["0012"]


LISTED = """\
Subject: tests
diff --git a/tools/testing/selftests/kvm/Makefile b/tools/testing/selftests/kvm/Makefile
--- a/tools/testing/selftests/kvm/Makefile
+++ b/tools/testing/selftests/kvm/Makefile
@@ -1,3 +1,5 @@
 TEST_GEN_PROGS_x86_64 = x86_64/cpuid_test
 TEST_GEN_PROGS_x86_64 += x86_64/a_test
+TEST_GEN_PROGS_x86_64 += x86_64/new_test
+TEST_GEN_PROGS_aarch64 += other_test
 TEST_GEN_PROGS_aarch64 += page_test
diff --git a/tools/testing/selftests/kvm/x86_64/new_test.c b/tools/testing/selftests/kvm/x86_64/new_test.c
new file mode 100644
--- /dev/null
+++ b/tools/testing/selftests/kvm/x86_64/new_test.c
@@ -0,0 +1 @@
+int x86_64;
"""


@needs_patch
def test_the_selftests_names_in_newer_trees(tmp_path):
    """Folders and the listing have other names, and the added lines have other neighbours."""
    kernel, patches = tree(tmp_path / "tree", "6.15.1"), series(tmp_path / "s", one=LISTED)
    tests = kernel / "tools/testing/selftests/kvm"
    for folder in ("x86", "arm64"):
        (tests / folder).mkdir(parents=True)
    (tests / "Makefile").write_text("include Makefile.kvm\n")
    lines = [
        "TEST_GEN_PROGS_x86 = x86/new_one",
        "TEST_GEN_PROGS_x86 += x86/last_test",
        "",
        "TEST_GEN_PROGS_arm64 = b_test",
    ]
    (tests / "Makefile.kvm").write_text("\n".join([*lines, "", "LIBS += x"]) + "\n")
    touched = apply_series(kernel, patches, tmp_path / "stage")
    folder = "tools/testing/selftests/kvm"
    assert touched == [f"{folder}/Makefile.kvm", f"{folder}/x86/new_test.c"]
    wanted = [*lines[:2], "TEST_GEN_PROGS_x86 += x86/new_test", "", lines[3], "TEST_GEN_PROGS_arm64 += other_test"]
    staged = contents(tmp_path / "stage")
    assert staged[f"{folder}/Makefile.kvm"] == "\n".join([*wanted, "", "LIBS += x"]) + "\n"
    assert staged[f"{folder}/x86/new_test.c"] == "int x86_64;\n"
    more = LISTED.replace("new_test", "more_test").replace("+TEST_GEN_PROGS_aarch64 += other_test\n", "")
    apply_series(kernel, series(tmp_path / "t", one=LISTED, two=more), tmp_path / "stage")  # after the same line
    lines = contents(tmp_path / "stage")[f"{folder}/Makefile.kvm"].splitlines()
    assert lines[2:4] == ["TEST_GEN_PROGS_x86 += x86/new_test", "TEST_GEN_PROGS_x86 += x86/more_test"]
    (tests / "Makefile.kvm").write_text("\n".join(wanted) + "\n")  # listed there already
    assert apply_series(kernel, patches, tmp_path / "stage") == [f"{folder}/x86/new_test.c"]


def prepare(tmp_path: Path, **patches: str) -> Source:
    """The source package's tree with these patches."""
    shutil.rmtree(tmp_path / "s", ignore_errors=True)
    return prepare_source(tmp_path / "lab", series(tmp_path / "s", **patches), progress=lambda text: None)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """The source package."""
    kernel, packed = tree(tmp_path / "linux-source-6.12"), tmp_path / "linux-source-6.12.tar.xz"
    (kernel / "noise").write_text(random.Random(0).randbytes(100_000).hex())  # noqa: S311  # so that it packs badly
    with tarfile.open(packed, "w:xz") as stream:
        stream.add(kernel, kernel.name)
    monkeypatch.setattr(source, "find_archive", lambda series: packed)
    monkeypatch.setattr(source, "SOURCE_GIB", 0.0)
    return packed


@needs_patch
def test_a_tree_is_unpacked_once_and_only_changes_are_written(tmp_path, lab, archive):
    made = prepare(tmp_path, one=CHANGE, two=ADD)
    assert (made.origin, made.version) == ("linux-source-6.12.tar.xz", (6, 12, 117))
    pristine = contents(lab / "pristine")
    assert contents(made.tree) == pristine | {
        "virt/a.c": pristine["virt/a.c"].replace("int a4", "long a4"), "virt/new.c": "int added;\n"
    }  # fmt: skip
    times = {path: path.stat().st_mtime_ns for path in made.tree.rglob("*") if path.is_file()}
    assert prepare(tmp_path, one=CHANGE, two=ADD) == made
    assert {path: path.stat().st_mtime_ns for path in times} == times
    less = prepare(tmp_path, two=ADD)  # gives back what only the other patch touched
    assert less.series_sha256 != made.series_sha256
    assert contents(less.tree) == pristine | {"virt/new.c": "int added;\n"}
    assert (made.tree / "virt" / "new.c").stat().st_mtime_ns == times[made.tree / "virt" / "new.c"]
    assert contents(prepare(tmp_path, one=CHANGE).tree) == contents(lab / "pristine") | {
        "virt/a.c": pristine["virt/a.c"].replace("int a4", "long a4")
    }
    assert contents(lab / "pristine") == pristine


@needs_patch
def test_a_patch_that_fails_leaves_the_tree_as_it_was(tmp_path, lab, archive):
    before = contents(prepare(tmp_path, one=CHANGE).tree)
    with pytest.raises(SimlibError, match=r"hunk 1 of virt/a\.c"):
        prepare(tmp_path, one=no_hunk(CHANGE), two=ADD)
    assert contents(lab / "source") == before


@needs_patch
def test_another_source_leaves_no_objects_of_the_old_one(tmp_path, lab, archive):
    """The files of the new source may be older than the objects, and make compares dates."""
    prepare(tmp_path, one=CHANGE)
    objects = lab / "objects" / "x86_64-plain" / "a.o"
    objects.parent.mkdir(parents=True)
    objects.touch()
    prepare(tmp_path, two=ADD)
    assert objects.exists()  # the series writes the files that it changes
    other = tree(tmp_path / "linux")
    prepare_source(lab, series(tmp_path / "s", one=CHANGE), other, lambda text: None)
    assert not objects.exists()


@needs_patch
def test_without_hard_links_files_are_copied(tmp_path, lab, archive, monkeypatch):
    def refuse(*paths: Path, **options: bool) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(source.os, "link", refuse)
    made = prepare(tmp_path, two=ADD)
    assert contents(made.tree) == contents(lab / "pristine") | {"virt/new.c": "int added;\n"}


@pytest.mark.parametrize("place", ["", "pristine", "trees/mine"])
def test_a_source_within_the_lab_is_refused_and_stays(tmp_path, lab, place):
    kernel, patches = tree(lab / place), series(tmp_path / "s", one=CHANGE)
    before = contents(lab)
    with pytest.raises(InputError, match=r"source = .*: is in the lab's folder; give a tree out"):
        prepare_source(lab, patches, kernel)
    assert contents(lab) == before


@pytest.mark.parametrize("left", [".config", "include/config/auto.conf"])
def test_a_source_that_was_built_in_is_refused(tmp_path, lab, left):
    kernel = tree(tmp_path / "linux")
    (kernel / left).parent.mkdir(parents=True, exist_ok=True)
    (kernel / left).touch()
    with pytest.raises(InputError, match=r"source = .*: was built in place: it has .*; run make mrproper there, or"):
        prepare_source(lab, series(tmp_path / "s", one=CHANGE), kernel)
    assert not lab.exists()


@needs_patch
@pytest.mark.parametrize("damage", ["cut", "bits", "no archive"])
def test_a_damaged_archive_leaves_no_tree(tmp_path, lab, archive, damage):
    whole = archive.read_bytes()
    half = len(whole) // 2
    raw = {"cut": whole[:half], "bits": whole[:half] + bytes(9) + whole[half + 9 :], "no archive": b"hello"}
    archive.write_bytes(raw[damage])
    with pytest.raises(SimlibError, match=r"linux-source-6\.12\.tar\.xz cannot be unpacked .*: reinstall the package"):
        prepare(tmp_path, one=CHANGE)
    assert not [*lab.glob("pristine*"), *lab.glob("source*")]
    archive.write_bytes(whole)
    assert "long a4" in (prepare(tmp_path, one=CHANGE).tree / "virt" / "a.c").read_text()


@needs_patch
def test_an_interrupted_update_is_repaired(tmp_path, lab, archive, monkeypatch):
    wanted = contents(prepare(tmp_path, one=CHANGE, two=ADD).tree)
    copies = iter([shutil.copy, None])

    def interrupted(*paths: Path) -> None:
        copy = next(copies)
        if copy is None:
            raise KeyboardInterrupt
        copy(*paths)

    prepare(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(source.shutil, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path, one=CHANGE, two=ADD)
    half = contents(lab / "source")
    assert half != wanted
    assert half != contents(lab / "pristine")
    assert contents(prepare(tmp_path).tree) == contents(lab / "pristine")
    assert contents(prepare(tmp_path, one=CHANGE, two=ADD).tree) == wanted
    (lab / "pristine.key").unlink()  # as if unpacking had been cut off
    shutil.rmtree(lab / "pristine" / "virt")
    assert contents(prepare(tmp_path, one=CHANGE, two=ADD).tree) == wanted


@needs_patch
def test_the_callers_tree_is_only_read_and_its_edits_are_detected(tmp_path, monkeypatch):
    kernel, patches = tree(tmp_path / "linux"), series(tmp_path / "s", one=CHANGE)
    (kernel / ".git").write_text("gitdir: elsewhere\n")
    (kernel / "link").symlink_to("virt")
    monkeypatch.setattr(source, "SOURCE_GIB", 0.0)
    lab = kernel / "build" / "lab"  # the default, if the current folder is a kernel tree
    before = contents(kernel)
    first = prepare_source(lab, patches, kernel, lambda text: None)
    assert (first.origin, (first.tree / "link").is_symlink()) == ("directory", True)
    assert sorted(contents(lab / "pristine")) == ["Makefile", "virt/a.c", "virt/b.c"]
    assert {name: text for name, text in contents(kernel).items() if not name.startswith("build/")} == before
    assert prepare_source(lab, patches, kernel, lambda text: None) == first
    (kernel / "virt" / "b.c").write_text("int c;\n")
    second = prepare_source(lab, patches, kernel, lambda text: None)
    assert (second.tree / "virt" / "b.c").read_text() == "int c;\n"
    assert second.sha256 != first.sha256
