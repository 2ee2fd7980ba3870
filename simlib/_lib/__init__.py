# SPDX-License-Identifier: BSD-3-Clause
"""Infrastructure independent of the model: errors, files, signals, parallel tasks, lazy imports, compilation."""
