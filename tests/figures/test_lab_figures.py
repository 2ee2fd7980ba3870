# SPDX-License-Identifier: BSD-3-Clause
"""Figures of the lab: points are the lab's, lines the simulator's, and nothing is lost on the way."""

import pandas as pd
import pytest

from simlib.figures import switch_effects, under_load


def cells():
    return pd.DataFrame(
        {"machine": machine, "vcpus": n, "batch": batch, "metric": metric, "lab": 1e-3 * n, "lab_low": 0.9e-3 * n,
         "lab_high": 1.2e-3 * n, "model": 1.1e-3 * n, "held_out": batch == 64}
        for machine in ("x86-npt", "riscv") for n in (1, 2, 4) for batch in (0, 64)
        for metric in ("clear_dirty_log_time", "longest_stall")
    )  # fmt: skip


def test_lab_is_points_and_the_simulator_lines():
    figure = under_load(cells())
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    points = [trace for trace in figure.data if trace.mode == "markers"]
    assert len(lines) == len(points) == 2 * 2 * 2
    assert all("simulated" in trace.name for trace in lines)
    assert {trace.name for trace in points} == {"whole ioctl, lab, calibrated on", "64 pages, lab, held out"}
    assert points[0].error_y.array[0] == pytest.approx(0.2e-3)
    assert sum(trace.showlegend for trace in figure.data) == 4  # each name once


def test_a_setting_is_a_row_and_a_metric_a_panel():
    frame = pd.DataFrame(
        [("lockless", "contentions", 0, 0, 0), ("read", "contentions", 9, 8, 9),
         ("lockless", "longest_stall_s", 4e-5, 3e-5, 5e-5), ("read", "longest_stall_s", 3e-3, 2e-3, 4e-3)],
        columns=["setting", "metric", "value", "low", "high"],
    )  # fmt: skip
    figure = switch_effects(frame, "Fast page fault")
    assert [list(trace.y) for trace in figure.data] == [["lockless", "read"]] * 2
    assert [note.text for note in figure.layout.annotations] == ["contentions of mmu_lock", "longest stall, ms"]
    assert "2" in figure.layout.xaxis2.ticktext


@pytest.mark.parametrize(
    ("draw", "frame", "sentence"),
    [
        (under_load, cells().drop(columns="model"), "cells.model"),
        (under_load, cells().assign(metric="speed"), "must be one of"),
        (under_load, cells().assign(lab=-1.0), "at least 0"),
        (lambda frame: switch_effects(frame, ""), pd.DataFrame({"setting": ["a"]}), "cells.metric"),
    ],
)
def test_a_bad_table_is_named(draw, frame, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw(frame)
