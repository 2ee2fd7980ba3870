# SPDX-License-Identifier: BSD-3-Clause
"""The memory of a window: the pages of a chunk as CLEAR finds them, and the background around it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simlib.engine.random import SEEK_BITS
from simlib.model.job import Image
from simlib.model.steps import Block, Page
from simlib.sampling.course import Floats, Terrain, Touches

_ALL_DIRTY = Page.DIRTY | Page.COLLECTED
_STEPS = np.linspace(0.0, 1.0, (1 << SEEK_BITS) + 1)


def image(
    terrain: Terrain,
    chunk: int | None,
    counts: NDArray[np.int64],
    blocks: int,
    faulting: Floats,
    accesses: float,
    random: np.random.Generator,
) -> Image:
    """A chunk, and behind it the background.

    Parameters
    ----------
    terrain : Terrain
        At the moment of GET.
    chunk : int or None
        Which one; None: there is only the background.
    counts : ndarray of int64, shape (classes,)
        The chunk's pages of each class, which lie one class behind the other.
    blocks : int
        In all.
    faulting : ndarray, shape (3,)
        Shares of the accesses that meet a write-protected page, a block that is not split, and a missing page.
    accesses : float
        Of the guest so far, when CLEAR begins.
    random : Generator
    """
    block, pages = terrain.block_pages, int(counts.sum())
    found = Image(np.empty(blocks * block, np.uint8), np.full(blocks, Block.TABLE, np.uint8))
    written = _written(blocks * block, terrain.scenario.workload.write_percent)
    if chunk is not None:
        part = Image(found.pages[:pages], found.blocks[: pages // block])
        if terrain.passes:
            _cleared_before(part, terrain, chunk, counts, accesses, written[:pages], random)
        else:
            mapped = Page.ABSENT if terrain.scenario.guest.mapped_as_blocks else Page.WRITABLE
            part.pages[:] = mapped | _ALL_DIRTY
            part.blocks[:] = Block.WRITABLE if terrain.scenario.guest.mapped_as_blocks else Block.TABLE
    rest = Image(found.pages[pages:], found.blocks[-(-pages // block) :])
    _background(rest, terrain, faulting, written[pages:], random)
    return found


def _background(
    part: Image, terrain: Terrain, faulting: Floats, written: NDArray[np.bool_], random: np.random.Generator
) -> None:
    """As many entries of each kind as their share of the accesses says, anywhere."""
    protected, whole, missing = faulting
    size, count = terrain.block_pages, len(part.blocks)
    order = random.permutation(count)[: round(whole / terrain.written * count)]
    part.blocks[order] = Block.PROTECTED
    part.pages[:] = Page.WRITABLE
    tables = np.flatnonzero(np.repeat(part.blocks == Block.TABLE, size)[-len(part.pages) :])
    tables = random.permutation(tables)
    gone = min(len(tables), round(missing * len(part.pages)))
    part.pages[tables[:gone]] = Page.ABSENT
    clean = tables[gone:][written[tables[gone:]]]
    part.pages[clean[: round(protected * len(part.pages))]] = Page.PROTECTED


def _cleared_before(
    part: Image,
    terrain: Terrain,
    chunk: int,
    counts: NDArray[np.int64],
    accesses: float,
    written: NDArray[np.bool_],
    random: np.random.Generator,
) -> None:
    """Some pages were dirty when GET came, some became so since, and the others are clean."""
    at_get, rate = terrain.clean_now()[chunk], terrain.touches.rate
    later = at_get * -np.expm1(-rate * (accesses - terrain.accesses))
    edges = np.column_stack([1 - at_get, 1 - at_get + later])
    draws = random.random(len(part.pages), dtype=np.float32)
    states = np.array([Page.WRITABLE | _ALL_DIRTY, Page.WRITABLE | Page.DIRTY, Page.PROTECTED], np.uint8)
    begin = 0
    for number, count in enumerate(counts.tolist()):
        mine = slice(begin, begin + count)
        kind = np.add(draws[mine] >= edges[number, 0], draws[mine] >= edges[number, 1], dtype=np.uint8)
        part.pages[mine] = states[kind]
        begin += count
    if len(counts) > 1:
        # CLEAR works by words, over which popular pages are scattered; which of the pages is dirty is not kept.
        part.pages[:] = random.permutation(part.pages)
    part.pages[~written] = Page.PROTECTED
    if np.isfinite(terrain.whole_since[chunk]):
        age = accesses - terrain.whole_since[chunk]
        untouched = np.exp(-rate * age)
        among_clean = np.minimum(1.0, untouched / np.maximum(1e-300, at_get - later))
        shares = np.where(written, np.repeat(among_clean, counts), np.repeat(untouched, counts))
        _left_whole(part, float(np.exp(-terrain.splitting * age)), shares, terrain.block_pages, random)


def _left_whole(part: Image, whole: float, untouched: Floats, size: int, random: np.random.Generator) -> None:
    """A share of the blocks was never split; in the others, pages that were never touched are missing."""
    clean = part.pages == Page.PROTECTED
    candidates = clean.reshape(-1, size).all(axis=1)
    chance = min(1.0, whole / max(1e-300, float(candidates.mean())))
    part.blocks[candidates & (random.random(len(candidates)) < chance)] = Block.PROTECTED
    part.pages[clean & (random.random(len(clean), dtype=np.float32) < untouched)] = Page.ABSENT


def pages_of_classes(terrain: Terrain, chunk: int | None, random: np.random.Generator) -> NDArray[np.int64]:
    """How many of a chunk's pages belong to each class: its share, rounded up or down at random."""
    pages = 0 if chunk is None else int(terrain.chunks[chunk])
    wanted = terrain.touches.pages * pages
    counts = np.floor(wanted).astype(np.int64)
    counts += random.random(len(wanted)) < wanted - counts
    counts[-1] += pages - counts.sum()
    return counts


def places(touches: Touches, counts: NDArray[np.int64], total: int, owners: float) -> tuple[float, ...]:
    """Where the guest touches a window of so many pages: quantiles, as `simlib.model.job.Job.places` has them.

    Parameters
    ----------
    touches : Touches
    counts : ndarray of int64, shape (classes,)
        The chunk's pages of each class.
    total : int
        Pages of the window.
    owners : float
        Share of the vCPUs that touch the chunk at all, of which these are.

    Examples
    --------
    >>> everywhere = Touches(np.ones(1), np.ones(1), np.full(1, 1 / 4096))
    >>> places(everywhere, np.array([1024]), 2048, owners=1.0)[1024]  # a quarter of all accesses go to the chunk
    0.5
    """
    shares = np.concatenate([[0.0], np.cumsum(counts * touches.rate) / owners])
    edges = np.concatenate([[0.0], np.cumsum(counts) / total])
    if shares[-1] < 1:
        shares, edges = np.append(shares, 1.0), np.append(edges, 1.0)
    shares[-1] = 1.0
    return (*np.interp(_STEPS, shares, edges)[:-1].tolist(), 1.0)


@lru_cache(maxsize=16)
def _written(pages: int, percent: int) -> NDArray[np.bool_]:
    """Which pages the guest writes (`simlib.engine.reference.memory.Memory.writes`)."""
    ends = np.arange(pages + 1) * percent // 100
    return np.diff(ends) > 0
