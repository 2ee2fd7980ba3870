# SPDX-License-Identifier: BSD-3-Clause
"""Pre-copy live migration, as programs: vCPUs that keep writing, and the thread that sends their memory.

The memory is mapped when the run begins. The guest runs undisturbed for a while; then the log is enabled, and in every
pass the migration thread does GET and, chunk by chunk, CLEAR and send, as QEMU does (migration/ram.c ram_save_iterate
and migration_bitmap_clear_dirty, accel/kvm/kvm-all.c kvm_log_clear). It switches over when the pages that GET found can
be sent within the downtime limit, or at the limit of passes or of time, and collects the pages that are dirty then. The
following phase (stop-and-copy or post-copy) sends them and takes no lock. With dirty rings, each pass reaps the
rings instead; a vCPU whose ring is full also reaps them, and so does a thread periodically.

A VMM may throttle the guest (`simlib.model.throttle`). After each GET it compares the pages dirtied with those sent; if
a pass takes long, it does a GET and this check within the pass. A thread makes all vCPUs sleep periodically.
"""

from __future__ import annotations

from simlib.model.job import Job
from simlib.model.pagetable import WORD_PAGES
from simlib.model.program import REGION, Extent, Thread, clock_shows, in_bitmap, raised, since_check
from simlib.model.quantities import PS_PER_S, format_bandwidth, format_duration
from simlib.model.scenario import Scenario
from simlib.model.steps import ALL, Scan, Stamp
from simlib.model.throttle import Throttle
from simlib.simulator.engine.result import ACTIVITIES, PS, EngineResult
from simlib.simulator.workloads.cpu_time import cpu_metrics, cpu_times
from simlib.simulator.workloads.degradation import GUEST, LEVELS, SWITCHOVER, UNDISTURBED, degradation, guest_metrics
from simlib.simulator.workloads.dirty_log import DirtyLog
from simlib.simulator.workloads.guest import running_vcpu
from simlib.simulator.workloads.horizon import check_within_horizon
from simlib.simulator.workloads.kernel import STOP
from simlib.simulator.workloads.metrics import LOCKS, Metric, Values, WorkloadKind, lock_metrics
from simlib.simulator.workloads.scaled import sample

_DONE = 1
_PASS, _CLEARED = 0, 1


def build(scenario: Scenario) -> Job:
    """Programs of one scenario.

    Stamps are ``start``, ``undisturbed``, ``enabled``, for every pass i ``collected i`` and ``sent i`` (zero for passes
    that were not made), ``switchover`` and ``left``, with the pages that are dirty then.
    """
    kernel = DirtyLog(scenario)
    vcpu = running_vcpu(kernel, logging=True)
    main = _main(kernel)
    helpers = [_helper(kernel, number) for number in range(scenario.workload.clear_threads)]
    if kernel.ring_entries and scenario.workload.reap_every:
        helpers = [kernel.reaper()]
    if kernel.throttle is not None:
        helpers.append(_throttler(kernel))
    return kernel.job(vcpu, main, barriers=2, populated=True, shared=scenario.workload.shared, helpers=helpers)


def page_time(scenario: Scenario) -> int:
    """Time to send one page, ps.

    >>> page_time(Scenario.parse({"workload": {"link": "4.096Gbit/s"}}))
    8000000
    """
    return scenario.guest.page_size * 8 * PS_PER_S // scenario.workload.link


def _main(kernel: DirtyLog) -> Thread:
    program, workload = kernel.program, kernel.scenario.workload
    downtime_pages = workload.downtime // page_time(kernel.scenario)
    with program.thread() as main:
        kernel.stamp("start")
        program.sleep(workload.warm_up)
        kernel.stamp("undisturbed")
        kernel.enable_log()
        kernel.stamp("enabled")
        with program.block() as passes:
            for number in range(1, workload.pass_limit + 1):
                _get(kernel)
                if kernel.throttle is not None:
                    program.throttle_check(begins=number == 1)
                kernel.stamp("collected", number)
                everything = number == 1 and not kernel.initially_set  # regardless of the log
                if not everything:
                    passes.leave_if(~in_bitmap(downtime_pages + 1))
                elif kernel.slot_pages <= downtime_pages:
                    kernel.scan_all(Scan.ALL)
                    passes.leave()
                _clear_at_once(kernel)
                _send(kernel, everything)
                kernel.stamp("sent", number)
                passes.leave_if(clock_shows(workload.timeout))
        kernel.stamp("switchover")
        (kernel.harvest_stopped_rings if kernel.ring_entries else kernel.get_log)()
        kernel.stamp("left")
        program.signal(STOP)
        program.signal(_DONE)
        if workload.clear_threads:
            program.barrier(_PASS, 1 + workload.clear_threads)
    return main


def _get(kernel: DirtyLog) -> None:
    """Collect the pages that were dirtied, as `workload.clear_when` requires."""
    clear_when = kernel.scenario.workload.clear_when
    {"at_get": kernel.get_and_clear_log, "ring": kernel.sync_rings}.get(clear_when, kernel.get_log)()


def _clear_at_once(kernel: DirtyLog) -> None:
    """CLEAR all collected pages now, if the VMM clears at once."""
    if kernel.scenario.workload.clear_when == "at_once":
        kernel.clear_log()


def _check_within_pass(kernel: DirtyLog, rule: Throttle) -> None:
    """If the last throttle check is too old, do GET and a check; the pass then continues where it was."""
    program = kernel.program
    if not rule.sync_every:
        return
    with program.when(since_check(rule.sync_every)), program.extent(ALL) as position:
        program.back(REGION)
        _get(kernel)
        program.throttle_check()
        _clear_at_once(kernel)
        program.back(position)


def _throttler(kernel: DirtyLog) -> Thread:
    """The VMM's thread that slows the vCPUs down, until the flag `STOP` is raised."""
    program, rule = kernel.program, kernel.throttle
    with program.thread("throttle") as thread, program.loop() as life:
        life.leave_if(raised(STOP))
        if rule is not None and rule.limit:
            program.sleep(rule.slice)
            program.dirty_limit_update()
        else:
            program.throttle(kernel.drain_cost)
    return thread


def _send(kernel: DirtyLog, everything: bool) -> None:
    """Send the pages in the bitmap, or everything, chunk by chunk.

    Before it is sent, each chunk is cleared by this thread or by its helpers.
    """
    program, workload = kernel.program, kernel.scenario.workload
    parties = 1 + workload.clear_threads
    program.note("send everything" if everything else "send what was collected")
    if workload.clear_threads:
        program.barrier(_PASS, parties)
    with program.loop(until=REGION.done()):
        if kernel.throttle is not None:
            _check_within_pass(kernel, kernel.throttle)
        with program.extent(kernel.chunk) as chunk:
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
    with program.thread("clear") as helper, program.loop() as passes:
        program.barrier(_PASS, threads + 1)
        passes.leave_if(raised(_DONE))
        with program.loop(until=REGION.done()), program.extent(kernel.chunk) as chunk:
            if number:
                program.advance(number * part, chunk)
            with program.extent(part) as own_part, program.when(own_part.collected()):
                kernel.clear_chunk(own_part)
            program.skip(chunk)
            program.barrier(_CLEARED, threads + 1)
        program.back(REGION)
    return helper


METRICS = (
    *cpu_metrics("the end of the warm-up", "the switchover", "proportional"),
    Metric("clear_work_time", "s", "Part of `clear_cpu_time`: holding the lock.", "proportional"),
    Metric("clear_wait_time", "s", "Part of `clear_cpu_time`: waiting for the lock and its cache line.",
           "proportional"),
    Metric("clear_flush_time", "s", "The rest of `clear_cpu_time`: TLB flushes, fixed costs of the ioctl, allocation "
           "without the lock, and reacquisition without the wait for the lock.", "proportional"),
    Metric("enable_time", "s", "Time taken to enable dirty logging.", "proportional"),
    Metric("precopy_duration", "s", "From the end of the warm-up to the switchover.", "proportional"),
    Metric("passes", "count", "Passes before the switchover.", integer=True),
    Metric("converged", "0 or 1", "1 if the dirty memory left could be sent within the downtime limit, else 0.",
           integer=True),
    Metric("dirty_left", "bytes", "Memory that is dirty at the switchover.", "proportional"),
    Metric("downtime", "s", "Time of the last GET and of sending the remaining dirty memory.", "proportional"),
    *(Metric(f"seconds_above_{level}", "s", f"Time before the switchover with more than {level} % degradation.",
             "proportional") for level in LEVELS),
    Metric("throttle", "percent", "Percentage of its time for which each vCPU sleeps at the end of the migration.",
           integer=True),
    Metric("throttled_share", "share", "Share of their time before the switchover for which throttled vCPUs slept."),
    *GUEST,
    *LOCKS,
)  # fmt: skip
"""Metrics of a migration."""

DEFAULT = (
    "logging_cpu_time", "enable_cpu_time", "clear_cpu_time", "fault_cpu_time", "enable_time", "precopy_duration",
    "downtime", "dirty_left", "guest_throughput",
)  # fmt: skip
"""Metrics that a prediction returns by default; each can be measured on a part of the memory."""

_WAIT = [ACTIVITIES.index("wait"), ACTIVITIES.index("line")]
_WORK, _IDLE, _BITMAP = ACTIVITIES.index("hold"), ACTIVITIES.index("idle"), len(ACTIVITIES)

_MOST_PAGES = 0.95
"""Share of the written pages; a pass that finds more of them dirty again only gives a lower bound of the dirty rate."""


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """Values of `METRICS`."""
    stamps = {name: i for i, name in enumerate(job.stamps)}
    switchover = stamps[SWITCHOVER]
    spent = raw.stamp_thread[switchover, :_BITMAP] - raw.stamp_thread[stamps[Stamp("enabled")], :_BITMAP]
    vcpus = job.vcpus
    spent = spent + raw.thread_ps[vcpus + 1 :].sum(axis=0)  # clearing threads do nothing else
    work = float(spent[_WORK]) * PS
    wait = float(spent[_WAIT].sum()) * PS
    other = float(spent.sum() - spent[_WORK] - spent[_WAIT].sum() - spent[_IDLE]) * PS
    pages_left = _left(job, raw)
    curve = degradation(scenario, job, raw)
    degraded, width = curve["degradation"].to_numpy(), curve["width_s"].to_numpy()
    above = {f"seconds_above_{level}": float(width[degraded > level / 100].sum()) for level in LEVELS}
    times, link = raw.stamp_ps, page_time(scenario)
    enabled, after = stamps[Stamp("enabled")], stamps[Stamp("left")]
    return {
        **cpu_times(scenario, job, raw, (UNDISTURBED, SWITCHOVER), scenario.workload.access_work),
        "clear_cpu_time": work + wait + other,
        "clear_work_time": work,
        "clear_wait_time": wait,
        "clear_flush_time": other,
        "enable_time": float(times[enabled] - times[stamps[UNDISTURBED]]) * PS,
        "precopy_duration": float(times[switchover] - times[stamps[UNDISTURBED]]) * PS,
        "passes": float(_passes(job, raw)),
        "converged": float(pages_left <= scenario.workload.downtime // link),
        "dirty_left": float(pages_left * scenario.guest.page_size),
        "downtime": float(times[after] - times[switchover] + pages_left * link) * PS,
        **above,
        "throttle": 0.0 if job.throttle is None or job.throttle.limit else float(raw.throttle),
        "throttled_share": float(raw.throttled_ps[:vcpus].sum() / max(1, raw.thread_end_ps[:vcpus].sum())),
        **guest_metrics(scenario, raw, curve),
        **lock_metrics(scenario, raw),
    }


def _passes(job: Job, raw: EngineResult) -> int:
    """Number of passes that were made: the stamps of the others are zero."""
    return sum(stamp.phase == "sent" and time > 0 for stamp, time in zip(job.stamps, raw.stamp_ps, strict=True))


def _left(job: Job, raw: EngineResult) -> int:
    """Pages that were dirty at the switchover."""
    return int(raw.stamp_thread[job.stamps.index(Stamp("left")), _BITMAP])


def check_horizon(scenario: Scenario) -> None:
    """Refuse a link so slow that the passes cannot end within the simulated time. Raises `HorizonError`."""
    workload = scenario.workload
    first = scenario.guest.pages * page_time(scenario)
    check_within_horizon(
        f"the first pass alone would take {{}} over a link of {format_bandwidth(workload.link)}", first,
        "use less memory or a faster link", extra=workload.warm_up,
    )  # fmt: skip
    check_within_horizon(
        "if the migration does not converge, its passes would take {}",
        min(workload.pass_limit * first, workload.timeout + first), "use a shorter timeout or fewer passes",
        extra=workload.warm_up,
    )  # fmt: skip


def warnings(scenario: Scenario, job: Job, raw: EngineResult, scale: float) -> tuple[str, ...]:
    """Return a warning if a migration switched over with more pages left than the downtime limit allows."""
    pages_left, passes = _left(job, raw), _passes(job, raw)
    if pages_left <= scenario.workload.downtime // page_time(scenario):
        return ()
    stamps = {name: i for i, name in enumerate(job.stamps)}
    last_pass = float(raw.stamp_ps[stamps[SWITCHOVER]] - raw.stamp_ps[stamps[Stamp("collected", passes)]]) * PS
    return (not_converged_warning(scenario, passes, pages_left, last_pass, scale),)


def not_converged_warning(scenario: Scenario, passes: int, left: float, last: float, scale: float = 1.0) -> str:
    """Return the warning for a migration that switched over before it had converged.

    The guest's dirty rate is computed from the last pass: the pages dirty after it, divided by its duration. If these
    are nearly all pages that the guest writes, the rate is a lower bound.

    - `passes`: passes that were made.
    - `left`: pages that were dirty at the switchover.
    - `last`: duration of the last pass, s.
    - `scale`: memory of the whole migration divided by the memory of the scenario.

    >>> not_converged_warning(Scenario.parse({"workload": {"kind": "migration", "pass_limit": 2}}), 2, 2**17, 1.0)
    'the migration had not converged: the guest dirties 0.5 GiB/s, the link sends ... GiB/s; it stopped at the ...'
    """
    workload, guest = scenario.workload, scenario.guest
    bound = "at least " if left >= _MOST_PAGES * guest.pages * workload.write_percent / 100 else ""
    rate, link_rate = left * guest.page_size / last / 2**30, workload.link / 8 / 2**30
    stop = f"timeout of {format_duration(round(workload.timeout * scale))}"
    if passes == workload.pass_limit:
        stop = f"limit of {passes} pass{'es' if passes > 1 else ''}"
    return (
        f"the migration had not converged: the guest dirties {bound}{rate:.3g} GiB/s, the link sends {link_rate:.3g} "
        f"GiB/s; it stopped at the {stop}"
    )


def _bounds(scenario: Scenario) -> dict[str, float]:
    """Time that the link needs to send all memory once; 0 if that is within the downtime limit."""
    pages, page_ps = scenario.guest.pages, page_time(scenario)
    return {"precopy_duration": pages * page_ps * PS if pages > scenario.workload.downtime // page_ps else 0.0}


KIND = WorkloadKind(
    "migration", build, METRICS, DEFAULT, measure, check_horizon, sample, warnings, degradation, lower_bounds=_bounds
)


def unscaled(metrics: dict[str, float], factor: int) -> dict[str, float]:
    """Compute the metrics of a whole migration from those of a scaled one, without the metrics of single stalls.

    >>> unscaled({"precopy_duration": 0.5, "passes": 2.0, "longest_stall": 0.1}, 16)
    {'precopy_duration': 8.0, 'passes': 2.0}
    """
    return {name: float(value) for name, value in KIND.scale_to_whole(metrics, factor).items()}
