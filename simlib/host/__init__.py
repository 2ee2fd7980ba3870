# SPDX-License-Identifier: BSD-3-Clause
"""What this host and its guests say of themselves: `watch` samples a running QEMU."""
