# SPDX-License-Identifier: BSD-3-Clause
"""Two engines that interpret the same programs and give the same trace: `reference` (SimPy), `compiled` (Numba).

`reference` is the definition. A change of a lock, a page or a clock is one module in each, of the same name: `calendar`
(order of wake-ups), `locks` (lock words, cache lines, lock disciplines), `access`, `memory` and `logs` (page table,
log, bitmap), `clock`, `turns`, `throttling`, `statistics` (records), `interpreter` (goes from step to step). Without a
trace or a ledger, the compiled engine lets a thread run ahead of the calendar through steps that no other thread can
observe; `compiled.lookahead` has the rule and why it is exact. Both import the horizon (`limits`), the random numbers
(`random`), the shape of a result (`result`), and one rule: the arithmetic of throttles (`throttle`), which
``checks/witness.py`` has again in code of its own.

`engine_selection` chooses the engine that finishes a run first while the compiled one is not compiled or loaded yet.

Two engines that run the same wrong program agree. So each can keep a ledger (``run(job, ledger=N)``): the thread that
wrote a page, and the words that were collected, cleared or sent. Tests replay it with a few sets in plain Python that
implement KVM's dirty log and no steps.
"""
