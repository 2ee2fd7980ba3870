# SPDX-License-Identifier: BSD-3-Clause
"""The model's data: quantities, architectures, page tables, scenarios, steps. Engines do the simulating.

`scenario` combines `host`, `policy`, `workload`, `costs` and `topology`. A strategy is a condition (`strategy`);
`policies` defines the named ones. A thread is written as blocks and conditions (`program`) and compiled to a table of
steps (`steps`), which an engine gets as part of a `job`. Extents are nested, and a walk never leaves its own extent, so
that a skip never passes over pages that GET collected. Only `program` writes step numbers and jumps.

Steps that access something shared (a lock, page state, a barrier) take effect at the simulated time at which the thread
reaches them; the others move the thread's own clock. Time is int64 picoseconds. Of simultaneous events, that of the
lowest thread number comes first, so that both engines have the same order of events.

There are two bitmaps: KVM's dirty log, and userspace's bitmap, to which GET adds the log. CLEAR write-protects the
pages that are in both. Sending a page clears its bit in userspace's bitmap.
"""
