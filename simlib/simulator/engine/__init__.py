# SPDX-License-Identifier: BSD-3-Clause
"""Two engines that interpret the same programs and give the same trace: `reference` (SimPy), `compiled` (Numba).

`reference` is the definition. Both have the same rooms, so a change of a lock, a page or a clock is one room in each:
`calendar` (whose turn it is), `locks` (lock words, cache lines, every discipline's rule), `memory` (page table, log,
bitmap), `clock`, `statistics` (what is written down); `simulation` there and `interpreter` here go from step to step.
Without a trace or a ledger the compiled engine lets a thread run ahead of the calendar through what nobody can see
meanwhile; the rule, and why it is exact, stand in `compiled.ahead`. They share no rule: what both import (`limits`,
`random`, `result`) is the horizon, the random numbers and the shape of a result.

`sooner` asks which of them is done first with a run, while one is not compiled or loaded yet.

Two engines that run the same wrong program agree. So each can keep a ledger (``run(job, ledger=N)``): who wrote which
page, which word was collected, cleared, sent. Tests replay it with a few sets in plain Python that know KVM's dirty log
and no steps.
"""
