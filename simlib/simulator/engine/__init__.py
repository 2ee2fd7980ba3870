# SPDX-License-Identifier: BSD-3-Clause
"""Two engines that interpret the same programs and give the same trace: `reference` (SimPy) and `compiled` (Numba).

`reference` defines the behaviour. Each engine has a module for each of these subjects: `calendar` (order of wake-ups),
`locks` (lock words, cache lines, lock disciplines), `access`, `memory` and `logs` (page table, log, bitmap), `clock`,
`turns`, `throttling`, `statistics` (records), `interpreter` (runs one step after another). Without a trace, a ledger or
a serial clock, the compiled engine lets a thread run ahead of the calendar through steps that no other thread can
observe; `compiled.lookahead` states the rule and why it is exact. Both engines import the horizon (`limits`), the
random numbers (`random`), the shape of a result (`result`), and one rule: the arithmetic of throttles (`throttle`),
which ``checks/witness.py`` implements independently.

Until the compiled engine is compiled and loaded, `engine_selection` chooses the engine that should finish first.

The engines agree even if both run the same wrong program. Each can therefore record a ledger
(``run(job, ledger=N)``): which thread wrote each page, and which bitmap words were collected, cleared or sent. Tests
replay the ledger with a few sets in plain Python that implement KVM's dirty log without the step language.
"""
