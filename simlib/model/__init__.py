# SPDX-License-Identifier: BSD-3-Clause
"""The model's data: quantities, architectures, page tables, scenarios, steps. Nothing here computes.

`scenario` combines `host`, `policy`, `workload`, `costs` and `topology`. A strategy is a condition (`strategy`);
`policies` has the named ones. A thread is written as blocks and conditions (`program`) and compiled to a table of steps
(`steps`), which an engine gets as part of a `job`. A walk goes through nested extents and never leaves its own, so that
no skip passes over collected pages. Only `program` writes an index or a jump.

Steps that access something shared (a lock, page state, a barrier) take effect at the simulated time at which the thread
reaches them; the others move the thread's own clock. Time is int64 picoseconds. Ties go to the lower thread number, so
that the order of events does not depend on an engine.

Memory has two bitmaps: KVM's dirty log and that of userspace, to which GET adds the log. CLEAR write-protects the pages
that are in both; sent pages leave the latter.
"""
