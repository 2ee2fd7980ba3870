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
    """Raise `InputError` if sections contradict each other; `memory` and `page_size` in bytes."""
    facts, word = workload.facts, WORD_PAGES * page_size
    chunk, helpers = workload.clear_chunk, workload.clear_threads
    if chunk is not None and chunk % word:
        raise InputError(
            "workload.clear_chunk", format_size(chunk), f"must be a multiple of {format_size(word)} (64 pages)"
        )
    if chunk is not None and chunk > memory:
        raise InputError(
            "workload.clear_chunk", format_size(chunk),
            f"is larger than the guest's memory of {format_size(memory)}",
            "use a smaller chunk, or none to clear all memory at once",
        )  # fmt: skip
    if helpers and not facts.clear_threads:
        kinds = " or ".join(f'"{name}"' for name, kind in sorted(KINDS.items(), reverse=True) if kind.clear_threads)
        raise InputError(
            "workload.clear_threads", helpers, f"{workload.kind} has no threads that only clear", f"use kind = {kinds}"
        )
    if helpers and facts.by_chunk and workload.clear_when != "lazy":
        raise InputError(
            "workload.clear_threads", helpers, f"they clear chunk by chunk, not {workload.clear_when}",
            'use clear_when = "lazy"',
        )  # fmt: skip
    if helpers and (chunk if facts.by_chunk and chunk else memory) % (helpers * word):
        raise InputError(
            "workload.clear_threads", helpers,
            f"{'a chunk' if facts.by_chunk else 'the memory'} must divide into one part a thread, each a multiple of "
            f"{format_size(word)} (64 pages)", "change clear_chunk" if facts.by_chunk else "change memory",
        )  # fmt: skip
    if workload.keeps_accessing and not workload.access_interval:
        raise InputError(
            "workload.access_interval", format_duration(0), "must be more than 0",
            "accesses that take no time would go on for ever at one instant",
        )  # fmt: skip
    if (facts.keeps_accessing or (workload.kind == "teardown" and workload.guest_runs)) and host.clock != "wall":
        raise InputError(
            "host.clock", host.clock, f"{workload.kind} measures the guest's speed over time, which needs a clock "
            "shared by all vCPUs", 'use clock = "wall"',
        )  # fmt: skip
    _check_turns(host, vcpus + 1 + helpers)
    if not facts.regions and policy.lock_regions > 1:
        raise InputError(
            "policy.lock_regions", policy.lock_regions, f"{workload.kind} has one lock for all memory", "leave it out"
        )
    if workload.rings:
        _check_ring(policy, workload)
    if workload.preempted_vcpus:
        _check_preempted(workload, vcpus)
    if workload.kind == "teardown":
        _check_teardown(policy, workload)
    if workload.throttle != "none":
        _check_throttle(workload)


def _check_throttle(workload: Workload) -> None:
    key, value = "workload.throttle", workload.throttle
    rule = workload.throttling
    if rule is None:
        raise InputError(key, value, f"{workload.kind} has no VMM that throttles", 'use kind = "migration"')
    if workload.clear_threads:
        raise InputError(key, value, "the sending thread checks the guest within its passes",
                         "leave clear_threads out")  # fmt: skip
    if workload.throttle_slice == 0:
        raise InputError("workload.throttle_slice", format_duration(0), "must be more than 0", "vCPUs must run, too")
    if rule.limit and not workload.rings:
        raise InputError(key, value, "limits vCPUs by their dirty rings", 'use clear_when = "ring"')


def _check_preempted(workload: Workload, vcpus: int) -> None:
    most = FLAGS - 2
    key, count = "workload.preempted_vcpus", workload.preempted_vcpus
    if workload.kind != "clear_under_load" or workload.clear_threads:
        raise InputError(
            key, count, "only the single clearing thread of clear_under_load preempts vCPUs", "leave it out"
        )
    if count > vcpus:
        raise InputError(key, count, f"the guest has {vcpus}", "give fewer")
    if workload.iterations > most:
        raise InputError("workload.iterations", workload.iterations, f"must be at most {most} with preempted vCPUs")


def _check_teardown(policy: Policy, workload: Workload) -> None:
    if not policy.architecture.startswith("arm64"):
        raise InputError(
            "policy.architecture", policy.architecture, "teardown models arm64's stage 2",
            'use kind = "zap" for x86, or architecture = "arm64"',
        )  # fmt: skip
    if workload.guest_runs and policy.teardown_tlb not in ("entry", "range"):
        raise InputError(
            "policy.teardown_tlb", policy.teardown_tlb, "a running guest could still use unmapped memory",
            'use teardown_tlb = "entry" or "range", or leave guest_runs out',
        )  # fmt: skip


def _check_ring(policy: Policy, workload: Workload) -> None:
    tracking = policy.resolved().dirty_tracking
    if TRACKING[tracking].dirty_bits and not policy.buffer_entries:
        raise InputError(
            "policy.dirty_tracking", tracking, "logs no pages that could go into a dirty ring",
            'use "pml" or "hdbss", or another clear_when than "ring"',
        )  # fmt: skip
    reserve = RING_RESERVE + policy.buffer_entries
    if workload.ring_entries <= reserve:
        raise InputError(
            "workload.ring_entries", workload.ring_entries, f"KVM keeps {reserve} entries of a ring free: "
            f"{RING_RESERVE}, and as many as a log buffer has", "use a larger ring",
        )  # fmt: skip
    if policy.lock_regions > 1:
        raise InputError(
            "policy.lock_regions", policy.lock_regions, "a run of a dirty ring may lie in two regions",
            'leave it out, or use another clear_when than "ring"',
        )  # fmt: skip


def _check_turns(host: Host, threads: int) -> None:
    if host.turn and (host.clock == "wall" or host.turn >= MOST_TURN_PS):
        raise InputError(
            "host.turn", format_duration(host.turn), "CPUs have turns only on a single processor, each of "
            f"less than {format_duration(MOST_TURN_PS)}", 'use clock = "serial" or "serial_yield"',
        )  # fmt: skip
    if host.tick and not 0 < threads * (2 * host.turn + host.tick_work) < host.tick * (host.turn > 0):
        raise InputError(
            "host.tick", format_duration(host.tick), "needs CPUs with turns, and must leave each of "
            f"{threads} threads a turn and its tick_work between two ticks", "give turn, and a longer tick",
        )  # fmt: skip
