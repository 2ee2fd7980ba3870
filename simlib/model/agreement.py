# SPDX-License-Identifier: BSD-3-Clause
"""Checks that the sections of a scenario do not contradict each other."""

from __future__ import annotations

from simlib._lib.errors import InputError
from simlib.model.architectures import TRACKING
from simlib.model.host import Host
from simlib.model.pagetable import WORD_PAGES
from simlib.model.policy import Policy
from simlib.model.quantities import format_duration, format_size
from simlib.model.steps import FLAGS, MOST_TURN_PS
from simlib.model.workload import KINDS, RING_RESERVE, Workload


def check(host: Host, policy: Policy, workload: Workload, vcpus: int, memory: int, page_size: int) -> None:
    """Raise `InputError` if sections contradict each other; `memory` and `page_size` are in bytes."""
    facts, word = workload.facts, WORD_PAGES * page_size
    chunk, helpers = workload.clear_chunk, workload.clear_threads
    if chunk is not None and (chunk % word or chunk > memory):
        rule, hint = f"must be a multiple of {format_size(word)} (64 pages)", ""
        if not chunk % word:
            rule = f"must not be larger than the guest's memory of {format_size(memory)}"
            hint = "use a smaller chunk, or omit clear_chunk to clear all memory in one ioctl"
        raise InputError("workload.clear_chunk", format_size(chunk), rule, hint)
    if helpers:
        _check_helpers(workload, chunk if facts.by_chunk and chunk else memory, word)
    if workload.keeps_accessing and not workload.access_interval:
        hint = "without time between accesses, simulated time would not advance"
        raise InputError("workload.access_interval", format_duration(0), "must be more than 0", hint)
    if workload.cpu_use < 1 and not workload.keeps_accessing:
        rule = f"{workload.kind} models vCPUs without idle CPU time, unless they keep running"
        raise InputError("workload.cpu_use", workload.cpu_use, rule, 'remove cpu_use, or use kind = "migration"')
    if (facts.keeps_accessing or (workload.kind == "teardown" and workload.guest_runs)) and host.clock != "wall":
        rule = f"{workload.kind} measures the guest's speed over time, which needs a clock shared by all vCPUs"
        raise InputError("host.clock", host.clock, rule, 'use clock = "wall"')
    _check_turns(host, vcpus + 1 + helpers)
    if not facts.regions and policy.lock_regions > 1:
        rule = f"{workload.kind} models one lock for all memory"
        raise InputError("policy.lock_regions", policy.lock_regions, rule, "remove lock_regions")
    if workload.rings:
        _check_ring(policy, workload)
    if workload.preempted_vcpus:
        _check_preempted(workload, vcpus)
    if workload.kind == "teardown":
        _check_teardown(policy, workload)
    if workload.throttle != "none":
        _check_throttle(workload)


def _check_helpers(workload: Workload, divided: int, word: int) -> None:
    """Check the threads that only run CLEAR, each an equal part of `divided` bytes (a chunk, or the memory)."""
    facts, helpers = workload.facts, workload.clear_threads
    rule = hint = ""
    if not facts.clear_threads:
        kinds = " or ".join(f'"{name}"' for name, kind in sorted(KINDS.items(), reverse=True) if kind.clear_threads)
        rule, hint = f"{workload.kind} does not support threads that only run CLEAR", f"use kind = {kinds}"
    elif facts.by_chunk and workload.clear_when != "lazy":
        rule = f"these threads run CLEAR chunk by chunk, which clear_when = {workload.clear_when} does not allow"
        hint = 'use clear_when = "lazy"'
    elif divided % (helpers * word):
        what, hint = ("a chunk", "change clear_chunk") if facts.by_chunk else ("the memory", "change memory")
        rule = f"must divide {what} into equal parts that are multiples of {format_size(word)} (64 pages)"
    if rule:
        raise InputError("workload.clear_threads", helpers, rule, hint)


def _check_throttle(workload: Workload) -> None:
    key, value = "workload.throttle", workload.throttle
    rule = workload.throttling
    if rule is None:
        raise InputError(key, value, f"{workload.kind} does not model throttling", 'use kind = "migration"')
    if workload.clear_threads:
        raise InputError(key, value, "is not supported with clear_threads", "remove clear_threads")
    if workload.throttle_slice == 0:
        raise InputError("workload.throttle_slice", format_duration(0), "must be more than 0", "omit throttle_slice")
    if rule.limit and not workload.rings:
        raise InputError(key, value, "needs dirty rings: vCPUs sleep when a ring is full", 'use clear_when = "ring"')


def _check_preempted(workload: Workload, vcpus: int) -> None:
    most = FLAGS - 2
    key, count = "workload.preempted_vcpus", workload.preempted_vcpus
    if workload.kind != "clear_under_load" or workload.clear_threads:
        rule = "only the single clearing thread of clear_under_load preempts vCPUs"
        raise InputError(key, count, rule, "remove preempted_vcpus")
    if count > vcpus:
        raise InputError(key, count, f"must be at most the guest's number of vCPUs, {vcpus}", "use a smaller number")
    if workload.iterations > most:
        raise InputError("workload.iterations", workload.iterations, f"must be at most {most} if vCPUs are preempted")


def _check_teardown(policy: Policy, workload: Workload) -> None:
    if not policy.architecture.startswith("arm64"):
        rule, hint = "teardown models arm64's stage 2", 'use kind = "zap" for x86, or architecture = "arm64"'
        raise InputError("policy.architecture", policy.architecture, rule, hint)
    if workload.guest_runs and policy.teardown_tlb not in ("entry", "range"):
        rule = "a running guest could still use unmapped memory"
        hint = 'use teardown_tlb = "entry" or "range", or remove guest_runs'
        raise InputError("policy.teardown_tlb", policy.teardown_tlb, rule, hint)


def _check_ring(policy: Policy, workload: Workload) -> None:
    tracking = policy.resolved().dirty_tracking
    if TRACKING[tracking].dirty_bits and not policy.buffer_entries:
        rule, hint = (
            "this mechanism logs no pages, so dirty rings would stay empty",
            'use "pml" or "hdbss", or a clear_when other than "ring"',
        )
        raise InputError("policy.dirty_tracking", tracking, rule, hint)
    reserve = RING_RESERVE + policy.buffer_entries
    if workload.ring_entries <= reserve:
        rule = f"must exceed the {reserve} entries that KVM reserves ({RING_RESERVE} plus the size of a log buffer)"
        raise InputError("workload.ring_entries", workload.ring_entries, rule, "use a larger ring")
    if policy.lock_regions > 1:
        rule, hint = (
            "a run of pages from a dirty ring may span two regions",
            'remove lock_regions, or use a clear_when other than "ring"',
        )
        raise InputError("policy.lock_regions", policy.lock_regions, rule, hint)


def _check_turns(host: Host, threads: int) -> None:
    if host.turn and (host.clock == "wall" or host.turn >= MOST_TURN_PS):
        rule = f"requires CPUs that take turns on one processor, and must be below {format_duration(MOST_TURN_PS)}"
        raise InputError("host.turn", format_duration(host.turn), rule, 'use a shorter turn, or clock = "serial"')
    if host.tick and not 0 < threads * (2 * host.turn + host.tick_work) < host.tick * (host.turn > 0):
        shortest = f"{threads} * (2 * turn + tick_work) with {threads} threads"
        rule = f"requires CPUs that take turns, and must be longer than {shortest}"
        raise InputError("host.tick", format_duration(host.tick), rule, "set turn, and use a longer tick")
