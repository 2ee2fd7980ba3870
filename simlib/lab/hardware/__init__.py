# SPDX-License-Identifier: BSD-3-Clause
"""The lab's machines as scenarios, their costs as numbers of instructions, and predictions for hardware from trials."""
