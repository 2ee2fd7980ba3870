# SPDX-License-Identifier: BSD-3-Clause
"""A sweep's folder that was changed by others: damaged parts are renamed, errors are one sentence."""

from __future__ import annotations

import errno
import json
import os
import shutil

import pytest

from simlib._lib.errors import InputError, SimlibError
from simlib.analysis.sweep import load, pool, refused, run, store


@pytest.fixture
def out(undisturbed, tmp_path):
    return shutil.copytree(undisturbed, tmp_path / "out")


def part(folder, architecture="arm64", name="results"):
    return next((folder / name / f"architecture={architecture}").iterdir())


def put(make):
    """Return a change that creates something with the name of a part."""
    return lambda folder: make(part(folder).with_name("part-100000000-00.parquet"))


def copied(folder):
    """Create an intact part with the points of another one."""
    path = part(folder)
    shutil.copy(path, path.with_name(path.name.replace("part-", "part-9")))


STRANGE = {
    "a copy": copied,
    "no Parquet": put(lambda path: path.write_bytes(b"PAR1" * 9)),
    "a pipe": put(os.mkfifo),
    "a folder": put(os.mkdir),
    "a link to nothing": put(lambda path: path.symlink_to("nothing")),
    "a device": put(lambda path: path.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_a_part_that_is_not_intact_is_renamed(change, grid, undisturbed, out):
    change(out)
    with store.open_store(out, grid, resume=True) as opened:
        (path,) = opened.damaged
        assert os.path.lexists(path.with_name(f".{path.name}.damaged"))
        assert opened.done.all()
        assert sum(opened.rows.values()) == grid.points
    assert load(out).equals(load(undisturbed))


def test_a_damaged_part_is_kept_and_computed_again(grid, undisturbed, out):
    """Temporary files of a killed run are removed; files with other names are kept."""
    path = part(out)
    temporary, other = path.with_name(f".{path.name}.part"), path.with_name("mine.txt")
    temporary.touch()
    other.touch()
    path.write_bytes(b"damaged")
    messages = []
    with pytest.raises(InputError, match="is damaged or does not belong to this sweep; compute it again"):
        load(out)
    assert run(grid, out, resume=True, workers=1, announce=messages.append).kept == 32
    assert messages[0] == f"{path} is damaged or does not belong to this sweep: its points are computed again"
    assert path.with_name(f".{path.name}.damaged").read_bytes() == b"damaged"
    assert other.exists()
    assert not temporary.exists()
    assert load(out).equals(load(undisturbed))


@pytest.mark.parametrize("name", ["lock", "sweep.json"])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("nothing")],
                         ids=["folder", "pipe", "dangling link"])  # fmt: skip
def test_something_else_in_place_of_a_file_is_reported_in_one_sentence(name, make, grid, out):
    (out / name).unlink()
    make(out / name)
    with pytest.raises(SimlibError, match=rf"{name}(:| =) .*(read|ordinary|regular|must)") as caught:
        run(grid, out, resume=True)
    assert "free some space" not in str(caught.value)


@pytest.mark.parametrize("content", ["[" * 200_000, "[]", '{"grid": 5}', "", "\x1b"])
def test_an_invalid_description_is_reported_in_one_sentence(content, grid, out):
    (out / "sweep.json").write_text(content)
    for call in (lambda: run(grid, out, resume=True), lambda: load(out)):
        with pytest.raises(InputError, match=r"sweep\.json"):
            call()


def test_a_changed_description_is_rewritten(grid, undisturbed, out):
    meta = json.loads((out / "sweep.json").read_text())
    for change in ({"points": 32}, {"axes": [5]}, {"policies": []}):
        (out / "sweep.json").write_text(json.dumps(meta | change))
        with pytest.raises(InputError, match=r"axes have .* points|has no valid sweep\.json|damaged or does not"):
            load(out)
    (out / "sweep.json").write_text(json.dumps(meta | {"points": 32, "columns": {}}))
    assert run(grid, out, resume=True).kept == 48
    assert load(out).equals(load(undisturbed))


def test_a_refused_folder_is_not_changed(grid, tmp_path):
    (tmp_path / "mine.txt").touch()
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InputError):
            run(grid, out)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_error_of_the_workers_does_not_name_the_folder(grid, tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(pool.ProcessPoolExecutor, "submit", failing)
    with pytest.raises(
        SimlibError, match=r"^workers = 2: the processes cannot be started \(Too many open files\); use fewer"
    ):
        run(grid, tmp_path / "out", workers=2)


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "check its type")])
def test_the_hint_depends_on_the_system_error(number, hint, grid, tmp_path, monkeypatch):
    def failing(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(store, "replace", failing)
    with pytest.raises(SimlibError, match=rf"sweep\.json: cannot be .* \({os.strerror(number)}\).*; {hint}"):
        run(grid, tmp_path / "out")


def test_a_folder_name_that_is_not_utf8_works(grid, undisturbed, out):
    place = out.with_name(os.fsdecode(b"o\xff"))
    out.rename(place)
    assert run(grid, place, resume=True).refused == 16
    assert load(place).equals(load(undisturbed))
    assert len(refused(place)) == 16
