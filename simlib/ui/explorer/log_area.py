# SPDX-License-Identifier: BSD-3-Clause
"""Text area for a pasted log."""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets

from simlib.ui.explorer.pasted_log import LOG_LIMIT


class LogArea(anywidget.AnyWidget):
    """Text area whose text is sent to the kernel when it has rested for 250 ms, unless it is longer than `limit`.

    The kernel does not echo the text to the browser, which has it.
    """

    _esm = Path(__file__).with_name("log_area.js").read_text(encoding="utf-8")

    value = traitlets.Unicode("").tag(sync=True, echo_update=False)
    limit = traitlets.Int(LOG_LIMIT).tag(sync=True)
