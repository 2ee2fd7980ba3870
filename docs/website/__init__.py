# SPDX-License-Identifier: BSD-3-Clause
"""The documentation site: Markdown pages as they are, and pages made from descriptors, notebooks and docstrings."""
