# SPDX-License-Identifier: BSD-3-Clause
"""Two engines that interpret the same programs and give the same trace: `reference` (SimPy), `compiled` (Numba)."""
