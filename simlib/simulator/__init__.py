# SPDX-License-Identifier: BSD-3-Clause
"""Run what the model describes: two engines, the workloads, and estimates of large migrations from sampled runs."""
