# SPDX-License-Identifier: BSD-3-Clause
"""The lab's machines as scenarios, their costs in instructions, and predictions of trials on hardware."""
