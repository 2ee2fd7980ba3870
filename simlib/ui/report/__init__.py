# SPDX-License-Identifier: BSD-3-Clause
"""The HTML report of a run: text, tables and figures in one file that needs no network."""

from simlib.ui.report.block import Block, Chart, Listing, Note, Prose, Table
from simlib.ui.report.page import Report, Section

__all__ = ["Block", "Chart", "Listing", "Note", "Prose", "Report", "Section", "Table"]
