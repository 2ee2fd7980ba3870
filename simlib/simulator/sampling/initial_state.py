# SPDX-License-Identifier: BSD-3-Clause
"""Initial memory of a window: the pages of a chunk as CLEAR finds them, and the background around it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simlib.model.job import Image
from simlib.model.steps import Block, Page
from simlib.simulator.engine.compiled.clock import mix
from simlib.simulator.engine.random import GAMMA, SEEK_BITS
from simlib.simulator.sampling.fluid_model import GOLDEN, Floats, MemoryState, Touches, compiled_function

_ALL_DIRTY = Page.DIRTY | Page.COLLECTED
_ABSENT, _PROTECTED, _WRITABLE = int(Page.ABSENT), int(Page.PROTECTED), int(Page.WRITABLE)
_DIRTY_BEFORE, _DIRTY_SINCE = int(Page.WRITABLE | _ALL_DIRTY), int(Page.WRITABLE | Page.DIRTY)
_TABLE, _BLOCK_PROTECTED = int(Block.TABLE), int(Block.PROTECTED)
_GOLDEN = np.uint64(round(GOLDEN * 2**64))
_STEPS = np.linspace(0.0, 1.0, (1 << SEEK_BITS) + 1)


def initial_image(
    memory: MemoryState, chunk: int | None, blocks: int, faulting: Floats, accesses: float, seed: int
) -> Image:
    """Image of `blocks` blocks: a chunk, if there is one, followed by the background, as `WindowSpec` describes it."""
    size = memory.block_pages
    pages = 0 if chunk is None else int(memory.chunks[chunk])
    result = Image(np.empty(blocks * size, np.uint8), np.full(blocks, Block.TABLE, np.uint8))
    percent, mapped_as_blocks = memory.scenario.workload.write_percent, memory.scenario.guest.mapped_as_blocks
    if chunk is not None:
        part = Image(result.pages[:pages], result.blocks[: pages // size])
        if memory.passes:
            _cleared_before(part, *_chances(memory, chunk, accesses), size, percent, seed)
        else:
            part.pages[:] = (Page.ABSENT if mapped_as_blocks else Page.WRITABLE) | _ALL_DIRTY
            part.blocks[:] = Block.WRITABLE if mapped_as_blocks else Block.TABLE
    first = -(-pages // size)
    protected, unsplit_share, missing = faulting.tolist()
    random = np.random.default_rng(seed)
    shuffled = random.permutation(blocks - first)
    unsplit = int(unsplit_share / memory.written * len(shuffled) + random.random())
    result.blocks[first + shuffled[:unsplit]] = Block.PROTECTED
    _background(result, pages, size, protected / memory.written, missing, unsplit / len(shuffled), percent, seed)
    return result


def _chances(memory: MemoryState, chunk: int, accesses: float) -> tuple[float, float, float, float, float]:
    """Return the probabilities of the states of a page when CLEAR reaches it, averaged over the classes.

    Averages suffice because popular pages are scattered. The probabilities are: that a page which the guest writes
    was dirty at GET; that it is dirty now; that it is dirty or was never accessed; that a page which the guest only
    reads was never accessed; and that a block was never split.
    """
    at_get, rate = memory.clean_now()[chunk], memory.touches.rate
    clean = at_get * np.exp(-rate * (accesses - memory.accesses))
    age = accesses - memory.whole_since[chunk]
    never_accessed, unsplit = np.zeros_like(rate), 0.0
    if np.isfinite(age):
        never_accessed, unsplit = np.exp(-rate * age), float(np.exp(-memory.splitting * age))
    parts = 1 - at_get, 1 - clean, 1 - clean + np.minimum(clean, never_accessed), never_accessed
    dirty, later, absent, untouched = (float(memory.touches.pages @ part) for part in parts)
    return dirty, later, absent, untouched, unsplit


@compiled_function
def _uniform(seed: int, number: int) -> float:
    """Uniform random number from 0 to 1: SplitMix64, as `simlib.simulator.engine.random.draw`."""
    z = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(number + 1) * np.uint64(GAMMA)
    value: float = np.float64(mix(z) >> np.uint64(11)) * 2.0**-53
    return value


@compiled_function
def _cleared_before(
    part: Image, dirty: float, later: float, absent: float, untouched: float, unsplit: float, size: int, percent: int,
    seed: int,
) -> None:  # fmt: skip
    """Set the pages at random, with the probabilities of `_chances`.

    Blocks of which no page was written may be unsplit; in the others, pages that were never accessed are missing.
    """
    pages, blocks = part
    clean_blocks = np.ones((len(pages) + size - 1) // size, np.bool_)
    due = 0
    for page in range(len(pages)):
        draw = _uniform(seed, page)
        due += percent
        if due < 100:
            pages[page] = _ABSENT if draw < untouched else _PROTECTED
            continue
        due -= 100
        if draw < later:
            clean_blocks[page // size] = False
            pages[page] = _DIRTY_BEFORE if draw < dirty else _DIRTY_SINCE
        else:
            pages[page] = _ABSENT if draw < absent else _PROTECTED
    if unsplit > 0 and clean_blocks.any():
        chance = unsplit / clean_blocks.mean()
        for block in range(len(blocks)):
            if clean_blocks[block] and _uniform(seed, len(pages) + block) < chance:
                blocks[block] = _BLOCK_PROTECTED


@compiled_function
def _background(
    background: Image, first: int, size: int, protected: float, missing: float, unsplit: float, percent: int, seed: int
) -> None:
    """Set pages of each kind in proportion to their share of the accesses, evenly spread over the split blocks.

    Multiples of the golden ratio fill every interval as evenly as possible. A place is in units of 2^-64, so that
    additions wrap around.
    """
    pages, blocks = background
    tables = max(1e-9, 1 - unsplit)
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


@compiled_function
def _share(share: float) -> np.uint64:
    """Convert a share to units of 2^-64."""
    return np.uint64(min(share, 1 - 2.0**-53) * 2.0**64)


def pages_of_classes(memory: MemoryState, chunk: int | None, random: np.random.Generator) -> NDArray[np.int64]:
    """Number of a chunk's pages in each class: its share, rounded up or down at random."""
    pages = 0 if chunk is None else int(memory.chunks[chunk])
    expected = memory.touches.pages * pages
    counts = np.floor(expected).astype(np.int64)
    counts += random.random(len(expected)) < expected - counts
    counts[-1] += pages - counts.sum()
    return counts


def access_quantiles(touches: Touches, counts: NDArray[np.int64], total: int, owners: float) -> Floats:
    """Distribution of the guest's accesses over a window: quantiles, in the format of `simlib.model.job.Job.places`.

    - `counts`, shape (classes,): the chunk's pages of each class.
    - `total`: pages of the window.
    - `owners`: share of the vCPUs that access the chunk, to which this distribution applies.

    >>> everywhere = Touches(np.ones(1), np.ones(1), np.full(1, 1 / 4096))
    >>> float(access_quantiles(everywhere, np.array([1024]), 2048, owners=1.0)[1024])  # a quarter of all accesses
    0.5
    """
    shares = np.concatenate([[0.0], np.cumsum(counts * touches.rate) / owners])
    edges = np.concatenate([[0.0], np.cumsum(counts) / total])
    if shares[-1] < 1:
        shares, edges = np.append(shares, 1.0), np.append(edges, 1.0)
    shares[-1] = 1.0
    quantiles: Floats = np.interp(_STEPS, shares, edges)
    quantiles[-1] = 1.0
    return quantiles
