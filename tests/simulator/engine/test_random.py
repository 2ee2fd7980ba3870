# SPDX-License-Identifier: BSD-3-Clause
"""The random streams: the published generator, independent by seed and thread; and the quantile tables."""

import numpy as np
import pytest
from scipy import special, stats

from simlib._lib.errors import InputError
from simlib.model.job import Job
from simlib.model.program import Program
from simlib.model.steps import Map
from simlib.simulator.engine import compiled
from simlib.simulator.engine.random import (
    FIXED_POINT_BITS,
    GAMMA,
    draw,
    quantile_table,
    tables,
    thread_keys,
    zipf_table,
)
from simlib.simulator.engine.result import EVENTS

# Output of Vigna's splitmix64.c (https://prng.di.unimi.it/splitmix64.c) from the state 1234567.
SPLITMIX64 = [
    6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
]  # fmt: skip


def uniforms(seed, threads, draws):
    """The first draws of each thread as numbers in [0, 1), by the reference formula on whole arrays."""
    z = thread_keys(seed, threads)[:, None] + np.arange(1, draws + 1, dtype=np.uint64) * np.uint64(GAMMA)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)) * 2.0**-53


def test_it_is_splitmix64():
    assert [draw(1234567, number) for number in range(5)] == SPLITMIX64


def test_a_draw_depends_on_its_counters_only():
    key = int(thread_keys(5, 3)[2])
    assert key == int(thread_keys(5, 64)[2])  # not on how many threads there are
    assert uniforms(5, 3, 9)[2, 8] == (draw(key, 8) >> 11) * 2.0**-53


def test_no_two_streams_are_the_same():
    keys = np.concatenate([thread_keys(seed, 1024) for seed in [*range(50), 2**32, 2**63 - 1]])
    assert len(np.unique(keys)) == len(keys)
    # Streams are cuts of one long cycle: no key may be a few steps of another's.
    steps = np.sort((keys[None, :64] + np.arange(64, dtype=np.uint64)[:, None] * np.uint64(GAMMA)).ravel())
    assert len(np.unique(steps)) == len(steps)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_draws_are_uniform_and_independent(seed):
    u = uniforms(seed, 8, 50_000)
    counts = np.stack([np.bincount((row * 256).astype(int), minlength=256) for row in u])
    assert stats.chisquare(counts.sum(axis=0)).pvalue > 1e-3
    assert all(stats.chisquare(row).pvalue > 1e-4 for row in counts)
    # Five standard errors, for each pair of threads, each neighbouring pair of draws, and against the next seed.
    bound = 5 / np.sqrt(u.shape[1])
    assert np.abs(np.corrcoef(u) - np.eye(8)).max() < bound
    assert max(abs(np.corrcoef(row[1:], row[:-1])[0, 1]) for row in u) < bound
    other = uniforms(seed - 1 if seed else 1, 8, 50_000)
    assert max(abs(np.corrcoef(a, b)[0, 1]) for a, b in zip(u, other, strict=True)) < bound


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(InputError, match=r"seed = .*: must be at least 0 and below 2\*\*63"):
        thread_keys(seed, 1)


@pytest.mark.parametrize(
    ("cv", "lost"),
    [(0.0, 0), (1e-3, 2e-4), (0.05, 1e-4), (0.3, 2e-4), (1.0, 6e-4), (1.5, 1.1e-3), (3.0, 4e-3), (8.0, 0.025)],
)
def test_a_table_has_the_distributions_mean_and_nearly_its_variance(cv, lost):
    """It lacks the variance within its bins, nearly all of it in the last one, and never has more."""
    table = quantile_table(cv) / 2**FIXED_POINT_BITS
    assert len(table) == 2048
    assert (np.diff(table) >= 0).all()
    assert abs(table.mean() - 1) < 2e-7  # rounding of the entries to 2**-16
    assert cv**2 * (1 - lost) <= table.var() <= cv**2 * (1 + 1e-6)


def test_the_exponentials_table_is_its_conditional_means():
    """The integral of x exp(-x) from a to b is (a + 1) exp(-a) - (b + 1) exp(-b); here q = exp(-a)."""
    q = np.linspace(1, 0, 2049)
    means = -np.diff(q - special.xlogy(q, q)) * 2048
    assert np.abs(quantile_table(1.0) - means * 2**FIXED_POINT_BITS).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("cv", [-0.1, 8.1, float("nan"), float("inf")])
def test_a_coefficient_of_variation_out_of_range_is_refused(cv):
    with pytest.raises(InputError, match="must lie between 0 and 8"):
        tables((0.0, cv))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.99, 1.0, 1.5])
def test_places_have_the_distributions_shares(exponent):
    """Shares of the most popular pages, against the density's integral."""
    places = 4096
    edges = zipf_table(exponent, places) / 2**32 * places
    shares = np.linspace(0, 1, len(edges))

    def below(rank):  # the integral of (r + 1)**-exponent up to it
        return np.log1p(rank) if exponent == 1 else ((rank + 1) ** (1 - exponent) - 1) / (1 - exponent)

    for rank in (1, 8, 64, 512, 2048):
        assert np.interp(rank, edges, shares) == pytest.approx(below(rank) / below(places), abs=3e-4)


def test_every_place_is_reached_and_none_beyond():
    p = Program()
    with p.thread(), p.repeat(6000):
        p.seek(1, 1)
        p.map(Map.PAGE, logging=True)
    job = Job(p.steps(), np.zeros(1, int), np.array([[0, 192]]), np.zeros(1, int), 0, 0, 0, np.zeros(1, int),
              places=(0.0, 0.8), pages=256)  # fmt: skip
    pages = compiled.run(job, trace=20_000).trace
    pages = pages[pages[:, 2] == EVENTS.index("mapped"), 3]
    counts = np.bincount(pages, minlength=256)
    assert (counts[:192] > 0).all()
    assert not counts[192:].any()
    assert counts[0] == counts.max()  # rank 0 stays at home, the others are scattered


def test_rare_places_of_a_large_memory_are_reached_as_often_as_they_should():
    """Of 16 million places of which each of the last bins has tens of thousands."""
    region, draws = 1 << 24, 200_000
    p = Program()
    with p.thread(), p.repeat(draws):
        p.seek(1, 1)
        p.run(1)
        p.map(Map.PAGE, logging=True)
    job = Job(p.steps(), np.zeros(1, int), np.array([[0, region]]), np.zeros(1, int), 0, 0, 0, np.zeros(1, int),
              places=(0.0, 0.99), pages=region)  # fmt: skip
    trace = compiled.run(job, trace=2 * draws).trace
    seen = trace[trace[:, 2] == EVENTS.index("mapped"), 3]
    edges = np.array(zipf_table(0.99, region)) / 2**32 * region
    inside = np.maximum(1.0, np.diff(edges))
    expected = (inside * -np.expm1(-draws / 4096 / inside)).sum()
    assert len(np.unique(seen)) == pytest.approx(expected, rel=0.01)
