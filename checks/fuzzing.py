# SPDX-License-Identifier: BSD-3-Clause
"""Fuzz every parser, importer and command with mutated inputs: ``make fuzz``.

Each input is a valid one of the repository, changed by some mutations: bytes, lines, values of a table, unusual values.
It must be read, or refused with an error of `simlib._lib.errors`, within `LIMIT_S` and `LIMIT_BYTES`, and no file may
be left incomplete. Input N is reproducible. A million inputs take an hour: they are divided into pieces, each in a
separate process, and a new run continues after the last finished piece. ``python checks/fuzzing.py 1000000``
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import tomli_w

from simlib._lib.errors import RunInterruptedError, SimlibError
from simlib.analysis.simulate import run_scenario
from simlib.lab import load_experiment
from simlib.measurements import as_table, check, import_text, importers
from simlib.measurements.condition import parse_condition
from simlib.measurements.fits import load_fit
from simlib.measurements.fits.file import fit_text
from simlib.measurements.importers import write_imported
from simlib.model import quantities, strategy
from simlib.model.scenario import Scenario, load_scenario
from simlib.simulator.workloads import KINDS, build, kind_of
from simlib.ui.cli import main as command
from simlib.ui.explorer.state import ExplorerState
from simlib.vmm.read_guest import parse_guest

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "tests" / "measurements" / "samples"
LIMIT_S = 20.0
"""Longest time that an input may take, s."""

LIMIT_BYTES = 2 << 30
"""Largest peak memory of the process."""

PIECE = 10_000
"""Number of inputs of a process."""

STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**62,
    2**63,
    2**64,
    10**400,
    -(10**400),
    0.0,
    -0.0,
    1e-320,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
    "",
    " ",
    "0",
    "-1",
    "1e300s",
    "1e-300s",
    "9" * 5000,
    "0x10",
    "1_000",
    "4000s",
    "1ps",
    "4000000Tbit/s",
    "0.4bit/s",
    "1e18G",
    "0K",
    "nan",
    "inf",
    "null",
    "x" * 300,
    "µs",
    "１",
    "\ud800",
    "\udcff",
    "\x1b[31m",
    "\x9b2J",
    "\x00",
    "\r\n",
    "\u202e",
    "../../etc/passwd",
    "/dev/zero",
    "<script>",
    "[/]",
    "{0}",
    "%s",
    "a.b",
    [],
    {},
    [[]],
    [1, "a"],
    {"a": {}},
    [0] * 2000,
    "pages >= 64",
    "held >= 0s",
    "baseline",
    "variants",
    "never",
)
"""Unusual values, and values that have a meaning elsewhere."""


def scratch() -> Path:
    """Return a folder of this process, in memory if possible."""
    return _scratch(os.getpid())


@cache
def _scratch(_process: int) -> Path:
    shared = Path("/dev/shm")  # noqa: S108  # made by tempfile below
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=shared if os.access(shared, os.W_OK) else None))


# --- mutations ---


def mutate(valid: bytes, random: Random, tree: str = "") -> bytes:
    """Return a text with some changes; a tree (``"toml"``, ``"json"``) mostly gets other values."""
    if tree and random.random() < 0.7:
        with contextlib.suppress(ValueError, TypeError, RecursionError, AttributeError, OverflowError):
            valid = _other_values(valid, random, tree)
            if random.random() < 0.8:
                return valid
    raw = bytearray(valid)
    for _ in range(1 + random.randrange(4)):
        random.choice(_MUTATIONS)(raw, random)
    return bytes(raw)


def _other_values(valid: bytes, random: Random, tree: str) -> bytes:
    content = tomllib.loads(valid.decode()) if tree == "toml" else json.loads(valid)
    for _ in range(1 + random.randrange(3)):
        places = list(_places(content)) or [({"": 0}, "")]
        holder, key = random.choice(places)
        choice = random.randrange(5)
        if choice == 0 and isinstance(holder, dict):
            holder[str(random.choice(STRANGE))] = holder.pop(key)
        elif choice == 1:
            del holder[key]
        elif choice == 2:
            other, name = random.choice(places)
            holder[key] = deepcopy(other[name])  # otherwise it could contain itself, and be endless
        else:
            holder[key] = _strange(holder[key], random)
    if tree == "toml":
        return tomli_w.dumps(content).encode("utf-8", "surrogatepass")
    return json.dumps(content).encode()


def _strange(value: Any, random: Random) -> Any:
    """Return another value, often of the same type."""
    if random.random() < 0.5:
        same_type = [candidate for candidate in STRANGE if type(candidate) is type(value)]
        if same_type:
            return deepcopy(random.choice(same_type))
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.5:
        return value * random.choice((-1, 0, 2, 1000, 10**9, 1e-9, 0.5))
    if isinstance(value, str) and random.random() < 0.5:
        raw = bytearray(value.encode("utf-8", "surrogatepass"))
        random.choice(_MUTATIONS)(raw, random)
        return raw.decode("utf-8", "surrogateescape")
    return deepcopy(random.choice(STRANGE))  # a later change must not affect the next inputs


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(content) if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from _places(content[key])


def _flip(raw: bytearray, random: Random) -> None:
    if raw:
        raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)


def _cut(raw: bytearray, random: Random) -> None:
    start = random.randrange(len(raw) + 1)
    del raw[start : start + random.choice((1, 4, 30, len(raw)))]


def _insert(raw: bytearray, random: Random) -> None:
    text = str(random.choice(STRANGE)).encode("utf-8", "surrogatepass")
    raw[(at := random.randrange(len(raw) + 1)) : at] = text


def _repeat(raw: bytearray, random: Random) -> None:
    start, size = random.randrange(len(raw) + 1), random.choice((1, 8, 200))
    raw[start:start] = raw[start : start + size] * random.choice((1, 2, 50))


def _lines(raw: bytearray, random: Random) -> None:
    lines = bytes(raw).split(b"\n")
    first, second = random.randrange(len(lines)), random.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first if random.random() < 0.5 else second]
    raw[:] = b"\n".join(lines)


def _digits(raw: bytearray, random: Random) -> None:
    places = [at for at, byte in enumerate(raw) if 48 <= byte <= 57]
    if places:
        at = random.choice(places)
        raw[at : at + 1] = random.choice((b"-1", b"0", b"99999999999999999999", b".", b"1e999", b"", b"\xd9\xa3"))


def _nest(raw: bytearray, random: Random) -> None:
    deep = random.choice((40, 2000))
    pair = random.choice((b"[]", b"{}", b"()", b'""'))
    at = random.randrange(len(raw) + 1)
    raw[at:at] = pair[:1] * deep + pair[1:] * random.choice((0, deep))


_MUTATIONS: tuple[Callable[[bytearray, Random], None], ...] = (
    _flip, _flip, _cut, _insert, _insert, _repeat, _lines, _lines, _digits, _digits, _nest,
)  # fmt: skip


# --- targets ---


@cache
def corpus(pattern: str) -> tuple[bytes, ...]:
    """Return the contents of valid files of the repository."""
    return tuple(path.read_bytes() for path in sorted(ROOT.glob(pattern)) if path.stat().st_size < 30_000)


def file_of(content: bytes, name: str) -> Path:
    """Write a file with a content under a fixed name."""
    path = scratch() / name
    path.write_bytes(content)
    return path


def scenario(random: Random) -> bytes:
    """Fuzz a scenario, its programs and its file."""
    given = mutate(random.choice(corpus("data/scenarios/*.toml")), random, "toml")
    with expect_refusal(given):
        loaded = load_scenario(file_of(given, "a.toml"))
        assert Scenario.parse(tomllib.loads(loaded.to_toml())) == loaded, "does not read back equal"
        loaded._repr_html_()
        case = next(iter(loaded.variants.values()), loaded)
        kind_of(case).check_horizon(case)
        if case.guest.vcpus <= 64 and case.guest.pages_per_vcpu * case.guest.vcpus < 2**28:
            build(case)
    return given


KINDS_RUN = "\n".join(
    f"[variants.{kind}.workload]\nkind = '{kind}'" for kind in sorted(KINDS) if kind not in ("teardown", "lock_probe")
)
RUN = f"""
[host]
cores = 8
sockets = 2
remote_ratio = 1.5
clock = "wall"
[guest]
vcpus = 2
memory_per_vcpu = "2M"
[policy]
architecture = "x86-tdp"
lock = "default"
clear_drop_when = "pages >= 512 and waiters >= 1"
lock_regions = 1
[workload]
iterations = 1
pause = "10us"
access = "uniform"
access_interval = "1us"
warm_up = "10us"
link = "25Gbit/s"
downtime = "1us"
timeout = "10ms"
pass_limit = 3
[costs]
fault_unlocked = "700ns"
fault_hold = "600ns"
line_transfer = "50ns"
guest_access = "2ns"
clear_page = "30ns"
flush = "1us"
fault_jitter = 0.3
{KINDS_RUN}
"""
"""Scenario that every engine runs quickly, with a variant for each workload."""

MAX_EVENTS = 300_000


def run(random: Random) -> bytes:
    """Fuzz a simulation and its results."""
    given = mutate(RUN.encode(), random, "toml")
    with expect_refusal(given):
        loaded = load_scenario(file_of(given, "run.toml"))
        case = random.choice([*loaded.variants.values(), loaded])
        if case.guest.pages_per_vcpu * case.guest.vcpus > 2**18:
            return given

        def progress(events: int, _now: int) -> None:
            if events > MAX_EVENTS:
                raise RunInterruptedError("the run makes progress, and so is valid")

        result = run_scenario(case, progress=progress)
        result.table()
        result.locks()
        if random.random() < 0.1:
            result.tables()
            result._repr_html_()
    return given


def fit(random: Random) -> bytes:
    """Fuzz a fit, its report and its file."""
    given = mutate(random.choice(corpus("data/fits/*.json")), random, "json")
    with expect_refusal(given):
        loaded = load_fit(file_of(given, "fit.json"))
        if random.random() < 0.05:
            loaded._repr_html_()
            loaded.summary()
        fit_text(loaded).encode()
    return given


def experiment(random: Random) -> bytes:
    """Fuzz an experiment and its cells."""
    given = mutate(random.choice(corpus("data/experiments/*.toml")), random, "toml")
    with expect_refusal(given):
        for loaded in load_experiment(file_of(given, "e.toml")):
            for cell in itertools.islice(loaded.cells(), 20):
                cell.script()
    return given


def table(random: Random) -> bytes:
    """Fuzz a table of measurements, with or without its descriptor."""
    paths = [path for path in sorted(ROOT.glob("data/published/*.csv")) if path.stat().st_size < 4000]
    path = random.choice(paths)
    rows, descriptor = path.read_bytes(), path.with_suffix(".json").read_bytes()
    descriptor_path = scratch() / "t.json"
    descriptor_path.unlink(missing_ok=True)
    if random.random() < 0.5:
        given = mutate(rows, random)
    else:
        content = json.loads(descriptor) | {"path": "t.csv"}
        given = mutate(json.dumps(content).encode(), random, "json")
        descriptor_path.write_bytes(given)
    with expect_refusal(given):
        check(file_of(given if not descriptor_path.exists() else rows, "t.csv"))
        as_table(scratch() / "t.csv")._repr_html_()
    return given


def log(random: Random) -> bytes:
    """Fuzz the log of another tool, and the files written from it."""
    names = sorted(importers.KINDS)
    given = mutate(random.choice(corpus("tests/measurements/samples/*")), random)
    kind = next((name for name in names if name == importers.sniff(given.decode(errors="replace").split("\n"))), "")
    kind = kind if kind and random.random() < 0.9 else random.choice(names)
    with expect_refusal(given):
        imported = import_text(kind, given.decode("utf-8", "surrogateescape"))
        if random.random() < 0.1:
            for path in write_imported(imported, scratch() / "imported", "mine"):
                check(path)
    return given


WORDS = (
    "1.2us",
    "64G",
    "25Gbit/s",
    "pages >= 512 and (held >= 50us or waiters >= 1)",
    "blocks >= 10 and waiters >= 1",
    "vcpus <= 8 and not series == 'spin lock'",
    "0.5s",
    "4096",
    "never",
    "vcpus in (1, 2)",
    "held >= 20us or spent >= 1ms",
    "architecture=arm64&guest.vcpus=128&strategy=every-64&pin=whole-ioctl&costs.fault_hold=1us",
)


def words(random: Random) -> bytes:
    """Fuzz a quantity, a condition, a strategy, an address."""
    given = mutate(random.choice(WORDS).encode(), random)
    text = given.decode("utf-8", "surrogateescape")
    for read in (quantities.parse_duration, quantities.parse_size, quantities.parse_bandwidth, parse_condition,
                 strategy.strategy):  # fmt: skip
        with expect_refusal(given):
            read(text)
    if random.random() < 0.2:
        with expect_refusal(given):
            ExplorerState.from_query(text)
    return given


REPLIES = b"""(QEMU) query-cpus-fast
{"return": [{"cpu-index": 0, "target": "x86_64"}, {"cpu-index": 1, "target": "x86_64"}]}
(QEMU) query-dirty-rate
{"return": {"status": "measured", "dirty-rate": 100, "mode": "dirty-bitmap", "calc-time": 2, "start-time": 5}}
(QEMU) query-migrate
{"return": {"status": "active", "ram": {"total": 17197506560, "transferred": 1, "remaining": 5, "mbps": 942.5,
 "dirty-pages-rate": 1000, "page-size": 4096, "dirty-sync-count": 3}, "total-time": 5000, "expected-downtime": 3}}
"""


def qemu(random: Random) -> bytes:
    """Fuzz pasted replies of QEMU."""
    given = mutate(REPLIES, random)
    with expect_refusal(given):
        parse_guest(given.decode("utf-8", "surrogateescape"))
    return given


@cache
def log_pastes() -> tuple[str, ...]:
    """Return the logs of migrations with which the readers are tested."""
    texts = runpy.run_path(str(ROOT / "tests" / "vmm" / "logs" / "texts.py"))
    return tuple(text for name in ("SERIES", "OTHERS") for text in texts[name].values())


def paste(random: Random) -> bytes:
    """Fuzz pasted logs of migrations: one or several, mutated."""
    given = mutate("".join(random.choices(log_pastes(), k=random.choice((1, 1, 2, 3)))).encode(), random)
    with expect_refusal(given):
        parse_guest(given.decode("utf-8", "surrogateescape"))
    return given


LINES: tuple[tuple[str, ...], ...] = (
    ("simulate", "SCENARIO", "--listing"),
    ("simulate", "SCENARIO", "--vcpus", "0x2", "--out", "OUT"),
    ("predict", "SCENARIO", "--vcpus", "1,two", "--fit", "FIT"),
    ("compare", "SCENARIO", "baseline", "every-6", "--vcpus", "2"),
    ("choose", "SCENARIO", "--strategy", "every-63", "--max-stall", "1", "--memory", "2Q"),
    ("policies", "--format", "json"),
    ("choose-batch", "--architecture", "arm", "--link", "1Gbit", "--out", "OUT"),
    ("lab", "run", "EXPERIMENT", "--jobs", "1"),
    ("calibrate", "SCENARIO", "TABLE", "--train", "vcpus <= ", "--out", "OUT"),
    ("data", "check", "TABLE"),
    ("data", "import", "lock-stat", "LOG", "--out", "OUT", "--set", "vcpus=8"),
    ("data", "show", "arm64-dirty-memory-time"),
    ("host", "report", "OUT"),
    ("host", "watch", "--duration", "x"),
    ("explore", "--query", "guest.vcpus=0"),
    ("explore", "--scenario", "SCENARIO", "--table", "/proc/x"),
    ("reproduce", "--out", "/dev/null"),
    ("--version",),
)
_SLOW = {
    "predict",
    "compare",
    "choose",
    "choose-batch",
    "calibrate",
    "reproduce",
    "explore",
    "measure",
    "build",
    "qemu",
    "collect",
    "costs",
    "watch",
}
"""Commands that would compute or serve: their files are broken, so that they start and refuse."""


def line(random: Random) -> bytes:
    """Fuzz a command line with broken files."""
    given = list(random.choice(LINES))
    files = {"SCENARIO": ("data/scenarios/*.toml", "toml"), "FIT": ("data/fits/*.json", "json"), "TABLE":
             ("data/published/*.csv", ""), "EXPERIMENT": ("data/experiments/*.toml", "toml"),
             "LOG": ("tests/measurements/samples/*", "")}  # fmt: skip
    slow = bool(_SLOW & set(given)) or "run" in given
    for at, word in enumerate(given):
        if word in files:
            content = b"[guest" if slow else mutate(random.choice(corpus(files[word][0])), random, files[word][1])
            given[at] = str(file_of(content, f"line.{word.lower()}"))
        elif word == "OUT":
            given[at] = str(
                random.choice((scratch() / "out", "/dev/full", "/proc/no", scratch() / ("x" * 300), "a\0b"))
            )
        elif random.random() < (0.0 if slow else 0.3):
            given[at] = mutate(word.encode(), random).decode("utf-8", "surrogateescape")
    if not slow and random.random() < 0.3:
        given.insert(random.randrange(len(given) + 1), str(random.choice(STRANGE)))
    if _SLOW & set(given) and not slow:
        return b""
    joined = "\0".join(given).encode("utf-8", "surrogatepass")
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command(given)
        code: object = 0
    except SystemExit as end:
        code = end.code
    assert code in (0, 1, 2, None), f"exit code {code}"
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return joined


@contextlib.contextmanager
def expect_refusal(_given: bytes) -> Iterator[None]:
    """Require that a refusal is one short, printable sentence."""
    try:
        yield
    except SimlibError as error:
        text = error.cli_message()
        assert text.replace("\n", "").replace("\t", "").isprintable(), f"not printable: {text!r}"
        assert len(text) < 10_000, f"too long: {text[:200]}"


TARGETS: dict[Callable[[Random], bytes], int] = {
    scenario: 240, run: 30, fit: 60, experiment: 95, table: 5, log: 150, words: 355, qemu: 30, paste: 30, line: 5,
}  # fmt: skip
"""Targets with their frequencies per thousand inputs; slow targets are less frequent."""


@dataclass
class Fault:
    """Input that was neither read nor refused properly."""

    number: int
    target: str
    text: str


def try_input(number: int) -> Fault | None:
    """Try an input; return its fault, if any."""
    random = Random(number)  # noqa: S311  # no secret
    (target,) = random.choices(list(TARGETS), list(TARGETS.values()))

    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {LIMIT_S} s")

    previous = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target(random)
    except Exception:  # every exception that `expect_refusal` does not handle is a fault
        return Fault(number, target.__name__, traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    return None


def try_inputs(first: int, count: int) -> list[Fault]:
    """Try `count` inputs; then check the memory and the remaining files."""
    before = _peak()
    faults = [fault for number in range(first, first + count) if (fault := try_input(number)) is not None]
    if (peak := _peak()) > max(before, LIMIT_BYTES):
        faults.append(Fault(first, "memory", f"{peak >> 20} MiB"))
    faults += [Fault(first, "files", f"left {path}") for path in scratch().rglob(".*")]
    shutil.rmtree(scratch())
    _scratch.cache_clear()
    return faults


def _peak() -> int:
    """Peak memory of this process, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(count: int = 1_000_000, minutes: float = math.inf) -> int:
    """Run the pieces that have not yet passed, within the time limit; return the number of faults."""
    folder = ROOT / "build" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    known = set(map(int, done.read_text().split())) if done.is_file() else set()
    pieces = [piece for piece in range(-(-count // PIECE)) if piece not in known]
    start, faults = time.monotonic(), 0
    for at, piece in enumerate(pieces):
        if time.monotonic() - start > 60 * minutes:
            print(f"{len(pieces) - at} pieces remain: run again")
            break
        result = subprocess.run(
            [sys.executable, __file__, "--piece", str(piece)], stdout=subprocess.PIPE, text=True, check=False
        )
        new_faults = [["?", "process", str(result.returncode)]]
        if result.returncode == 0:
            new_faults = json.loads(result.stdout.splitlines()[-1])
        for number, target, text in new_faults:
            print(f"input {number} ({target}):\n{text}")
        faults += len(new_faults)
        if not new_faults:
            with done.open("a") as stream:
                stream.write(f"{piece}\n")
        print(f"{(piece + 1) * PIECE} of {count} inputs, {faults} faults, {time.monotonic() - start:.0f} s", flush=True)
    return faults


if __name__ == "__main__":
    if sys.argv[1:2] == ["--piece"]:
        # Compile the engine first, so that no input's time contains the compilation.
        run_scenario(Scenario.parse({"guest": {"memory_per_vcpu": "2M"}}))
        with contextlib.redirect_stderr(io.StringIO()):
            piece_faults = try_inputs(int(sys.argv[2]) * PIECE, PIECE)
        print(json.dumps([[fault.number, fault.target, fault.text] for fault in piece_faults]))
    else:
        sys.exit(min(1, main(*(kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)))))
