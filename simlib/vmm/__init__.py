# SPDX-License-Identifier: BSD-3-Clause
"""QEMU and Cloud Hypervisor: a guest from QMP to a plan for its migration.

A guest comes from QEMU's replies (`qmp`, `read_guest`, `replies`), from a recorded migration (`watched_migration`) or
from options (`inputs`, `read_inputs`), and is a `guest.RunningGuest` from there on. `dirtying` samples working sets
that fit its measured dirty rates. `precopy` simulates the pre-copy phase with the rules of `rules` and the memory of
`memory`, `postcopy` what follows a switch to post-copy. `plans` has the plans, `settings` the VMM's parameters,
`targets` what the migration should meet, and `paste` the text to paste. `guest_scenario` makes the guest a scenario for
the simulator.
"""
