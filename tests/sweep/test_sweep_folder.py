# SPDX-License-Identifier: BSD-3-Clause
"""A sweep's folder in which somebody has been: what is no intact part is set aside, and told in one sentence."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_sweep import rows

from simlib.errors import InputError, SimlibError
from simlib.sweep import load, pool, refused, run, store


@pytest.fixture
def out(undisturbed, tmp_path):
    return shutil.copytree(undisturbed, tmp_path / "out")


def part(folder, architecture="arm64", name="results"):
    return next((folder / name / f"architecture={architecture}").iterdir())


def content_of(**columns):
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def points_of(folder, points):
    """A part with other points."""
    table = pq.ParquetFile(part(folder)).read()
    return content_of(**dict(zip(table.column_names, table.columns, strict=True)) | {"point": points})


def put(content, first=0):
    """A part of these bytes, with the name that they ask for."""

    def change(folder):
        found = content(folder) if callable(content) else content
        digest = hashlib.blake2b(found, digest_size=16).hexdigest()
        path = part(folder).with_name(f"part-{first:09d}-{digest}.parquet")
        path.write_bytes(found)

    return change


def moved(where, *, copy=False):
    """A part elsewhere, or by another name."""

    def change(folder):
        path = part(folder, "riscv")
        place = folder / where.format(path.name)
        place.parent.mkdir(exist_ok=True)
        (shutil.copy if copy else shutil.move)(path, place)

    return change


def special(make):
    def change(folder):
        path = part(folder)
        path = path.with_name(path.name.replace("part-0", "part-1"))
        make(path)

    return change


def rows_of(folder, count=16):
    points = pq.ParquetFile(part(folder)).read()["point"].to_numpy()
    assert len(points) == count
    return points


STRANGE = {
    "a copy for an architecture that is none": moved("results/architecture=aaa/{}", copy=True),
    "a copy in the wrong place": moved("results/{}", copy=True),
    "another architecture's": moved("results/architecture=arm64/{}"),
    "a refused one": moved("refused/architecture=riscv/{}"),
    "renamed": moved("results/architecture=riscv/{}.bak"),
    "hidden": moved("results/architecture=riscv/.{}"),
    "another first point": moved("results/architecture=riscv/part-000000000-{0:.32}.parquet"),
    "no Parquet": put(b"PAR1" * 9),
    "no points": put(content_of(policy=["own"])),
    "points twice": put(lambda folder: points_of(folder, np.repeat(rows_of(folder)[:8], 2))),
    "points below 0": put(lambda folder: points_of(folder, rows_of(folder) - 99)),
    "points of no grid": put(lambda folder: points_of(folder, rows_of(folder) + 10**8), 10**8),
    "points that are missing": put(lambda folder: points_of(folder, pa.array([0, *[None] * 15], pa.int64()))),
    "points that are text": put(lambda folder: points_of(folder, [str(number) for number in range(16)])),
    "more rows than points": put(content_of(point=np.zeros(10**6, dtype=np.int64))),
    "a pipe": special(os.mkfifo),
    "a folder": special(os.mkdir),
    "a link to nothing": special(lambda path: path.symlink_to("nothing")),
    "a device": special(lambda path: path.symlink_to("/dev/zero")),
    "somebody's text": special(lambda path: path.with_name("mine.part").write_text("mine")),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_what_is_no_intact_part_is_set_aside(change, grid, out):
    change(out)
    with pytest.raises(InputError, match="is damaged or no part of this sweep; set it aside"):
        load(out), refused(out)
    with store.opened(out, grid, resume=True) as held:
        assert [path.name for path in (out / "damaged").iterdir()] == [path.name for path in held.damaged]
        assert len(held.damaged) == 1
        for name in ("results", "refused"):
            frame = rows(out, name)
            assert (frame["architecture"] == np.where(frame["point"] < grid.points // 2, "arm64", "riscv")).all()
            assert len(frame) == held.rows[name]
            assert held.done[frame["point"]].all()
        assert held.done.sum() == sum(held.rows.values()) >= grid.points - 16
    load(out)


def test_what_was_set_aside_is_computed_anew_and_never_lost(grid, undisturbed, out):
    """Twice by the same name; what is hidden disturbs no reader and stays, what a kill left goes."""
    path = part(out)
    taken = out / "damaged" / path.name
    taken.parent.mkdir()
    taken.write_text("mine")
    stray = path.with_name("a\nb\x1b")
    stray.write_text("mine")
    kept, half = stray.with_name(".DS_Store"), stray.with_name(f".{path.name}.part")
    kept.touch()
    half.touch()
    path.write_bytes(b"")
    told = []
    assert run(grid, out, resume=True, workers=1, announce=told.append).kept == 32
    assert told[0].startswith("results/architecture=arm64/a\\nb\\x1b is damaged or no part of this sweep: set aside in")
    assert taken.read_text() == (out / "damaged" / stray.name).read_text() == "mine"
    assert taken.with_name(f"{taken.name}.1").read_bytes() == b""
    assert kept.exists()
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
