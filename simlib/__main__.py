# SPDX-License-Identifier: BSD-3-Clause
"""``python -m simlib``: the command."""

from simlib.cli import main

main()
