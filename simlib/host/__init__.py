# SPDX-License-Identifier: BSD-3-Clause
"""What a real host and its guests say of themselves."""

from simlib.host.watch import Watched, watch_guest

__all__ = ["Watched", "watch_guest"]
