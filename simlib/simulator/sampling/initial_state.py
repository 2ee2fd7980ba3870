# SPDX-License-Identifier: BSD-3-Clause
"""The memory of a window: the pages of a chunk as CLEAR finds them, and the background around it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simlib.model.job import Image
from simlib.model.steps import Block, Page
from simlib.simulator.engine.random import GAMMA, SEEK_BITS
from simlib.simulator.sampling.fluid_model import GOLDEN, Floats, MemoryState, Touches, machine_code

_ALL_DIRTY = Page.DIRTY | Page.COLLECTED
_ABSENT, _PROTECTED, _WRITABLE = int(Page.ABSENT), int(Page.PROTECTED), int(Page.WRITABLE)
_DIRTY_BEFORE, _DIRTY_SINCE = int(Page.WRITABLE | _ALL_DIRTY), int(Page.WRITABLE | Page.DIRTY)
_TABLE, _BLOCK_PROTECTED = int(Block.TABLE), int(Block.PROTECTED)
_GOLDEN = np.uint64(round(GOLDEN * 2**64))
_STEPS = np.linspace(0.0, 1.0, (1 << SEEK_BITS) + 1)


def image(terrain: MemoryState, chunk: int | None, blocks: int, faulting: Floats, accesses: float, seed: int) -> Image:
    """A chunk, if there is one, and behind it the background: so many `blocks` in all, the rest as `View` has it."""
    size = terrain.block_pages
    pages = 0 if chunk is None else int(terrain.chunks[chunk])
    found = Image(np.empty(blocks * size, np.uint8), np.full(blocks, Block.TABLE, np.uint8))
    percent, by_block = terrain.scenario.workload.write_percent, terrain.scenario.guest.mapped_as_blocks
    if chunk is not None:
        part = Image(found.pages[:pages], found.blocks[: pages // size])
        if terrain.passes:
            _cleared_before(part, *_chances(terrain, chunk, accesses), size, percent, seed)
        else:
            part.pages[:] = (Page.ABSENT if by_block else Page.WRITABLE) | _ALL_DIRTY
            part.blocks[:] = Block.WRITABLE if by_block else Block.TABLE
    first = -(-pages // size)
    protected, whole, missing = faulting.tolist()
    random = np.random.default_rng(seed)
    order = random.permutation(blocks - first)
    unsplit = int(whole / terrain.written * len(order) + random.random())  # on average as many as there should be
    found.blocks[first + order[:unsplit]] = Block.PROTECTED
    _background(found, pages, size, protected / terrain.written, missing, unsplit / len(order), percent, seed)
    return found


def _chances(terrain: MemoryState, chunk: int, accesses: float) -> tuple[float, float, float, float, float]:
    """What a page is like when CLEAR comes, of whatever class: popular pages lie scattered.

    The probabilities that a page which the guest writes was dirty when GET came, that it is dirty now, and that it is
    or nobody ever touched it; that nobody ever touched one which it only reads; and that a block was never split.
    """
    at_get, rate = terrain.clean_now()[chunk], terrain.touches.rate
    clean = at_get * np.exp(-rate * (accesses - terrain.accesses))
    age = accesses - terrain.whole_since[chunk]
    untouched, whole = np.zeros_like(rate), 0.0
    if np.isfinite(age):
        untouched, whole = np.exp(-rate * age), float(np.exp(-terrain.splitting * age))
    parts = 1 - at_get, 1 - clean, 1 - clean + np.minimum(clean, untouched), untouched
    dirty, later, gone, unread = (float(terrain.touches.pages @ part) for part in parts)
    return dirty, later, gone, unread, whole


@machine_code
def _uniform(seed: int, number: int) -> float:
    """A number from 0 to 1: SplitMix64, as `simlib.simulator.engine.random.draw`."""
    z = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(number + 1) * np.uint64(GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: float = np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return found


@machine_code
def _cleared_before(
    part: Image, dirty: float, later: float, gone: float, unread: float, whole: float, size: int, percent: int,
    seed: int,
) -> None:  # fmt: skip
    """Pages as `_chances` has them. Blocks of which no page was written may be whole still; in the others, what was
    never touched is missing.
    """
    pages, blocks = part
    clean_blocks = np.ones((len(pages) + size - 1) // size, np.bool_)
    due = 0
    for page in range(len(pages)):
        draw = _uniform(seed, page)
        due += percent
        if due < 100:
            pages[page] = _ABSENT if draw < unread else _PROTECTED
            continue
        due -= 100
        if draw < later:
            clean_blocks[page // size] = False
            pages[page] = _DIRTY_BEFORE if draw < dirty else _DIRTY_SINCE
        else:
            pages[page] = _ABSENT if draw < gone else _PROTECTED
    if whole > 0 and clean_blocks.any():
        chance = whole / clean_blocks.mean()
        for block in range(len(blocks)):
            if clean_blocks[block] and _uniform(seed, len(pages) + block) < chance:
                blocks[block] = _BLOCK_PROTECTED


@machine_code
def _background(
    found: Image, first: int, size: int, protected: float, missing: float, whole: float, percent: int, seed: int
) -> None:
    """Pages of each kind as often as their share of the accesses says, evenly spread over what is split.

    Multiples of the golden ratio fill every interval as evenly as it can be. A place is in units of 2^-64: adding two
    goes round by itself.
    """
    pages, blocks = found
    tables = max(1e-9, 1 - whole)
    absent, clean = _share(missing / tables), _share((missing + protected) / tables)
    place = np.uint64(_uniform(seed, -1) * 2.0**53) << np.uint64(11)
    due = first * percent % 100
    for block in range(first // size, len(blocks)):
        split = blocks[block] == _TABLE
        for page in range(max(first, block * size), min(len(pages), (block + 1) * size)):
            place += _GOLDEN
            due += percent
            written = due >= 100
            due -= 100 if written else 0
            kind = _WRITABLE if written and place >= clean else _PROTECTED
            kind = _ABSENT if place < absent else kind
            pages[page] = kind if split else _WRITABLE


@machine_code
def _share(share: float) -> np.uint64:
    """A share of all places."""
    return np.uint64(min(share, 1 - 2.0**-53) * 2.0**64)


def pages_of_classes(terrain: MemoryState, chunk: int | None, random: np.random.Generator) -> NDArray[np.int64]:
    """How many of a chunk's pages belong to each class: its share, rounded up or down at random."""
    pages = 0 if chunk is None else int(terrain.chunks[chunk])
    wanted = terrain.touches.pages * pages
    counts = np.floor(wanted).astype(np.int64)
    counts += random.random(len(wanted)) < wanted - counts
    counts[-1] += pages - counts.sum()
    return counts


def places(touches: Touches, counts: NDArray[np.int64], total: int, owners: float) -> Floats:
    """Where the guest touches a window of so many pages: quantiles, as `simlib.model.job.Job.places` has them.

    - `counts`, shape (classes,): the chunk's pages of each class.
    - `total`: pages of the window.
    - `owners`: share of the vCPUs that touch the chunk at all, of which these are.

    >>> everywhere = Touches(np.ones(1), np.ones(1), np.full(1, 1 / 4096))
    >>> float(places(everywhere, np.array([1024]), 2048, owners=1.0)[1024])  # a quarter of all accesses go to the chunk
    0.5
    """
    shares = np.concatenate([[0.0], np.cumsum(counts * touches.rate) / owners])
    edges = np.concatenate([[0.0], np.cumsum(counts) / total])
    if shares[-1] < 1:
        shares, edges = np.append(shares, 1.0), np.append(edges, 1.0)
    shares[-1] = 1.0
    found: Floats = np.interp(_STEPS, shares, edges)
    found[-1] = 1.0
    return found
