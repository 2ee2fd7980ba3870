# SPDX-License-Identifier: BSD-3-Clause
"""The sliders of the batch: each moves what it should, and what is said is what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simlib.explorer.batch import MODES, batch_sliders


@pytest.fixture
def parts() -> Any:
    _, sliders, words, figure = batch_sliders().children
    return *sliders.children, words, figure


def test_the_batch_moves_the_stars_only(parts: Any) -> None:
    batch, *_, words, figure = parts
    lines = [np.array(trace.y) for trace in figure.data[::2]]
    batch.value = 512
    assert all((np.array(trace.y) == line).all() for trace, line in zip(figure.data[::2], lines, strict=True))
    assert [float(trace.x[0]) for trace in figure.data[1::2]] == [512.0] * 4
    assert words.value.startswith("<b>512 pages</b>")
    batch.value = 0
    assert words.value.startswith("<b>the whole ioctl</b>")


def test_the_mode_of_faults_moves_the_curves(parts: Any) -> None:
    *_, mode, _, figure = parts
    clear = {}
    for name in MODES:
        mode.value = name
        clear[name] = [float(y) for y in figure.data[2].y]
    assert clear["lockless"][0] < clear["read"][0] < clear["write"][0]  # CLEAR that lets go at every word
    mode.value = "read"
    assert [float(y) for y in figure.data[2].y] == clear["read"]  # the same numbers again
