# SPDX-License-Identifier: BSD-3-Clause
"""Files, and sets of files, are complete or absent, and only regular files are replaced."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from simlib._lib import files
from simlib._lib.errors import InputError
from simlib._lib.files import check_writable, write_text, write_together
from simlib.measurements.importers import import_text, write_imported

TEXTS = {"a.csv": "new a", "b.csv": "new b", "c.html": "new c"}
KILLED = """
import os, sys
from pathlib import Path
from simlib._lib import files
number, calls = int(sys.argv[2]), 0
def counted(call):
    def wrapper(*arguments, **options):
        global calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), 9)
        return call(*arguments, **options)
    return wrapper
for name in ("replace", "rename", "rmdir", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
Path.write_bytes = counted(Path.write_bytes)
files.write_together(Path(sys.argv[1]), {"a.csv": "new a", "b.csv": "new b", "c.html": "new c"})
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_link_is_followed_and_stays(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.txt").symlink_to("real/file.txt")
    for text in ("one", "two"):  # a link to nothing, and to a file
        write_text(tmp_path / "link.txt", text)
        assert (tmp_path / "real" / "file.txt").read_text() == text
        assert (tmp_path / "link.txt").is_symlink()
    assert names(tmp_path / "real") == ["file.txt"]
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(InputError, match="round: cannot be written"):
        write_text(tmp_path / "round", "")


def test_a_pipe_gets_the_text_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(check_writable(tmp_path / "pipe"), "through")
    reader.join()
    assert received == ["through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert names(tmp_path) == ["pipe"]


def test_a_device_is_written_and_a_full_one_named():
    before = os.stat("/dev/null")
    write_text(check_writable("/dev/null"), "x")
    assert os.path.samestat(os.stat("/dev/null"), before)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(InputError, match=r"output = /dev/full: .*No space left on device\); free some space"):
        write_text("/dev/full", "x")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_descriptor_gets_the_text_between_what_else_is_written_there(tmp_path, name):
    program = ("from simlib._lib.files import check_writable, write_text; print('before'); "
               f"write_text(check_writable({name!r}), 'text\\n'); print('behind')")  # fmt: skip
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "before\ntext\nbehind\n"
    with (tmp_path / "file").open("w") as stream:
        subprocess.run(command, stdout=stream, check=True)
    assert contents(tmp_path) == {"file": "before\ntext\nbehind\n"}


def test_a_file_keeps_its_permissions(tmp_path):
    write_text(tmp_path / "file", "").chmod(0o600)
    write_text(tmp_path / "file", "new")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_an_obstacle_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    part = tmp_path / ".file.part"
    part.mkdir()
    with files.locked(tmp_path):
        monkeypatch.setattr(files, "_LOCK_TIMEOUT_S", 0.1)
        with pytest.raises(InputError, match=r"cannot be written \(another process is writing to its folder\)"):
            write_text(tmp_path / "file", "")

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(files.shutil, "rmtree", refuse)
    with pytest.raises(InputError, match=rf"cannot be written \({part}: Permission denied\)"):
        write_text(tmp_path / "file", "")
    assert names(tmp_path) == [".file.part"]


@pytest.mark.parametrize("there", [None, "part", "folder", "link"])
def test_leftovers_of_a_killed_process_are_replaced(tmp_path, there):
    part = tmp_path / ".file.txt.part"
    (tmp_path / "other").write_text("not mine")
    if there == "part":
        part.write_text("half of something lon")
    elif there == "folder":
        part.mkdir()
        (part / "x").write_text("")
    elif there == "link":
        part.symlink_to("other")
    write_text(tmp_path / "file.txt", "short")
    assert contents(tmp_path) == {"file.txt": "short", "other": "not mine"}


def test_writers_of_one_file_wait_for_each_other(tmp_path):
    texts = [f"{number} " * 100_000 for number in range(8)]
    threads = [threading.Thread(target=write_text, args=(tmp_path / "file", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_text() in texts
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("before", [None, {}, dict.fromkeys(TEXTS, "old") | {"mine.txt": "mine"}])
def test_a_set_is_complete_or_absent_wherever_the_process_is_killed(tmp_path, before):
    """Kill the process at each step that changes the folder; the next run completes the set."""
    for number in range(1, 50):
        out = tmp_path / str(number) / "out"
        out.parent.mkdir()
        if before is not None:
            out.mkdir()
            for name, text in before.items():
                (out / name).write_text(text)
        done = subprocess.run([sys.executable, "-c", KILLED, str(out), str(number)], capture_output=True, check=False)
        others = {name: text for name, text in (before or {}).items() if name not in TEXTS}
        if done.returncode == 0:
            assert contents(out) == TEXTS | others
            break
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        if before is None:  # a new folder: all or nothing
            assert not out.exists() or contents(out) == TEXTS
        write_together(out, TEXTS)
        assert contents(out) == TEXTS | others
        assert names(out.parent) == ["out"]
    assert number > 5


def test_a_complete_set_that_was_not_moved_is_not_lost(tmp_path):
    whole = tmp_path / ".simlib.whole"
    whole.mkdir()
    (whole / "earlier.csv").write_text("earlier")
    write_together(tmp_path, {"a.csv": "a"})
    assert contents(tmp_path) == {"a.csv": "a", "earlier.csv": "earlier"}


def test_an_import_completes_a_move_before_it_examines_the_files(tmp_path):
    """A CSV that was moved without its descriptor would be taken for a foreign file."""
    imported = import_text("kvm-stats", "remote_tlb_flush: 96\n")
    write_imported(imported, tmp_path, "mine")
    (tmp_path / ".simlib.whole").mkdir()
    (tmp_path / "mine.json").rename(tmp_path / ".simlib.whole" / "mine.json")
    write_imported(imported, tmp_path, "mine")
    assert names(tmp_path) == ["mine.csv", "mine.json"]


@pytest.mark.parametrize("new", [True, False])
def test_a_full_disk_names_the_file_and_changes_nothing(tmp_path, monkeypatch, new):
    out = tmp_path / "out"
    if not new:
        write_together(out, dict.fromkeys(TEXTS, "old"))
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name == "b.csv":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError) as caught:
        write_together(out, TEXTS)
    assert str(caught.value) == (
        f"output = {out}/b.csv: cannot be written (No space left on device); free some space, or choose another disk"
    )
    assert names(tmp_path) == ([] if new else ["out"])
    assert new or contents(out) == dict.fromkeys(TEXTS, "old")


def test_a_set_replaces_only_regular_files(tmp_path):
    (tmp_path / "b.csv").symlink_to("elsewhere")
    with pytest.raises(InputError, match=r"b\.csv: cannot be written \(the path is a link, a folder or a device\)"):
        write_together(tmp_path, TEXTS)
    assert names(tmp_path) == ["b.csv"]


def test_an_unwritable_place_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    assert check_writable(tmp_path / "new" / "deeper" / "file") == tmp_path / "new" / "deeper" / "file"
    assert check_writable(tmp_path, folder=True) == tmp_path
    assert names(tmp_path) == ["file"]
    for path, folder, reason in (
        (tmp_path, False, "Is a directory"),
        (tmp_path / "file", True, "Not a directory"),
        (tmp_path / "file" / "below", False, "Not a directory"),
        (tmp_path / ("x" * 300), False, "File name too long"),
        (Path("/proc/self/new"), False, "No such file or directory"),
        (tmp_path / "a\0b", False, "embedded null byte"),
    ):
        with pytest.raises(InputError, match=rf"cannot be written \({reason}\)"):
            check_writable(path, folder=folder)


def test_a_full_disk_is_refused_before_the_work(tmp_path, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, _content: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("simlib._lib.files.tempfile.TemporaryFile", lambda **_options: Full())
    with pytest.raises(InputError, match=r"fit\.json: cannot be written \(No space left on device\)"):
        check_writable(tmp_path / "fit.json")


def test_names_that_are_not_text_and_long_names(tmp_path):
    for name in (os.fsdecode(b"\xff.txt"), "µ" * 120 + ".txt", "x" * 255):
        write_text(tmp_path / name, name)
    assert (tmp_path / os.fsdecode(b"\xff.txt")).read_text() == "\\udcff.txt"
    assert len(names(tmp_path)) == 3
