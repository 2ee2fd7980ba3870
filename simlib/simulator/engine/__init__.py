# SPDX-License-Identifier: BSD-3-Clause
"""Two engines that interpret the same programs and give the same trace: `reference` (SimPy), `compiled` (Numba).

`reference` is the definition. Both have the same modules, so that a change of a lock, a page or a clock is one module
in each: `calendar` (order of wake-ups), `locks` (lock words, cache lines, lock disciplines), `memory` (page table, log,
bitmap), `clock`, `statistics` (records); `simulation` in the reference engine and `interpreter` in the compiled one go
from step to step. Without a trace or a ledger, the compiled engine lets a thread run ahead of the calendar through
steps that no other thread can observe; `compiled.lookahead` has the rule and why it is exact. The engines share no
rule: what both import (`limits`, `random`, `result`) is the horizon, the random numbers and the shape of a result.

`engine_selection` chooses the engine that finishes a run first while the compiled one is not compiled or loaded yet.

Two engines that run the same wrong program agree. So each can keep a ledger (``run(job, ledger=N)``): the thread that
wrote a page, and the words that were collected, cleared or sent. Tests replay it with a few sets in plain Python that
implement KVM's dirty log and no steps.
"""
