# SPDX-License-Identifier: BSD-3-Clause
"""Documentation site: the Markdown pages, and pages generated from descriptors, notebooks and docstrings."""
