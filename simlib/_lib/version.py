# SPDX-License-Identifier: BSD-3-Clause
"""Version of simlib, readable from every part."""

__version__ = "0.1.0"
