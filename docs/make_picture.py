# SPDX-License-Identifier: BSD-3-Clause
"""Draw the README's picture: the arm64 curves, computed now. Needs kaleido and a Chrome or Chromium."""

from pathlib import Path

from simlib import figures
from simlib.report import arm64

TARGET = Path(__file__).with_name("arm64-curves.svg")

if __name__ == "__main__":
    found = arm64.study()
    figure = figures.dirty_memory_time(
        found.curves, title="arm64, Ampere Altra: calibrated on at most 8 vCPUs, predicted to 64"
    )
    figure.write_image(TARGET, width=900, height=520)
    print(TARGET)
