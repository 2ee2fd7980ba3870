# SPDX-License-Identifier: BSD-3-Clause
"""A tried series with the lab's accessors: every call that takes mmu_lock gets a site, or is reported."""

from __future__ import annotations

import difflib
import quopri
import subprocess

import pytest

from simlib._lib.errors import InputError, SimlibError
from simlib.lab.patches import Series, read_series
from simlib.lab.source import Source
from simlib.lab.trial import kernels
from simlib.lab.trial.accessors import sites_in, to_accessors
from simlib.lab.trial.cells import mmu_modes_for
from simlib.lab.trial.kernels import stage_kernels
from simlib.lab.trial.series import SELFTESTS, bundled_numbers, bundled_patches, read_patches, series_hash
from simlib.lab.trial.tree import is_applied, select_patches, stage

PLAIN = """#include <linux/kvm_host.h>

static int clear(struct kvm *kvm)
{
	KVM_MMU_LOCK(kvm);
	cond_resched_rwlock_write(&kvm->mmu_lock);
	KVM_MMU_UNLOCK(kvm);
	return 0;
}

void age(struct kvm_vcpu *vcpu)
{
	read_lock(&vcpu->kvm->mmu_lock);
	lockdep_assert_held(&vcpu->kvm->mmu_lock);
	read_unlock(&vcpu->kvm->mmu_lock);
}
"""


def test_calls_become_accessors_and_unknown_functions_get_new_sites():
    made = to_accessors(PLAIN, {"clear": ["KVM_MMU_LOCK_CLEAR"]})
    assert "kvm_mmu_write_lock(kvm, KVM_MMU_LOCK_CLEAR);" in made.text
    assert "kvm_mmu_cond_resched_write(kvm);" in made.text
    assert "kvm_mmu_read_lock(vcpu->kvm, KVM_MMU_LOCK_IN_AGE);" in made.text
    assert made.sites == {"age": "KVM_MMU_LOCK_IN_AGE"}
    assert made.uncounted == ()
    assert "#include <linux/kvm_mmu_lock.h>" in made.text
    assert to_accessors(made.text, {}).text == made.text
    assert sites_in(made.text) == {"clear": ["KVM_MMU_LOCK_CLEAR"], "age": ["KVM_MMU_LOCK_IN_AGE"]}


def test_the_accessors_are_included_before_their_first_use_and_a_label_is_no_function():
    """arch/x86/kvm/mmu/mmu.c includes paging_tmpl.h in its middle; a label in the first column precedes an ``if``."""
    take = "{\nmmu_unlock:\n\tif (locked)\n\t\tread_lock(&kvm->mmu_lock);\n}\n"
    made = to_accessors(f'#include <a.h>\n\nvoid age(struct kvm *kvm)\n{take}#include "paging_tmpl.h"\n', {})
    assert made.text.startswith("#include <a.h>\n#include <linux/kvm_mmu_lock.h>\n")
    assert made.sites == {"age": "KVM_MMU_LOCK_IN_AGE"}
    header = f"#ifndef A_H\n#define A_H\n#include <a.h>\nstatic inline void f(struct kvm *kvm)\n{take}#endif\n"
    assert "#include <a.h>\n#include <linux/kvm_mmu_lock.h>" in to_accessors(header, {}).text


def test_a_guard_takes_the_lock_at_a_site_and_drops_it_at_the_end_of_its_block():
    plain = "#include <a.h>\n\nvoid age(struct kvm *kvm)\n{\n\tguard(read_lock)(&kvm->mmu_lock);\n}\n"
    made = to_accessors(plain, {})
    variable = (
        "kvm_read_guard __cleanup(kvm_mmu_read_unguard) = ({ kvm_mmu_read_lock(kvm, KVM_MMU_LOCK_IN_AGE); kvm; })"
    )
    assert f"\tstruct kvm *{variable};" in made.text
    assert made.text.count("void kvm_mmu_read_unguard(struct kvm **kvm)\n{\n\tkvm_mmu_read_unlock(*kvm);") == 1
    assert "write_unguard" not in made.text
    assert made.uncounted == ()
    assert to_accessors(made.text, {}).text == made.text
    scoped = to_accessors(plain.replace("guard(read_lock)(", "scoped_guard(read_lock, "), {})
    assert f"for (struct kvm *{variable}, *kvm_once = NULL; !kvm_once; kvm_once = kvm);" in scoped.text
    assert scoped.uncounted == ()


@pytest.mark.parametrize("call", ["down_write(&kvm->mmu_lock)", "spin_trylock(&kvm->mmu_lock)", "mine(&kvm->mmu_lock)"])
def test_a_call_without_an_accessor_is_reported(call):
    made = to_accessors(f"void f(struct kvm *kvm)\n{{\n\t{call};\n}}\n", {})
    [call_site] = made.uncounted
    assert (call_site.number, call_site.function, call_site.text) == (3, "f", f"{call};")


DROPS = PLAIN.replace("\tKVM_MMU_UNLOCK(kvm);\n", "\tKVM_MMU_UNLOCK(kvm);\n\tKVM_MMU_LOCK(kvm);\n" * 2, 1).replace(
    "\tKVM_MMU_LOCK(kvm);\n\treturn", "\treturn"
)


def diff(before, after):
    """Make a patch of virt/a.c."""
    rows = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/virt/a.c", "b/virt/a.c")
    return "Subject: [PATCH 1/1] drop\n---\ndiff --git a/virt/a.c b/virt/a.c\n" + "".join(rows)


BUNDLED = diff(PLAIN, to_accessors(PLAIN, {"clear": ["KVM_MMU_LOCK_CLEAR"], "age": ["KVM_MMU_LOCK_ZAP"]}).text)
"""Conflicts with `TRIED`: both change the same lines."""

TRIED = diff(PLAIN, DROPS)


@pytest.fixture
def pristine(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "read_series", lambda: bundled(tmp_path))
    tree = tmp_path / "pristine"
    (tree / "virt").mkdir(parents=True)
    (tree / "virt/a.c").write_text(PLAIN)
    return tree


def bundled(tmp_path):
    patch = tmp_path / "0001-accessors.patch"
    patch.write_text(BUNDLED)
    return Series(tmp_path, (patch,), "linux-source-6.12", (6, 12, 0))


def test_a_tried_patch_and_a_bundled_one_apply_without_a_conflict(pristine, tmp_path):
    (tmp_path / "mine.patch").write_text(TRIED)
    staged = stage(pristine, read_patches(str(tmp_path / "mine.patch")), bundled(tmp_path), tmp_path / "stage")
    text = (tmp_path / "stage/virt/a.c").read_text()
    assert text.count("kvm_mmu_write_lock(kvm, KVM_MMU_LOCK_CLEAR);") == 2
    assert "KVM_MMU_LOCK(" not in text.replace("KVM_MMU_LOCK_", "")
    assert staged.touched == ("virt/a.c",)
    assert not staged.uncounted


def test_a_patch_that_does_not_apply_is_named_with_its_hunk(pristine, tmp_path):
    (tmp_path / "mine.patch").write_text(TRIED.replace("cond_resched_rwlock_write", "cond_resched"))
    with pytest.raises(SimlibError, match=r"drop does not apply: hunk 1 of virt/a\.c, at line \d; rebase it"):
        stage(pristine, read_patches(str(tmp_path / "mine.patch")), bundled(tmp_path), tmp_path / "stage")


def test_a_series_is_a_folder_a_mailbox_or_a_range_of_commits(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()

    def git(*words):
        subprocess.run(["git", "-C", tree, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True,
                       capture_output=True)  # fmt: skip

    git("init", "-q")
    for number in range(3):
        (tree / "a.c").write_text(f"{number}\n")
        git("add", ".")
        git("commit", "-q", "-m", f"step {number}")
    by_range = read_patches("HEAD~2..HEAD", tree)
    assert [patch.name for patch in by_range] == ["step 1", "step 2"]
    git("format-patch", "-q", "-o", str(tmp_path / "out"), "HEAD~2..HEAD")
    by_folder = read_patches(str(tmp_path / "out"))
    box = tmp_path / "box"
    box.write_text("".join(path.read_text() for path in sorted((tmp_path / "out").iterdir())))
    by_mail = read_patches(str(box))
    assert [patch.name for patch in by_mail] == ["step 1", "step 2"]
    assert len(by_folder) == 2
    assert series_hash(by_range[:1]) != series_hash(by_range)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=r"has no file \*\.patch"):
        read_patches(str(empty))
    git("format-patch", "-q", "--cover-letter", "-o", str(empty), "HEAD~2..HEAD")
    assert [patch.name for patch in read_patches(str(empty))] == ["0001-step-1.patch", "0002-step-2.patch"]


def test_a_series_that_is_already_in_the_tree_is_recognised(pristine, tmp_path):
    (tmp_path / "mine.patch").write_text(TRIED)
    patches = read_patches(str(tmp_path / "mine.patch"))
    assert not is_applied(pristine, patches)
    stage(pristine, patches, select_patches(bundled(tmp_path), ()), tmp_path / "applied")
    assert is_applied(tmp_path / "applied", patches)
    assert not is_applied(tmp_path / "applied", ())


def mail(subject, body, *headers):
    lines = ("From mboxrd@z Thu Jan  1 00:00:00 1970", "From: a <a@b>", f"Subject: {subject}", *headers)
    return "\n".join(lines) + f"\n\n{body}\n"


def test_a_posted_series_is_its_last_version_without_cover_letters_and_replies(tmp_path):
    box, part = tmp_path / "box.mbx", diff("int a;\n", "int b; /* = */\n")
    coded = quopri.encodestring(part.encode()).decode()
    encoding = ("Content-Type: text/plain; charset=UTF-8", "Content-Transfer-Encoding: quoted-printable")
    mails = (
        mail("[PATCH 1/2] KVM: one", diff("int a;\n", "int old;\n")), mail("[PATCH v2 0/2] KVM: both", "Text"),
        mail("[PATCH v2 2/2] KVM: two", diff("int c;\n", "int d;\n")),
        mail("Re: [PATCH v2 1/2] KVM: one", f"Better:\n{part}"), mail("[PATCH v2 1/2] KVM: one", coded, *encoding),
    )  # fmt: skip
    box.write_text("".join(mails))
    first, second = read_patches(str(box))
    assert (first.name, second.name) == ("KVM: one", "KVM: two")
    assert "+int b; /* = */" in first.kernel_diff
    for text, refusal in (
        (mails[1], "only a cover letter"),
        ("".join(part.replace("2/2]", "3/3]").replace("1/2]", "1/3]") for part in mails[2:]), "lacks patch 2/3"),
    ):  # fmt: skip
        box.write_text(text)
        with pytest.raises(InputError, match=refusal):
            read_patches(str(box))
    box.write_text("--- linux.orig/virt/a.c\t2026-01-01\n+++ linux/virt/a.c\n@@ -1 +1 @@\n-int a;\n+int b;\n")
    [plain] = read_patches(str(box))
    assert (plain.name, plain.files) == ("box.mbx", ("virt/a.c",))


@pytest.mark.parametrize("name", ["no-such-thing", "HEAD~1..HEAD"])
def test_an_unknown_series_is_refused(name):
    with pytest.raises(InputError, match="is not a folder, a file or a range of commits"):
        read_patches(name)


def source(pristine, tmp_path):
    return Source(tmp_path / "source", "directory", "ab", (6, 12, 0), "cd")


def test_both_kernels_are_made_in_the_same_way_and_run_the_same_tests(pristine, tmp_path):
    (pristine / SELFTESTS).mkdir(parents=True)
    (pristine / SELFTESTS / "t.c").write_text("int a;\n")
    tried = TRIED + (
        f"diff --git a/{SELFTESTS}t.c b/{SELFTESTS}t.c\n--- a/{SELFTESTS}t.c\n+++ b/{SELFTESTS}t.c\n"
        "@@ -1 +1 @@\n-int a;\n+int b;\n"
    )
    (tmp_path / "mine.patch").write_text(tried)
    patches = read_patches(str(tmp_path / "mine.patch"))
    base, changed = stage_kernels(source(pristine, tmp_path), patches)
    assert SELFTESTS + "t.c" not in changed.staged.touched
    assert (base.staged.folder / "virt/a.c").read_text().count("KVM_MMU_LOCK_CLEAR") == 1
    assert (changed.staged.folder / "virt/a.c").read_text().count("KVM_MMU_LOCK_CLEAR") == 2
    again, same = stage_kernels(source(pristine, tmp_path), (), patches)
    assert [(kernel.staged.folder / "virt/a.c").read_text() for kernel in (again, same)] == 2 * [
        (changed.staged.folder / "virt/a.c").read_text()
    ]


def test_an_acquisition_that_is_not_counted_is_refused(pristine, tmp_path):
    (tmp_path / "mine.patch").write_text(diff(PLAIN, PLAIN.replace("return 0", "down_write(&kvm->mmu_lock)")))
    with pytest.raises(
        SimlibError,
        match=r"virt/a\.c, line 8, clear\(\): 'down_write\(&kvm->mmu_lock\);' takes mmu_lock where .* --kernel lock",
    ):
        stage_kernels(source(pristine, tmp_path), read_patches(str(tmp_path / "mine.patch")))
    _, changed = stage_kernels(source(pristine, tmp_path), read_patches(str(tmp_path / "mine.patch")), kind="lock-stat")
    text = (changed.staged.folder / "virt/a.c").read_text()
    assert "KVM_MMU_LOCK(kvm);" in text  # as it was
    assert "down_write" in text


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd"])
def test_a_patch_that_names_a_file_outside_of_the_tree_is_refused(tmp_path, name):
    (tmp_path / "mine.patch").write_text(TRIED.replace("+++ b/virt/a.c", f"+++ {name}"))
    with pytest.raises(InputError, match="which is outside of the tree"):
        read_patches(str(tmp_path / "mine.patch"))


def test_bundled_patches_have_numbers_and_those_that_measure_are_refused():
    assert next(patch.name for patch in bundled_patches(read_series(), bundled_numbers("16-17"))).startswith(
        "KVM: x86/mmu"
    )
    with pytest.raises(InputError, match="SERIES = 5: is not a bundled patch that adds a switch; choose 7 to 17"):
        bundled_patches(read_series(), [5])


@pytest.mark.parametrize(
    ("name", "modes"),
    [("arch/x86/kvm/mmu/tdp_mmu.c", 1), ("arch/x86/kvm/mmu/mmu.c", 2), ("virt/kvm/kvm_main.c", 4), ("tools/a.c", 0)],
)
def test_only_mmu_modes_that_use_a_file_are_tried(name, modes):
    assert len(mmu_modes_for([name])) == modes
