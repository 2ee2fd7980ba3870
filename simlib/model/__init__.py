# SPDX-License-Identifier: BSD-3-Clause
"""What is modelled: quantities, architectures, page tables, scenarios, steps. Nothing here computes.

`scenario` has the nouns, with `policy`, `workload`, `costs`, `machine` and `topology`. A strategy is a condition
(`strategy`), and those that have a name stand in `policies`. A thread is written as blocks and conditions (`program`)
and becomes a table of steps (`steps`), which a `job` hands to an engine. A walk goes through extents that lie within
each other, and nothing leaves its own, so that no skip passes over what was collected. Only `program` writes an index
or a jump.

Steps that touch something shared (a lock, page state, a barrier) happen at the simulated time at which the thread
reaches them; the others move the thread's own clock. Time is int64 picoseconds. Ties go to the lower thread number, so
that the order of events does not depend on an engine.

Memory has two bitmaps: KVM's dirty log, and that of userspace, to which GET adds it. CLEAR write-protects what stands
in both; what is sent leaves the latter.
"""
