# SPDX-License-Identifier: BSD-3-Clause
"""Mutations: one fault at a time put into a copy of simlib, to see that a test notices.

    python checks/mutations.py [NAME…]

(`make mutations`) prints which tests caught which fault, and exits 1 if one was caught by none. A fault in one engine
should be caught by comparing it with the other; one that both have, or that a workload has, only by the witness or
by the laws that every run obeys.
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
"""Of each test, for each mutation."""

ENOUGH = "1"
"""Tests that caught a mutation, after which the others are not asked."""

LIMIT_S = 400
"""A run that takes longer does not end; that is noticed, too."""

TESTS = ["test_rules.py", "test_turns.py", "test_identity.py", "test_lines.py",
         "test_conservation.py::test_no_scenario_breaks_a_law",
         "test_conservation.py::test_a_vcpu_that_faults_has_emptied_its_log_buffer",
         "test_conservation.py::test_both_engines_and_the_witness_agree",
         "test_invariants.py::test_locks_keep_their_promises_and_their_books",
         "test_invariants.py::test_every_picosecond_of_a_thread_is_accounted_for",
         "test_invariants.py::test_a_guest_that_works_on_loses_nothing"]  # fmt: skip


class Edit(NamedTuple):
    """A text that stands once in a file of simlib/, and what replaces it."""

    path: str
    text: str
    wrong: str


SIMULATION, OTHER_LOCKS, OTHER_LOGS, OTHER_MEMORY, THREADS = (
    f"engine/reference/{room}.py" for room in ("simulation", "locks", "logs", "memory", "threads")
)
WORKLOADS = "workloads/"
OTHER_ACCESS = "engine/reference/access.py"
ACCESS, LOCKS, LOGS, MEMORY, INTERPRETER, CLOCK, AHEAD, ROUNDS, SLOWING, STATISTICS, TURNS = (
    f"engine/compiled/{room}.py"
    for room in ("access", "locks", "logs", "memory", "interpreter", "clock", "ahead", "rounds", "slowing",
                 "statistics", "turns")
)  # fmt: skip

MUTATIONS: dict[str, list[Edit]] = {
    # -- in one engine
    "TEST asks for more than the threshold": [
        Edit(
            INTERPRETER,
            "if quantity(run.pages, thread, step, time) < step.d:",
            "if quantity(run.pages, thread, step, time) <= step.d:",
        ),
    ],
    "ADVANCE is clipped to the region, not to its extent": [
        Edit(
            INTERPRETER,
            "page = min(thread.page + step.a, thread.end[step.b])",
            "page = min(thread.page + step.a, thread.end[0])",
        ),
    ],
    "OPEN is not clipped to the extent around": [
        Edit(SIMULATION, "thread.page, min(reach, thread.end[a - 1])", "thread.page, min(reach, thread.end[0])"),
    ],
    "the next one's queue node is fetched at the near price": [
        Edit(
            LOCKS,
            "owned += transfer(world, cpus, waiter(waiting, index, lock, 0), number)",
            "owned += cpus.transfer_ps[0]",
        ),
    ],
    "a hand-over is the longer for the one whose turn it is, too": [
        Edit(
            LOCKS,
            "owned += item(cpus.queue_length_penalty_ps, lock.length)",
            "owned += item(cpus.queue_length_penalty_ps, min(lock.length + 1, len(cpus.queue_length_penalty_ps) - 1))",
        ),
    ],
    "a cluster's CPUs are near, and no nearer": [
        Edit(OTHER_LOCKS, "return job.cluster_ps", "return job.near_ps"),
    ],
    "who touched a line last does not own it": [
        Edit(LOCKS, "    line.owner = number\n", ""),
    ],
    "a reader is let in beside a writer": [
        Edit(LOCKS, "return lock.holders >= 0", "return lock.holders >= -1"),
    ],
    "the ticket sweep is paid whole, not half": [
        Edit(OTHER_LOCKS, "at + sweep // 2, thread.number", "at + sweep, thread.number"),
    ],
    "HELD counts from when the lock was asked for": [
        Edit(SIMULATION, "clock - (thread.acquired if", "clock - (thread.tried if"),
    ],
    "a lockless update that lost its race is not done again": [
        Edit(LOCKS, "if lock.count != thread.seen:", "if lock.count < thread.seen:"),
    ],
    "readers pass the queue while a writer is its head": [
        Edit(LOCKS, "(mode == Mode.READ and head.mode == Mode.READ)", "mode == Mode.READ"),
    ],
    "nobody passes the queue": [
        Edit(LOCKS, "return at < lock.comes_at or (mode", "return (mode"),
    ],
    "who queues does nothing before its first look": [
        Edit(LOCKS, "now + world.queue_ps", "now"),
    ],
    "who looks in vain uses all of its turn": [
        Edit(TURNS, "min(now + world.look_ps, world.turn_end)", "world.turn_end"),
    ],
    "a tick that came late shifts the next one": [
        Edit(TURNS, "((now - thread.tick_at) // world.tick_ps + 1) * world.tick_ps", "world.tick_ps"),
    ],
    "a lap at a bin's upper end is one bin further": [
        Edit(STATISTICS, "lap_bin(gap))] += 1", "lap_bin(gap + 1))] += 1"),
    ],
    "a vCPU in a fault counts as in the guest": [
        Edit(INTERPRETER, "thread.asleep == 0 and thread.holds == 0 and", "thread.asleep == 0 and"),
    ],
    "who is on the way back from an interrupt is interrupted again": [
        Edit(THREADS, "not (self.asleep or self.holds or self.interrupted)", "not (self.asleep or self.holds)"),
    ],
    "a vCPU that held a lock once is never in the guest again": [
        Edit(LOCKS, "        thread.holds -= 1\n", ""),
    ],
    "a lock is held from when one was taken within": [
        Edit(LOCKS, "            thread.acquired = thread.outer\n", "            pass\n"),
    ],
    "an interrupt takes its mean, whatever its distribution": [
        Edit(INTERPRETER, "time = clock.sample(thread, run.quantiles, step.a, step.c)", "time = step.a"),
    ],
    "an access that was interrupted ends the interruption of the next": [
        Edit(ACCESS, "    thread.interrupted = 0\n    page = thread.page\n", "    page = thread.page\n"),
    ],
    "an interrupted vCPU runs ahead": [
        Edit(ROUNDS, "if thread.kick or thread.pause or thread", "if thread.pause or thread"),
    ],
    "a fault after a kick starts the stopwatch anew": [
        Edit(STATISTICS, "if reads or not thread.kicked:", "if True:"),
    ],
    "SEEK goes one place too far": [
        Edit(CLOCK, "rank = min(rank, choices - 1)", "rank = min(rank + 1, choices - 1)"),
    ],
    "a barrier wakes one too few": [
        Edit(
            INTERPRETER,
            "for j in range(run.threads.shape[0]):\n        other",
            "for j in range(1, run.threads.shape[0]):\n        other",
        ),
    ],
    "CLEAR leaves the dirty bit": [
        Edit(
            OTHER_MEMORY, "self.pages[p] = self.protected(bits & ~Page.DIRTY)", "self.pages[p] = self.protected(bits)"
        ),
    ],
    "SEND leaves the page in the bitmap": [
        Edit(MEMORY, "pages[page] = state | (bits & Page.DIRTY)", "pages[page] = bits"),
    ],
    "a vCPU runs on past the time at which its memory is protected": [
        Edit(
            ROUNDS,
            "((horizon >> calendar.THREAD_BITS) - 1 - time) // usual.time",
            "((horizon >> calendar.THREAD_BITS) + 99 * usual.time - time) // usual.time",
        ),
    ],
    "a thread that waits for a lock keeps nobody from running ahead": [
        Edit(AHEAD, "            by_any = True\n", "            by_any = False\n"),
    ],
    "what was a hit once stays one although CLEAR protects it": [
        Edit(ROUNDS, "known = thread.hits_since == world.withdrawn", "known = True"),
    ],
    "a vCPU runs on past the time at which CLEAR comes to its memory": [
        Edit(AHEAD, "+ pages * usual.page_ps, 0)", "+ 999 * pages * usual.page_ps, 0)"),
    ],
    "looks at a flag on the way are not counted": [
        Edit(ROUNDS, "return count // usual.period * usual.extra", "return 0"),
    ],
    "an adaptive batch is halved below its bound": [
        Edit(SIMULATION, "max(thread.batch // 2, b)", "max(thread.batch // 2, 1)"),
    ],
    # -- log buffers and dirty rings
    "a write that hardware notices is not written down": [
        Edit(LOGS, "    thread.logged += 1\n", "    thread.logged += 0\n"),
    ],
    "a log buffer takes one page too many": [
        Edit(OTHER_LOGS, "return len(self.buffers[owner]) >= self.job", "return len(self.buffers[owner]) > self.job"),
    ],
    "a kick leaves the log buffer as it is": [
        Edit(INTERPRETER, "other.kick = time + logs.drain(run, other, j) * step.d", "other.kick = time"),
    ],
    "a ring that is full does not stop a run of hits": [
        Edit(ROUNDS, " or ring_is_full(world, thread):", ":"),
    ],
    "a run goes back and loses its last page": [
        Edit(OTHER_LOGS, "mask << -ahead < 1 << WORD_PAGES", "mask << -ahead < 1 << (WORD_PAGES + 1)"),
    ],
    "the reset forgets a duplicate's neighbour": [
        Edit(LOGS, "mask |= np.uint64(1) << np.uint64(ahead)", "mask = np.uint64(1) << np.uint64(ahead)"),
    ],
    "in both engines a drain keeps the last page": [
        Edit(OTHER_LOGS, "for page in self.buffers[owner]:", "for page in self.buffers[owner][:-1]:"),
        Edit(LOGS, "for i in range(entries):\n        mark", "for i in range(entries - 1):\n        mark"),
    ],
    "in both engines the reset protects nothing": [
        Edit(
            OTHER_MEMORY,
            "            case Scan.PROTECT_RUN:\n                found = True\n"
            "                self.pages[p] = self.protected(bits)",
            "            case Scan.PROTECT_RUN:\n                found = True",
        ),
        Edit(
            MEMORY,
            "        if pages[page] & STATE == Page.WRITABLE:\n            pages[page] = (pages",
            "        if pages[page] & STATE == Page.ABSENT:\n            pages[page] = (pages",
        ),
    ],
    "in both engines harvesting skips an entry": [
        Edit(OTHER_LOGS, "for page in new:", "for page in new[1:]:"),
        Edit(
            LOGS, "for i in range(other.harvested, other.pushed):", "for i in range(other.harvested + 1, other.pushed):"
        ),
    ],
    "GET does not ask for log buffers": [
        Edit(WORKLOADS + "dirty_log.py", "            self.kick(self.costs.log_exit, self.drained)\n", ""),
    ],
    "a vCPU waits for the lock with pages in its log buffer": [
        Edit(WORKLOADS + "kernel.py", "            self.drain()\n            self._fault(", "            self._fault("),
    ],
    "what the rings have at the switchover is forgotten": [
        Edit(WORKLOADS + "dirty_log.py", "            self.program.harvest(0)\n", ""),
    ],
    # -- a guest that is slowed down
    "a vCPU that was told to sleep runs ahead": [
        Edit(ROUNDS, "if thread.kick or thread.pause or thread", "if thread.kick or thread"),
    ],
    "who was kicked does not sleep before its next access": [
        Edit(ACCESS, "(thread.pause > 0 and thread.interrupted != 2)", "(thread.pause > 0 and not thread.interrupted)"),
    ],
    "in both engines a vCPU sleeps with pages in its log buffer": [
        Edit(OTHER_ACCESS, "kick += self.empty_buffer(thread) * self.pause_entry", "kick += 0"),
        Edit(ACCESS, "kick += logs.drain(run, thread, number) * world.pause_entry", "kick += 0"),
    ],
    "in both engines a judgement goes on with what it has judged": [
        Edit(SIMULATION, "thread.judged, thread.came, thread.went = self.now, 0, 0", "thread.judged = self.now"),
        Edit(SLOWING, "    thread.came = thread.went = 0\n", ""),
    ],
    "in both engines a guest is throttled when it was high once": [
        Edit(SIMULATION, "if thread.high >= rule.times:", "if thread.high:"),
        Edit(SLOWING, "if thread.high >= world.times:", "if thread.high:"),
    ],
    "in both engines a vCPU's rate counts all that it ever dirtied": [
        Edit(SIMULATION, "            vcpu.looked = pushed\n", ""),
        Edit(SLOWING, "        vcpu.looked = vcpu.pushed\n", ""),
    ],
    "the second throttle is the first one again": [
        Edit("engine/throttle.py", "more = increment\n", "more = 0\n"),
    ],
    "GET within a pass begins where that is": [
        Edit(
            WORKLOADS + "migration.py", "        program.back(REGION)\n        _get(kernel)\n", "        _get(kernel)\n"
        ),
    ],
    # -- in both, alike
    "in both engines CLEAR leaves the page writable": [
        Edit(OTHER_MEMORY, "self.pages[p] = self.protected(bits & ~Page.DIRTY)", "self.pages[p] = bits & ~Page.DIRTY"),
        Edit(
            MEMORY, "(Page.PROTECTED if state == Page.WRITABLE else state) | Page.COLLECTED", "state | Page.COLLECTED"
        ),
    ],
    "in both engines a split leaves the block's other pages writable": [
        Edit(OTHER_MEMORY, "self.fill_table(block, Page.ABSENT)", "self.fill_table(block, Page.WRITABLE)"),
        Edit(
            MEMORY,
            "fill_table(pages, block, world.block_shift, Page.ABSENT)",
            "fill_table(pages, block, world.block_shift, Page.WRITABLE)",
        ),
    ],
    "in both engines CLEAR takes out of the log what GET did not give": [
        Edit(OTHER_MEMORY, "bool(bits & Page.DIRTY and bits & Page.COLLECTED)", "bool(bits & Page.DIRTY)"),
        Edit(MEMORY, "(bits & _BITS) == _BITS", "bits & Page.DIRTY"),
    ],
    "in both engines ADVANCE is clipped to the region": [
        Edit(SIMULATION, "page = min(thread.page + a, thread.end[b])", "page = min(thread.page + a, thread.end[0])"),
        Edit(
            INTERPRETER,
            "page = min(thread.page + step.a, thread.end[step.b])",
            "page = min(thread.page + step.a, thread.end[0])",
        ),
    ],
    # -- in what both engines are given
    "a strategy's skip goes on to the end of its chunk": [
        Edit(
            WORKLOADS + "dirty_log.py",
            "otherwise=lambda: program.skip(word)):\n                with program.holding",
            "otherwise=lambda: program.skip(hold)):\n                with program.holding",
        ),
    ],
    "a chunk's walk does not go back before it is sent": [
        Edit(
            WORKLOADS + "migration.py",
            "        kernel.clear_chunk(chunk)\n        program.back(chunk)\n",
            "        kernel.clear_chunk(chunk)\n",
        ),
    ],
    "GET forgets what is not sent yet": [
        Edit(WORKLOADS + "dirty_log.py", "[Scan.SEND] if anew else []", "[] if anew else [Scan.SEND]"),
    ],
    "faults are not logged": [
        Edit(WORKLOADS + "kernel.py", "program.map(action, logging)", "program.map(action, False)"),
    ],
    "enabling protects every other word": [
        Edit(
            WORKLOADS + "dirty_log.py",
            "self._sweep(lock, WORD_PAGES, protect)",
            "self._sweep(lock, 2 * WORD_PAGES, protect)",
        ),
    ],
    "a thread that helps clears one word of its part": [
        Edit(
            WORKLOADS + "migration.py", "with program.extent(part) as mine", "with program.extent(WORD_PAGES) as mine"
        ),
    ],
    "the first pass leaves out what the log has not": [
        Edit(
            WORKLOADS + "migration.py",
            "_send_chunk(kernel, chunk, everything=True)",
            "_send_chunk(kernel, chunk, everything=False)",
        ),
    ],
    "a condition's second part is never asked": [
        Edit(
            "model/conditions.py",
            "        self.left.write(program, second)\n",
            "        self.left.write(program, no)\n",
        ),
    ],
}


def faults_in(edit: Edit) -> str:
    """What is wrong with an edit itself; empty if nothing."""
    count = (ROOT / "simlib" / edit.path).read_text(encoding="utf-8").count(edit.text)
    return "" if count == 1 else f"{edit.path} has {edit.text!r} {count} times"


def copy_to(folder: Path) -> None:
    """What the tests of the engines need."""
    shutil.copytree(ROOT / "simlib", folder / "simlib", ignore=shutil.ignore_patterns("__pycache__", "_*data"))
    for part in ("checks", "tests/simulator/engine"):
        shutil.copytree(ROOT / part, folder / part)
    for name in ("tests/conftest.py", "tests/notebook_run.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)


def run_tests(folder: Path) -> tuple[list[str], str]:
    """Names of the tests that fail with the copy in a folder, and the output."""
    environment = os.environ | {
        "PYTHONPATH": str(folder), "SIMLIB_EXAMPLES": EXAMPLES, "NUMBA_CACHE_DIR": str(folder / "numba"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *command], check=False, env=environment, cwd=folder, capture_output=True,
                              text=True, timeout=LIMIT_S)  # fmt: skip

    found = run("-c", "import simlib; print(simlib.__file__)")
    if not found.stdout.startswith(str(folder)):
        raise SystemExit(f"the copy is not what is tested, but {found.stdout or found.stderr}")
    try:
        done = run(
            "-m",
            "pytest",
            "-q",
            "-rfE",
            "--tb=line",
            f"--maxfail={ENOUGH}",
            *(f"tests/simulator/engine/{test}" for test in TESTS),
        )
    except subprocess.TimeoutExpired:
        return ["(it does not end)"], ""
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?::(\w+)", done.stdout, flags=re.MULTILINE)
    if done.returncode not in (0, 1):
        failed.append(f"(pytest ended with {done.returncode})")
    return list(dict.fromkeys(failed)), done.stdout + done.stderr


def attempt(name: str, folders: Queue[Path]) -> tuple[str, list[str], float]:
    """Which tests catch a mutation, and how long that took."""
    folder, began = folders.get(), time.monotonic()
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
    return name, caught, time.monotonic() - began


def main(names: list[str], processes: int = 2) -> int:
    """Try mutations; returns 1 if one survives."""
    if rotten := [fault for edits in MUTATIONS.values() for edit in edits if (fault := faults_in(edit))]:
        raise SystemExit("\n".join(rotten))
    began, survivors = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="simlib-mutations-") as temporary:
        folders: Queue[Path] = Queue()
        for number in range(processes):
            folder = Path(temporary) / str(number)
            copy_to(folder)
            folders.put(folder)
        failed, output = run_tests(folder)
        if failed:
            raise SystemExit(f"without any mutation, {', '.join(failed)} fail\n{output}")
        print(f"without any mutation, all tests pass ({time.monotonic() - began:.0f} s)", flush=True)
        with ThreadPoolExecutor(processes) as pool:
            for name, caught, seconds in pool.map(lambda name: attempt(name, folders), names or MUTATIONS):
                print(f"{name}\n    {', '.join(caught) or 'SURVIVES'} ({seconds:.0f} s)", flush=True)
                survivors += [] if caught else [name]
    tried = len(names or MUTATIONS)
    print(f"{tried} mutations, {len(survivors)} survive ({time.monotonic() - began:.0f} s)")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
