# SPDX-License-Identifier: BSD-3-Clause
"""Plumbing that knows nothing of the model: errors, files, signals, tasks in parallel, lazy imports, compilation."""
