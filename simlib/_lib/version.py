# SPDX-License-Identifier: BSD-3-Clause
"""The version, where every part may read it."""

__version__ = "0.1.0"
