# SPDX-License-Identifier: BSD-3-Clause
"""Real migrations: two QEMUs on this machine, and a guest that only writes to its memory at a known rate.

QEMU decides when to synchronise the dirty bitmap, when to throttle and when to switch over, regardless of the
accelerator. These decisions can therefore be observed without a second host and without KVM.
"""
