# SPDX-License-Identifier: BSD-3-Clause
"""Live migration by pre-copy, as programs: vCPUs that keep writing, and the thread that sends their memory.

The memory is mapped when the run begins. The guest runs undisturbed for a while; then the log is enabled, and pass
after pass the migration thread does GET and, chunk by chunk, CLEAR and send, as QEMU does (migration/ram.c
ram_save_iterate and migration_bitmap_clear_dirty, accel/kvm/kvm-all.c kvm_log_clear). It switches over when what GET
found can be sent within the downtime, or at the limit of passes or of time, and collects what is dirty then. What
follows (stop-and-copy or post-copy) sends that and takes no lock.
"""

from __future__ import annotations

from simlib.model.pagetable import WORD_PAGES
from simlib.model.quantities import PS_PER_S
from simlib.model.scenario import Scenario
from simlib.model.steps import Job, Scan, Step
from simlib.workloads.dirty_log import DirtyLog
from simlib.workloads.guest import STOP, running_vcpu

_DONE = 1
_PASS, _CLEARED = 0, 1


def build(scenario: Scenario) -> Job:
    """The programs of one scenario.

    Stamps are ``start``, ``undisturbed``, ``enabled``, for every pass i ``collected i`` and ``sent i`` (zero for
    passes that were not made), ``switchover`` and ``left``: how much is dirty then.

    Examples
    --------
    >>> job = build(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "4M"},
    ...                             "workload": {"kind": "migration", "pass_limit": 1}}))
    >>> len(job.entry), [str(stamp) for stamp in job.stamps]
    (3, ['start', 'undisturbed', 'enabled', 'collected 1', 'sent 1', 'switchover', 'left'])
    """
    kernel = DirtyLog(scenario)
    vcpu = running_vcpu(kernel, logging=True)
    main = _main(kernel)
    helpers = [_helper(kernel, number) for number in range(scenario.workload.clear_threads)]
    return kernel.job(vcpu, main, barriers=2, populated=True, helpers=helpers)


def page_time(scenario: Scenario) -> int:
    """Picoseconds to send one page.

    Examples
    --------
    >>> page_time(Scenario.parse({"workload": {"link": "4.096Gbit/s"}}))
    8000000
    """
    return scenario.guest.page_size * 8 * PS_PER_S // scenario.workload.link


def _main(kernel: DirtyLog) -> int:
    program, workload = kernel.program, kernel.scenario.workload
    entry = program.here()
    kernel.stamp("start")
    program.add(Step.SLEEP, workload.warm_up)
    program.add(Step.WAKE)
    kernel.stamp("undisturbed")
    kernel.enable_log()
    kernel.stamp("enabled")
    few = workload.downtime // page_time(kernel.scenario)
    done = []
    for number in range(1, workload.pass_limit + 1):
        if workload.clear_when in ("at_get", "ring"):
            kernel.get_and_clear_log()
        else:
            kernel.get_log()
        kernel.stamp("collected", number)
        everything = number == 1 and not kernel.initially_set  # whatever the log has of it
        if not everything:
            done.append(program.add(Step.FEW, 0, few))
        elif kernel.slot_pages <= few:
            kernel.send_all()
            done.append(program.add(Step.JUMP))
        if workload.clear_when == "at_once":
            kernel.clear_log()
        _send(kernel, everything)
        kernel.stamp("sent", number)
        done.append(program.add(Step.PAST, 0, workload.timeout))
    for jump in done:
        program.patch(jump, a=program.here())
    kernel.stamp("switchover")
    kernel.get_log()
    kernel.stamp("left")
    program.add(Step.SIGNAL, STOP)
    program.add(Step.SIGNAL, _DONE)
    if workload.clear_threads:
        program.add(Step.BARRIER, _PASS, 1 + workload.clear_threads)
    program.add(Step.END)
    return entry


def _send(kernel: DirtyLog, everything: bool) -> None:
    """Send what stands in the bitmap, or everything, chunk by chunk.

    Each chunk is cleared before, by this thread or by its helpers.
    """
    program, workload, chunk = kernel.program, kernel.scenario.workload, kernel.chunk
    parties = 1 + workload.clear_threads
    if workload.clear_threads:
        program.add(Step.BARRIER, _PASS, parties)
    top = program.here()
    if workload.clear_threads:
        program.add(Step.BARRIER, _CLEARED, parties)
    peek = None if everything else program.add(Step.PEEK, 0, chunk)
    if workload.clear_when == "lazy" and not workload.clear_threads:
        kernel.clear_chunk(chunk)
        program.add(Step.BACK, chunk)
    word = program.here()
    if everything:
        program.add(Step.SCAN, 0, Scan.ALL)
    program.add(Step.SCAN, page_time(kernel.scenario), Scan.SEND)
    program.add(Step.NEXT, word, WORD_PAGES, chunk)
    more = program.add(Step.MORE, top)
    if peek is not None:
        over = program.add(Step.JUMP)
        program.patch(peek, a=program.add(Step.NEXT, program.here() + 1, chunk))
        program.add(Step.JUMP, more)
        program.patch(over, a=program.here())


def _helper(kernel: DirtyLog, number: int) -> int:
    """A thread that clears its part of each chunk, and waits for the sender before it begins the next but one."""
    program, threads = kernel.program, kernel.scenario.workload.clear_threads
    part = kernel.chunk // threads
    entry = program.add(Step.BARRIER, _PASS, threads + 1)
    program.add(Step.UNLESS, program.here() + 2, _DONE)
    program.add(Step.END)
    top = program.add(Step.NEXT, program.here() + 1, number * part)
    peek = program.add(Step.PEEK, 0, part)
    kernel.clear_chunk(part, part)
    over = program.add(Step.JUMP)
    program.patch(peek, a=program.add(Step.NEXT, program.here() + 1, part))
    program.patch(over, a=program.add(Step.NEXT, program.here() + 1, (threads - 1 - number) * part))
    program.add(Step.BARRIER, _CLEARED, threads + 1)
    program.add(Step.MORE, top)
    program.add(Step.JUMP, entry)
    return entry
