# SPDX-License-Identifier: BSD-3-Clause
"""QEMU and Cloud Hypervisor: from a running guest to a plan for its migration.

A `guest.RunningGuest` is created from QEMU's replies (`qmp`, `read_guest`, `replies`), from a recorded migration
(`watched_migration`) or from options (`inputs`, `read_inputs`). `dirtying` samples working sets that are consistent
with its measured dirty rates. `precopy` simulates the pre-copy phase with the rules of `qemu_rules` and the memory of
`memory`; `postcopy` simulates the phase after a switch to post-copy. `plans` defines plans, `settings` the VMM's
parameters, and `targets` the bounds that the migration should meet. `paste` writes a plan as commands. `guest_scenario`
converts the guest to a scenario for the simulator.
"""
