# SPDX-License-Identifier: BSD-3-Clause
"""Mutation tests: put one fault at a time into a copy of simlib, and check that a test fails.

    python checks/mutations.py [NAME…]

(`make mutations`) prints the tests that caught each fault, and exits with status 1 if a fault was caught by none. A
fault in one engine should be caught by comparing it with the other; a fault in both, or in a workload, only by the
witness or by the invariants of every run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

EXAMPLES = "50"
"""Hypothesis examples of each test, for each mutation."""

MAX_FAILURES = "1"
"""Number of failures after which no further tests run: a single test that fails catches the mutation."""

LIMIT_S = 400
"""Time limit of a test run; a mutation that exceeds it counts as caught."""

TESTS = ["test_rules.py", "test_turns.py", "test_identity.py", "test_lines.py", "test_pace.py",
         "test_conservation.py::test_helper_threads_clear_their_parts_before_they_are_sent",
         "test_conservation.py::test_no_scenario_breaks_an_invariant",
         "test_conservation.py::test_a_vcpu_that_faults_or_sleeps_has_emptied_its_log_buffer",
         "test_conservation.py::test_both_engines_and_the_witness_agree",
         "test_invariants.py::test_locks_follow_their_discipline_and_their_statistics_agree",
         "test_invariants.py::test_every_picosecond_of_a_thread_is_accounted_for",
         "test_invariants.py::test_a_running_guest_loses_no_write"]  # fmt: skip


class Edit(NamedTuple):
    """A text that occurs once in a file of simlib/, and its replacement."""

    path: str
    text: str
    wrong: str


(REF_ACCESS, REF_INTERPRETER, REF_LOCKING, REF_LOCKS, REF_LOGS, REF_MEMORY, REF_THREADS, REF_THROTTLING,
 REF_WAITING) = (
    f"simulator/engine/reference/{module}.py"
    for module in ("access", "interpreter", "locking", "locks", "logs", "memory", "threads", "throttling",
                   "waiting")
)  # fmt: skip
WORKLOADS = "simulator/workloads/"
ACCESS, LOCKS, LOGS, MEMORY, INTERPRETER, CLOCK, LOOKAHEAD, FAST_FORWARD, THROTTLING, STATISTICS, TURNS, WAITING = (
    f"simulator/engine/compiled/{module}.py"
    for module in ("access", "locks", "logs", "memory", "interpreter", "clock", "lookahead", "fast_forward",
                   "throttling", "statistics", "turns", "waiting")
)  # fmt: skip

MUTATIONS: dict[str, list[Edit]] = {
    # -- in one engine
    "TEST requires more than the threshold": [
        Edit(
            INTERPRETER,
            "if quantity(run.pages, thread, step, time) < step.d:",
            "if quantity(run.pages, thread, step, time) <= step.d:",
        )
    ],
    "ADVANCE is clipped to the region, not to its extent": [
        Edit(
            INTERPRETER,
            "page = min(thread.page + step.a, thread.end[step.b])",
            "page = min(thread.page + step.a, thread.end[0])",
        )
    ],
    "OPEN is not clipped to the enclosing extent": [
        Edit(REF_INTERPRETER, "thread.page, min(end, thread.end[a - 1])", "thread.page, min(end, thread.end[0])")
    ],
    "the next waiter's queue node is fetched at the near cost": [
        Edit(
            LOCKS,
            "owned_at += transfer(world, cpus, waiter(waiting, index, lock, 0), number)",
            "owned_at += cpus.transfer_ps[0]",
        )
    ],
    "a hand-off also counts its own thread as waiting": [
        Edit(
            LOCKS,
            "owned_at += item(cpus.queue_length_penalty_ps, lock.length)",
            "owned_at += cpus.queue_length_penalty_ps[min(lock.length + 1, len(cpus.queue_length_penalty_ps) - 1)]",
        )
    ],
    "CPUs of a cluster cost as much as those of a socket": [
        Edit(REF_LOCKS, "return job.cluster_ps", "return job.near_ps")
    ],
    "the last thread to touch a line does not own it": [Edit(LOCKS, "    line.owner = number\n", "")],
    "a reader is granted the lock while a writer holds it": [
        Edit(LOCKS, "return lock.holders >= 0", "return lock.holders >= -1")
    ],
    "a ticket hand-off takes the whole sweep, not half": [
        Edit(REF_LOCKS, "at + sweep // 2, thread.number", "at + sweep, thread.number")
    ],
    "HELD counts from the request of the lock": [
        Edit(REF_INTERPRETER, "clock - (thread.acquired if", "clock - (thread.tried if")
    ],
    "a lockless update that lost a race is not retried": [
        Edit(LOCKS, "if lock.count != thread.version_read:", "if lock.count < thread.version_read:")
    ],
    "readers bypass the queue while a writer is its head": [
        Edit(LOCKS, "(mode == Mode.READ and head.mode == Mode.READ)", "mode == Mode.READ")
    ],
    "no thread bypasses the queue": [Edit(LOCKS, "return at < lock.comes_at or (mode", "return (mode")],
    "a thread that queues takes no time before its first poll": [Edit(LOCKS, "now + world.enqueue_ps", "now")],
    "a failed poll uses all of its turn": [Edit(TURNS, "min(now + world.poll_ps, world.turn_end)", "world.turn_end")],
    "a late tick shifts the next one": [
        Edit(TURNS, "((now - thread.tick_at) // world.tick_ps + 1) * world.tick_ps", "world.tick_ps")
    ],
    "a lap at a bin's upper end is one bin further": [
        Edit(STATISTICS, "lap_bin(gap))] += 1", "lap_bin(gap + 1))] += 1")
    ],
    "a vCPU in a fault counts as in the guest": [
        Edit(INTERPRETER, "thread.asleep == 0 and thread.holds == 0 and", "thread.asleep == 0 and")
    ],
    "a vCPU on the way back from an interrupt is interrupted again": [
        Edit(REF_THREADS, "not (self.asleep or self.holds or self.interrupted or", "not (self.asleep or self.holds or")
    ],
    "a vCPU that held a lock once is never in the guest again": [Edit(LOCKS, "        thread.holds -= 1\n", "")],
    "a nested lock resets the acquisition time of the outer one": [
        Edit(LOCKS, "            thread.acquired = thread.outer\n", "            pass\n")
    ],
    "an interrupt takes its mean, regardless of its distribution": [
        Edit(INTERPRETER, "time = clock.sample(thread, run.quantiles, step.a, step.c)", "time = step.a")
    ],
    "an access that was interrupted ends the interruption of the next": [
        Edit(ACCESS, "    thread.interrupted = 0\n    page = thread.page\n", "    page = thread.page\n")
    ],
    "an interrupted vCPU runs ahead": [
        Edit(FAST_FORWARD, "if thread.kick or thread.pause or thread", "if thread.pause or thread")
    ],
    "a fault after a kick restarts the stopwatch": [Edit(STATISTICS, "if reads or not thread.kicked:", "if True:")],
    "SEEK goes one place too far": [Edit(CLOCK, "rank = min(rank, choices - 1)", "rank = min(rank + 1, choices - 1)")],
    "a barrier wakes one too few": [
        Edit(
            WAITING,
            "for j in range(run.threads.shape[0]):\n        other",
            "for j in range(1, run.threads.shape[0]):\n        other",
        )
    ],
    "CLEAR leaves the dirty bit": [
        Edit(
            REF_MEMORY,
            "after = self.protected(bits & ~Page.DIRTY)",
            "after = self.protected(bits)",
        )
    ],
    "SEND leaves the page in the bitmap": [
        Edit(MEMORY, "pages[page] = state | (bits & Page.DIRTY)", "pages[page] = bits")
    ],
    "a vCPU runs past the time at which its memory is protected": [
        Edit(
            FAST_FORWARD,
            "((horizon >> calendar.THREAD_BITS) - 1 - time) // round_.time",
            "((horizon >> calendar.THREAD_BITS) + 99 * round_.time - time) // round_.time",
        )
    ],
    "a thread that waits for a lock does not limit running ahead": [
        Edit(LOOKAHEAD, "            any_event = True\n", "            any_event = False\n")
    ],
    "a known hit remains one after CLEAR protects it": [
        Edit(FAST_FORWARD, "known = thread.hits_since == world.withdrawn", "known = True")
    ],
    "a vCPU runs past the time at which CLEAR reaches its memory": [
        Edit(LOOKAHEAD, "+ pages * sweep_round.page_ps, 0)", "+ 999 * pages * sweep_round.page_ps, 0)")
    ],
    "tests of a flag within rounds are not counted": [
        Edit(FAST_FORWARD, "return count // round_.period * round_.extra", "return 0")
    ],
    "an adaptive batch is halved below its bound": [
        Edit(REF_INTERPRETER, "max(thread.batch // 2, b)", "max(thread.batch // 2, 1)")
    ],
    # -- log buffers and dirty rings
    "a write that hardware should log is not logged": [
        Edit(LOGS, "    thread.logged += 1\n", "    thread.logged += 0\n")
    ],
    "a log buffer takes one page too many": [
        Edit(REF_LOGS, "return len(self.buffers[owner]) >= self.job", "return len(self.buffers[owner]) > self.job")
    ],
    "a kick does not empty the log buffer": [
        Edit(INTERPRETER, "other.kick = time + logs.drain(run, other, j) * step.d", "other.kick = time")
    ],
    "a full ring does not stop a run of hits": [Edit(FAST_FORWARD, " or ring_is_full(world, thread):", ":")],
    "a run goes back and loses its last page": [
        Edit(REF_LOGS, "mask << -offset < 1 << WORD_PAGES", "mask << -offset < 1 << (WORD_PAGES + 1)")
    ],
    "the reset forgets a duplicate's neighbour": [
        Edit(LOGS, "mask |= np.uint64(1) << np.uint64(offset)", "mask = np.uint64(1) << np.uint64(offset)")
    ],
    "in both engines a drain keeps the last page": [
        Edit(REF_LOGS, "for page in self.buffers[owner]:", "for page in self.buffers[owner][:-1]:"),
        Edit(LOGS, "for i in range(entries):\n        mark", "for i in range(entries - 1):\n        mark"),
    ],
    "in both engines the reset protects nothing": [
        Edit(REF_MEMORY, "matched, after = True, self.protected(bits)", "matched, after = True, bits"),
        Edit(
            MEMORY,
            "        if pages[page] & STATE == Page.WRITABLE:\n            pages[page] = (pages",
            "        if pages[page] & STATE == Page.ABSENT:\n            pages[page] = (pages",
        ),
    ],
    "in both engines harvesting skips an entry": [
        Edit(REF_LOGS, "for page in new:", "for page in new[1:]:"),
        Edit(
            LOGS, "for i in range(other.harvested, other.pushed):", "for i in range(other.harvested + 1, other.pushed):"
        ),
    ],
    "GET does not flush log buffers": [
        Edit(WORKLOADS + "dirty_log.py", "            self.kick(self.costs.log_exit, self.drain_cost)\n", "")
    ],
    "a vCPU waits for the lock with pages in its log buffer": [
        Edit(WORKLOADS + "kernel.py", "            self.drain()\n            self._fault(", "            self._fault(")
    ],
    "the rings are not harvested at the switchover": [
        Edit(WORKLOADS + "dirty_log.py", "            self.program.harvest(0)\n", "")
    ],
    # -- a guest that is throttled
    "a vCPU with a pending sleep runs ahead": [
        Edit(FAST_FORWARD, "if thread.kick or thread.pause or thread", "if thread.kick or thread")
    ],
    "a kicked vCPU does not sleep before its next access": [
        Edit(ACCESS, "(thread.pause > 0 and thread.interrupted != 2)", "(thread.pause > 0 and not thread.interrupted)")
    ],
    "in both engines a vCPU sleeps with pages in its log buffer": [
        Edit(REF_ACCESS, "kick += self.empty_buffer(thread) * self.pause_entry", "kick += 0"),
        Edit(ACCESS, "kick += logs.drain(run, thread, number) * world.pause_entry", "kick += 0"),
    ],
    "in both engines a throttle check keeps its counts": [
        Edit(
            REF_THROTTLING,
            "thread.checked_at, thread.newly_dirty, thread.pages_sent = self.now, 0, 0",
            "thread.checked_at = self.now",
        ),
        Edit(THROTTLING, "    thread.newly_dirty = thread.pages_sent = 0\n", ""),
    ],
    "in both engines a guest is throttled at its first high check": [
        Edit(REF_THROTTLING, "if thread.high_checks >= rule.times:", "if thread.high_checks:"),
        Edit(THROTTLING, "if thread.high_checks >= world.times:", "if thread.high_checks:"),
    ],
    "in both engines a vCPU's rate counts all pages that it ever dirtied": [
        Edit(REF_THROTTLING, "            vcpu.pushed_at_update = pushed\n", ""),
        Edit(THROTTLING, "        vcpu.pushed_at_update = vcpu.pushed\n", ""),
    ],
    "the second throttle equals the first": [Edit("simulator/engine/throttle.py", "more = increment\n", "more = 0\n")],
    "GET within a pass begins at the current page": [
        Edit(
            WORKLOADS + "migration.py", "        program.back(REGION)\n        _get(kernel)\n", "        _get(kernel)\n"
        )
    ],
    # -- a guest with idle CPU time
    "an idle vCPU sleeps only before its next access": [
        Edit(THROTTLING, "if vcpu.idle > 0 and time > 0:", "if vcpu.idle > 9:")
    ],
    "an idle vCPU is kicked": [Edit(INTERPRETER, " and thread.interrupted == 0 and thread.idle == 0", "")],
    "in both engines the due time does not advance": [
        Edit(REF_WAITING, "else thread.due + interval", "else thread.due"),
        Edit(WAITING, "else thread.due + step.a", "else thread.due"),
    ],
    "in both engines a late vCPU idles": [
        Edit(REF_WAITING, "else thread.due + interval", "else max(shown, thread.due) + interval"),
        Edit(WAITING, "else thread.due + step.a", "else max(shown, thread.due) + step.a"),
    ],
    "in both engines a vCPU does not catch up after a throttle's sleep": [
        Edit(
            REF_WAITING,
            "max(thread.alarm, self.now + kick + pause)\n",
            "max(thread.alarm, self.now + kick + pause)\n        thread.due = thread.alarm\n",
        ),
        Edit(
            WAITING,
            "max(thread.alarm, world.now + kick + pause)\n",
            "max(thread.alarm, world.now + kick + pause)\n    thread.due = thread.alarm\n",
        ),
    ],
    # -- in both engines alike
    "in both engines CLEAR leaves the page writable": [
        Edit(REF_MEMORY, "after = self.protected(bits & ~Page.DIRTY)", "after = bits & ~Page.DIRTY"),
        Edit(
            MEMORY, "(Page.PROTECTED if state == Page.WRITABLE else state) | Page.COLLECTED", "state | Page.COLLECTED"
        ),
    ],
    "in both engines a split leaves the block's other pages writable": [
        Edit(REF_MEMORY, "self.fill_table(block, Page.ABSENT)", "self.fill_table(block, Page.WRITABLE)"),
        Edit(
            MEMORY,
            "fill_table(pages, block, world.block_shift, Page.ABSENT)",
            "fill_table(pages, block, world.block_shift, Page.WRITABLE)",
        ),
    ],
    "in both engines CLEAR removes pages from the log that GET did not return": [
        Edit(REF_MEMORY, "bool(bits & Page.DIRTY and bits & Page.COLLECTED)", "bool(bits & Page.DIRTY)"),
        Edit(MEMORY, "(bits & _BITS) == _BITS", "bits & Page.DIRTY"),
    ],
    "in both engines ADVANCE is clipped to the region": [
        Edit(
            REF_INTERPRETER, "page = min(thread.page + a, thread.end[b])", "page = min(thread.page + a, thread.end[0])"
        ),
        Edit(
            INTERPRETER,
            "page = min(thread.page + step.a, thread.end[step.b])",
            "page = min(thread.page + step.a, thread.end[0])",
        ),
    ],
    # -- in the programs of both engines
    "a strategy's skip continues to the end of its chunk": [
        Edit(
            WORKLOADS + "dirty_log.py",
            "otherwise=lambda: program.skip(word)):\n                with program.holding",
            "otherwise=lambda: program.skip(hold)):\n                with program.holding",
        )
    ],
    "a chunk is sent from its end": [
        Edit(
            WORKLOADS + "migration.py",
            "        kernel.clear_chunk(chunk)\n        program.back(chunk)\n",
            "        kernel.clear_chunk(chunk)\n",
        )
    ],
    "GET forgets pages that are not sent yet": [
        Edit(WORKLOADS + "dirty_log.py", "[Scan.SEND] if anew else []", "[] if anew else [Scan.SEND]")
    ],
    "faults are not logged": [
        Edit(WORKLOADS + "kernel.py", "program.map(action, logging)", "program.map(action, False)")
    ],
    "enabling protects every other word": [
        Edit(
            WORKLOADS + "dirty_log.py",
            "self._sweep(lock, WORD_PAGES, protect)",
            "self._sweep(lock, 2 * WORD_PAGES, protect)",
        )
    ],
    "a helper thread clears one word of its part": [
        Edit(
            WORKLOADS + "migration.py",
            "with program.extent(part) as own_part",
            "with program.extent(WORD_PAGES) as own_part",
        )
    ],
    "the first pass omits pages that are not in the log": [
        Edit(
            WORKLOADS + "migration.py",
            "_send_chunk(kernel, chunk, everything=True)",
            "_send_chunk(kernel, chunk, everything=False)",
        )
    ],
    "a condition's second part is never tested": [
        Edit(
            "model/conditions.py",
            "        self.left.write(program, second)\n",
            "        self.left.write(program, no)\n",
        )
    ],
}


def faults_in(edit: Edit) -> str:
    """Describe the fault of an edit whose text does not occur exactly once; empty if there is none."""
    count = (ROOT / "simlib" / edit.path).read_text(encoding="utf-8").count(edit.text)
    return "" if count == 1 else f"{edit.path} has {edit.text!r} {count} times"


def copy_to(folder: Path) -> None:
    """Copy the files that the tests of the engines need."""
    shutil.copytree(ROOT / "simlib", folder / "simlib", ignore=shutil.ignore_patterns("__pycache__", "_*data"))
    for part in ("studies", "checks", "tests/simulator/engine"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests/conftest.py", "tests/notebook_run.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)


def run_tests(folder: Path) -> tuple[list[str], str]:
    """Run the tests with the copy in a folder; return the names of those that fail, and the output."""
    environment = os.environ | {
        "PYTHONPATH": str(folder), "SIMLIB_EXAMPLES": EXAMPLES, "NUMBA_CACHE_DIR": str(folder / "numba"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *command], check=False, env=environment, cwd=folder, capture_output=True,
                              text=True, timeout=LIMIT_S)  # fmt: skip

    imported = run("-c", "import simlib; print(simlib.__file__)")
    if not imported.stdout.startswith(str(folder)):
        raise SystemExit(f"the tests would not import the copy, but {imported.stdout or imported.stderr}")
    try:
        done = run(
            "-m",
            "pytest",
            "-q",
            "-rfE",
            "--tb=line",
            f"--maxfail={MAX_FAILURES}",
            *(f"tests/simulator/engine/{test}" for test in TESTS),
        )
    except subprocess.TimeoutExpired:
        return ["(does not end)"], ""
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?::(\w+)", done.stdout, flags=re.MULTILINE)
    if done.returncode not in (0, 1):
        failed.append(f"(pytest ended with {done.returncode})")
    return list(dict.fromkeys(failed)), done.stdout + done.stderr


def attempt(name: str, folders: Queue[Path]) -> tuple[str, list[str], float]:
    """Apply a mutation and run the tests; return its name, the tests that catch it, and the time, s."""
    folder, start = folders.get(), time.monotonic()
    sources = {edit.path: (folder / "simlib" / edit.path).read_text(encoding="utf-8") for edit in MUTATIONS[name]}
    try:
        for edit in MUTATIONS[name]:
            path = folder / "simlib" / edit.path
            path.write_text(path.read_text(encoding="utf-8").replace(edit.text, edit.wrong), encoding="utf-8")
        caught, _ = run_tests(folder)
    finally:
        for changed, source in sources.items():
            (folder / "simlib" / changed).write_text(source, encoding="utf-8")
        folders.put(folder)
    return name, caught, time.monotonic() - start


def main(names: list[str], processes: int = 2) -> int:
    """Try mutations, by default all; return 1 if a mutation survives."""
    if invalid := [fault for edits in MUTATIONS.values() for edit in edits if (fault := faults_in(edit))]:
        raise SystemExit("\n".join(invalid))
    start, survivors = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="simlib-mutations-") as temporary:
        folders: Queue[Path] = Queue()
        for number in range(processes):
            folder = Path(temporary) / str(number)
            copy_to(folder)
            folders.put(folder)
        failed, output = run_tests(folder)
        if failed:
            raise SystemExit(f"without any mutation, {', '.join(failed)} fail\n{output}")
        print(f"without any mutation, all tests pass ({time.monotonic() - start:.0f} s)", flush=True)
        with ThreadPoolExecutor(processes) as pool:
            for name, caught, seconds in pool.map(lambda name: attempt(name, folders), names or MUTATIONS):
                print(f"{name}\n    {', '.join(caught) or 'SURVIVES'} ({seconds:.0f} s)", flush=True)
                survivors += [] if caught else [name]
    tried = len(names or MUTATIONS)
    print(f"{tried} mutations, {len(survivors)} survive ({time.monotonic() - start:.0f} s)")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
