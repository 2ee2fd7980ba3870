# SPDX-License-Identifier: BSD-3-Clause
"""Version of simlib, importable from every module."""

__version__ = "0.1.0"
