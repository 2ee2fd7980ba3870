# SPDX-License-Identifier: BSD-3-Clause
"""Live migration by pre-copy, as programs: vCPUs that keep writing, and the thread that sends their memory.

The memory is mapped when the run begins. The guest runs undisturbed for a while; then the log is enabled, and pass
after pass the migration thread does GET and, chunk by chunk, CLEAR and send, as QEMU does (migration/ram.c
ram_save_iterate and migration_bitmap_clear_dirty, accel/kvm/kvm-all.c kvm_log_clear). It switches over when what GET
found can be sent within the downtime, or at the limit of passes or of time, and collects what is dirty then. What
follows (stop-and-copy or post-copy) sends that and takes no lock.
"""

from __future__ import annotations

from simlib.model.job import Job
from simlib.model.pagetable import WORD_PAGES
from simlib.model.program import REGION, Extent, Thread, clock_shows, in_bitmap, raised
from simlib.model.quantities import PS_PER_S
from simlib.model.scenario import Scenario
from simlib.model.steps import Scan
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
    shared = scenario.workload.shared
    return kernel.job(vcpu, main, barriers=2, populated=True, shared=shared, helpers=helpers)


def page_time(scenario: Scenario) -> int:
    """Picoseconds to send one page.

    Examples
    --------
    >>> page_time(Scenario.parse({"workload": {"link": "4.096Gbit/s"}}))
    8000000
    """
    return scenario.guest.page_size * 8 * PS_PER_S // scenario.workload.link


def _main(kernel: DirtyLog) -> Thread:
    program, workload = kernel.program, kernel.scenario.workload
    few = workload.downtime // page_time(kernel.scenario)
    with program.thread() as main:
        kernel.stamp("start")
        program.sleep(workload.warm_up)
        kernel.stamp("undisturbed")
        kernel.enable_log()
        kernel.stamp("enabled")
        with program.block() as passes:
            for number in range(1, workload.pass_limit + 1):
                _get(kernel)
                kernel.stamp("collected", number)
                everything = number == 1 and not kernel.initially_set  # whatever the log has of it
                if not everything:
                    passes.leave_if(~in_bitmap(few + 1))
                elif kernel.slot_pages <= few:
                    kernel.send_all()
                    passes.leave()
                if workload.clear_when == "at_once":
                    kernel.clear_log()
                _send(kernel, everything)
                kernel.stamp("sent", number)
                passes.leave_if(clock_shows(workload.timeout))
        kernel.stamp("switchover")
        kernel.get_log()
        kernel.stamp("left")
        program.signal(STOP)
        program.signal(_DONE)
        if workload.clear_threads:
            program.barrier(_PASS, 1 + workload.clear_threads)
    return main


def _get(kernel: DirtyLog) -> None:
    """What was dirtied, and with some ways of clearing that, too."""
    ways = {"at_get": kernel.get_and_clear_log, "ring": kernel.reset_ring}
    ways.get(kernel.scenario.workload.clear_when, kernel.get_log)()


def _send(kernel: DirtyLog, everything: bool) -> None:
    """Send what stands in the bitmap, or everything, chunk by chunk.

    Each chunk is cleared before, by this thread or by its helpers.
    """
    program, workload = kernel.program, kernel.scenario.workload
    parties = 1 + workload.clear_threads
    program.note("send everything" if everything else "send what was collected")
    if workload.clear_threads:
        program.barrier(_PASS, parties)
    with program.loop(until=REGION.done()), program.extent(kernel.chunk) as chunk:
        if workload.clear_threads:
            program.barrier(_CLEARED, parties)
        if everything:
            _send_chunk(kernel, chunk, everything=True)
        else:
            with program.when(chunk.collected(), otherwise=lambda: program.skip(chunk)):
                _send_chunk(kernel, chunk, everything=False)
    program.back(REGION)


def _send_chunk(kernel: DirtyLog, chunk: Extent, everything: bool) -> None:
    program, workload = kernel.program, kernel.scenario.workload
    if workload.clear_when == "lazy" and not workload.clear_threads:
        kernel.clear_chunk(chunk)
        program.back(chunk)
    with program.loop(until=chunk.done()):
        if everything:
            program.scan(Scan.ALL)
        program.scan(Scan.SEND, page_time(kernel.scenario))
        program.advance(WORD_PAGES, chunk)


def _helper(kernel: DirtyLog, number: int) -> Thread:
    """A thread that clears its part of each chunk, and waits for the sender before it begins the next but one."""
    program, threads = kernel.program, kernel.scenario.workload.clear_threads
    part = kernel.chunk // threads
    with program.thread() as helper, program.loop() as passes:
        program.barrier(_PASS, threads + 1)
        passes.leave_if(raised(_DONE))
        with program.loop(until=REGION.done()), program.extent(kernel.chunk) as chunk:
            if number:
                program.advance(number * part, chunk)
            with program.extent(part) as mine, program.when(mine.collected()):
                kernel.clear_chunk(mine)
            program.skip(chunk)
            program.barrier(_CLEARED, threads + 1)
        program.back(REGION)
    return helper
