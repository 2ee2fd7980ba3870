# SPDX-License-Identifier: BSD-3-Clause
"""The model's data: quantities, architectures, page tables, scenarios, steps. Engines run the simulation.

`scenario` combines `host`, `policy`, `workload`, `costs` and `topology`. A strategy is a condition on which
a hold ends (`strategy`); `policies` defines named policies. A thread's program is written as blocks and conditions
(`program`) and compiled to a table of steps (`steps`), a part of the `job` that an engine runs. Extents are nested
ranges of pages. A walk never leaves its extent. Only `program` writes step numbers and jumps.

Steps that access something shared (a lock, page state, a barrier) take effect at the simulated time at which the thread
reaches them; all other steps only advance the thread's own clock. Time is int64 picoseconds. If several events are
simultaneous, both engines process them in the order of their threads' numbers.

There are two bitmaps: KVM's dirty log, and userspace's bitmap, to which GET adds the log. CLEAR write-protects, or
clears the dirty bits of, the pages whose bits are set in both. Sending a page clears its bit in userspace's bitmap.
"""
