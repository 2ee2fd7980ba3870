# SPDX-License-Identifier: BSD-3-Clause
"""A sweep's folder in which somebody has been: what is no intact part is set aside, and told in one sentence."""

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
    """Something by the name of a part."""
    return lambda folder: make(part(folder).with_name("part-100000000-00.parquet"))


def copied(folder):
    """An intact part whose points are another one's."""
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
def test_what_is_no_intact_part_is_set_aside(change, grid, undisturbed, out):
    change(out)
    with store.opened(out, grid, resume=True) as held:
        (path,) = held.damaged
        assert os.path.lexists(path.with_name(f".{path.name}.damaged"))
        assert held.done.all()
        assert sum(held.rows.values()) == grid.points
    assert load(out).equals(load(undisturbed))


def test_what_was_set_aside_is_computed_anew_and_never_lost(grid, undisturbed, out):
    """What a kill left goes; what has another name stays."""
    path = part(out)
    half, mine = path.with_name(f".{path.name}.part"), path.with_name("mine.txt")
    half.touch()
    mine.touch()
    path.write_bytes(b"damaged")
    told = []
    with pytest.raises(InputError, match="is damaged or no part of this sweep; compute it anew"):
        load(out)
    assert run(grid, out, resume=True, workers=1, announce=told.append).kept == 32
    assert told[0] == f"{path} is damaged or no part of this sweep: set aside, its points are computed anew"
    assert path.with_name(f".{path.name}.damaged").read_bytes() == b"damaged"
    assert mine.exists()
    assert not half.exists()
    assert load(out).equals(load(undisturbed))


@pytest.mark.parametrize("name", ["lock", "sweep.json"])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("nothing")],
                         ids=["folder", "pipe", "dangling link"])  # fmt: skip
def test_what_stands_where_a_file_belongs_is_one_sentence(name, make, grid, out):
    (out / name).unlink()
    make(out / name)
    with pytest.raises(SimlibError, match=rf"{name}(:| =) .*(read|ordinary|regular|must)") as caught:
        run(grid, out, resume=True)
    assert "free some space" not in str(caught.value)


@pytest.mark.parametrize("content", ["[" * 200_000, "[]", '{"grid": 5}', "", "\x1b"])
def test_a_description_that_is_none_is_one_sentence(content, grid, out):
    (out / "sweep.json").write_text(content)
    for call in (lambda: run(grid, out, resume=True), lambda: load(out)):
        with pytest.raises(InputError, match=r"sweep\.json"):
            call()


def test_a_description_that_says_something_else_is_written_anew(grid, undisturbed, out):
    about = json.loads((out / "sweep.json").read_text())
    for strange in ({"points": 32}, {"axes": [5]}, {"policies": []}):
        (out / "sweep.json").write_text(json.dumps(about | strange))
        with pytest.raises(InputError, match=r"axes have .* points|has no sweep\.json of a sweep|damaged or no part"):
            load(out)
    (out / "sweep.json").write_text(json.dumps(about | {"points": 32, "columns": {}}))
    assert run(grid, out, resume=True).kept == 48
    assert load(out).equals(load(undisturbed))


def test_a_folder_that_is_refused_stays_as_it_was(grid, tmp_path):
    (tmp_path / "mine.txt").touch()
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InputError):
            run(grid, out)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_goes_wrong_beside_the_folder_is_not_said_of_it(grid, tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(pool.ProcessPoolExecutor, "submit", failing)
    with pytest.raises(
        SimlibError, match=r"^workers = 2: the processes cannot be started \(Too many open files\); give fewer"
    ):
        run(grid, tmp_path / "out", workers=2)


@pytest.mark.parametrize(("number", "cure"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "see to it that")])
def test_the_cure_fits_what_the_system_says(number, cure, grid, tmp_path, monkeypatch):
    def failing(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(store, "replace", failing)
    with pytest.raises(SimlibError, match=rf"sweep\.json: cannot be .* \({os.strerror(number)}\).*; {cure}"):
        run(grid, tmp_path / "out")


def test_names_that_are_no_text_are_folders_like_others(grid, undisturbed, out):
    place = out.with_name(os.fsdecode(b"o\xff"))
    out.rename(place)
    assert run(grid, place, resume=True).refused == 16
    assert load(place).equals(load(undisturbed))
    assert len(refused(place)) == 16
