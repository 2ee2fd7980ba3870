# SPDX-License-Identifier: BSD-3-Clause
"""Does mmu_lock matter when the hardware logs?"""
