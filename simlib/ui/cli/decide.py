# SPDX-License-Identifier: BSD-3-Clause
"""``simlib choose`` and ``simlib choose-batch``: which strategy for CLEAR, what it costs, and how sure that is."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import simlib
from simlib._lib.errors import InputError
from simlib._lib.files import write_together
from simlib._lib.parallel import subprogress
from simlib.model.quantities import format_seconds, format_size, parse_bandwidth, parse_duration, parse_size
from simlib.ui.cli.output import Format, into_folder, paragraph, progress_bar, read_file, say, show, write
from simlib.ui.cli.questions import FitOption, Output, Processes, grouped

if TYPE_CHECKING:
    import pandas as pd

    from simlib import BatchChoice, Choice, Scenario

Found = TypeVar("Found", "Choice", "BatchChoice")


@dataclass(frozen=True)
class Subject:
    """Whose migration is asked about."""

    scenario: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCENARIO.toml", help="A migration; docs/scenario.md lists the keys.", callback=read_file
        ),
    ] = None
    architecture: Annotated[
        str, typer.Option(metavar="NAME", help="Instead of a scenario: a real guest on this architecture.")
    ] = ""
    everything: Annotated[
        bool, typer.Option("--all", help="That guest on each of seven architectures: one table.")
    ] = False  # fmt: skip
    dirty_tracking: Annotated[
        str,
        typer.Option(metavar="NAME", help="How the host learns of writes: write_protect, pml, hdbss. On x86 by default "
                     "as that of a --from-qemu socket does, or the --fit's, measured without PML; else pml."),
    ] = ""  # fmt: skip
    guest: Annotated[
        str,
        typer.Option(metavar="NAME", help="Which guest: database (default), web, idle, write-heavy, mysql-1g, "
                     "mysql-8g, three-setups; docs/choose.md says what each stands for."),
    ] = ""  # fmt: skip
    from_qemu: Annotated[
        str,
        typer.Option(metavar="FILE|SOCKET|-", help="Take the guest's numbers from QEMU: pasted replies to "
                     "query-migrate, query-dirty-rate and query-cpus-fast, or a QMP socket.", callback=read_file),
    ] = ""  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """What is given of the guest instead of its own, as text."""

    vcpus: Annotated[int, typer.Option(min=0, help="Number of vCPUs instead of the guest's.")] = 0
    memory: Annotated[str, typer.Option(help="Memory in all, e.g. 512G.")] = ""
    write_interval: Annotated[
        str, typer.Option(help="A vCPU's own work between two pages that it accesses, e.g. 20us.")
    ] = ""
    link: Annotated[str, typer.Option(help="What can be sent, e.g. 25Gbit/s.")] = ""
    chunk: Annotated[str, typer.Option(help="Memory of one CLEAR ioctl, e.g. 1G, which is QEMU's.")] = ""

    def changes(self) -> dict[str, dict[str, Any]]:
        """The tables of a scenario file, once each was found to be well-formed."""
        changes: dict[str, dict[str, Any]] = {"guest": {"vcpus": self.vcpus} if self.vcpus else {}, "workload": {}}
        for table, key, text, parse, option in (
            ("guest", "memory", self.memory, parse_size, "--memory"),
            ("workload", "access_interval", self.write_interval, parse_duration, "--write-interval"),
            ("workload", "link", self.link, parse_bandwidth, "--link"),
            ("workload", "clear_chunk", self.chunk, parse_size, "--chunk"),
        ):
            if text:
                parse(text, option)
                changes[table][key] = text
        return changes


@dataclass(frozen=True)
class Criteria:
    """What counts, and how sure the answer is to be."""

    objective: Annotated[
        str,
        typer.Option(metavar="NAME", help="What leads the answer. cost: CPU time of CLEAR + weight x guest time lost; "
                     "guest_time_lost; stall; p999; above10, above50, above99; clear; precopy."),
    ] = "cost"  # fmt: skip
    weight: Annotated[float, typer.Option(help="CPU time in all: what a second of a vCPU is worth.")] = 1.0
    indifference: Annotated[float, typer.Option(help="Share of an objective that does not matter.")] = 0.02
    confidence: Annotated[float, typer.Option(help="Probability that all differences hold.")] = 0.95
    max_stall: Annotated[
        str, typer.Option(metavar="TIME", help="Leave out what stalls a vCPU for longer, e.g. 1ms.")
    ] = ""
    seed: Annotated[int, typer.Option(min=0, help="Root of all random streams.")] = 1

    def arguments(self) -> dict[str, Any]:
        """The same for `simlib.choose` and `simlib.choose_batch`."""
        stall = parse_duration(self.max_stall, "--max-stall") * 1e-12 if self.max_stall else None
        return {
            "objective": self.objective,
            "weight": self.weight,
            "zone": self.indifference,
            "confidence": self.confidence,
            "seed": self.seed,
            "max_stall_s": stall,
        }


OutOption = Annotated[Path | None, into_folder("FOLDER", "Write everything as JSON, and its tables as CSV files.")]


@dataclass(frozen=True, kw_only=True)
class ChoiceOutput:
    """What both commands are asked, and where the answer goes."""

    subject: Subject
    fit: FitOption = None
    numbers: Numbers
    criteria: Criteria
    out: OutOption = None
    elsewhere: Processes
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all that was found.")] = False
    output: Output

    def answers(self, command: str, choose_one: Callable[..., Found]) -> dict[str, Found]:
        """The choices by architecture, one after another, with progress and what to know of each on stderr."""
        choices = {}
        with self.elsewhere.in_use():  # its processes import while the question is read
            cases = _cases(command, self.subject, self.numbers, self.fit)
            with progress_bar() as progress:
                for done, (name, case) in enumerate(cases.items()):
                    label = f"{name}: " if len(cases) > 1 else ""
                    choices[name] = choose_one(
                        case, fit=self.fit, announce=None if done else _labelled(say, label),
                        progress=_labelled(subprogress(progress, done / len(cases), (done + 1) / len(cases)), label),
                        **self.criteria.arguments(),
                    )  # fmt: skip
        for name, choice in choices.items():
            for flag in choice.flags:
                say(f"{name}: {flag}" if len(cases) > 1 else flag)
        return choices

    def give(
        self, name: str, choices: Mapping[str, Found], for_people: Callable[[Found, bool], None],
        joined: Callable[[Mapping[str, Found]], pd.DataFrame], readable: Callable[[Mapping[str, Found]], pd.DataFrame],
        title: str,
    ) -> None:  # fmt: skip
        """Write what ``--out`` and ``--plot`` ask for, and print the one choice, or one table of all architectures."""
        how, choice = self.output.how, next(iter(choices.values()))
        found = {key: one.to_dict() for key, one in choices.items()}
        whole: object = found if self.subject.everything else choice.to_dict()
        tables = {title: joined(choices)} if self.subject.everything else choice.files()
        if self.out is not None:
            files = {f"{key}.csv": frame.to_csv(index=False) for key, frame in tables.items()}
            write_together(self.out, {f"{name}.json": json.dumps(whole, indent=1) + "\n"} | files)
            say(f"written to {self.out}")
        self.output.write_page(choices)
        if self.subject.everything:
            show(readable(choices) if how is Format.TABLE else tables[title], how)
        elif how is Format.TABLE:
            for_people(choice, self.verbose)
        elif how is Format.CSV:
            show(choice.table, how)
        else:
            write(json.dumps(whole, indent=1) + "\n")


@grouped
def choose(
    *,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STRATEGY",
            help="Only these, each with an --strategy of its own: names that simlib policies "
            "lists, several joined by +, or texts such as 'held >= 50us'.",
        ),
    ] = None,
    kernel: Annotated[
        bool,
        typer.Option(
            "--kernel",
            help="Compare what only a patched kernel can do: letting go after a batch or a time, "
            "or if anyone waits, clearing with the lock held for read, splitting in other ways.",
        ),
    ] = False,
    rings: Annotated[
        bool,
        typer.Option(
            "--rings",
            help="Compare dirty rings of three sizes (QEMU's dirty-ring-size) and the bitmap, with "
            "write protection and where the hardware logs, beside what --strategy names.",
        ),
    ] = False,
    question: ChoiceOutput,
) -> None:
    """Choose how CLEAR_DIRTY_LOG should hold mmu_lock, and see what each way costs.

    Compared is what can be set today: how much memory one CLEAR covers (QEMU's x-clear-bitmap-shift), and x86's eager
    splitting; with --kernel what a patched kernel could do. All are migrations of the same guest, simulated with costs
    drawn anew each time from what is known of them. One run answers all objectives: guest time lost, longest stall,
    99.9th percentile, time degraded above 10, 50 and 99 %, CPU time of CLEAR, pre-copy. Large guests are sampled
    (docs/sampling.md).

    Then: what stalls may cost, and which cost would change the answer if it were known. docs/choose.md tells the rest.

    Examples: simlib choose --architecture arm64

    simlib choose --architecture x86-tdp --guest mysql-8g

    simlib choose mine.toml --strategy whole-ioctl --strategy every-64 --strategy "held >= 50us" --max-stall 1ms

    simlib choose --architecture arm64 --memory 256G --kernel

    simlib choose --architecture x86-tdp --rings

    simlib choose --from-qemu /run/qemu/qmp.sock

    simlib choose --fit host/fit.json
    """

    def choose_one(case: Scenario, **arguments: Any) -> Choice:
        more = [
            *(simlib.analysis.choose.patched_kernel_strategies(case) if kernel else ()),
            *(simlib.analysis.choose.tracking_strategies(case) if rings else ()),
        ]
        names = list(dict.fromkeys([*(strategy or []), *more]))
        return simlib.choose(case, strategies=names or None, **arguments)

    choices = question.answers("choose", choose_one)
    question.give("choose", choices, _print, simlib.analysis.choose.comparison, _by_architecture, "answers")
    if question.subject.everything:
        say("in brackets: the longest stall; --format csv has all objectives")


@grouped
def choose_batch(
    *,
    question: ChoiceOutput,
) -> None:
    """Choose how many pages CLEAR_DIRTY_LOG should write-protect in one hold of mmu_lock.

    The same as simlib choose, but only among 64, 128, 256, ... pages and the whole ioctl, and for one objective. Then
    three simple rules (whole ioctl, every 64 pages, one huge page) are priced, and what the closed form says.

    Where no cost was calibrated, the result says that it rests on facts alone. docs/choose-batch.md tells the rest.

    Examples: simlib choose-batch --architecture arm64

    simlib choose-batch mine.toml --fit build/mine-fit.json --max-stall 100us --out build/choice

    simlib choose-batch --all
    """

    def choose_one(case: Scenario, **arguments: Any) -> BatchChoice:
        return simlib.choose_batch(case, **arguments)  # imported here, while the processes import, too

    choices = question.answers("choose-batch", choose_one)
    joined = simlib.analysis.choose.comparison_of_batches
    question.give("choose-batch", choices, _print_batch, joined, _readable_batches, "architectures")


def _labelled(tell: Any, label: str) -> Callable[..., None]:
    """What tells of a choice, by its name if there are several."""
    return lambda what, *share: tell(f"{label}{what}", *share)


def _cases(command: str, subject: Subject, numbers: Numbers, fit: Path | None) -> dict[str, Scenario]:
    decision, changes = simlib.analysis.choose, numbers.changes()
    scenario, architecture, everything = subject.scenario, subject.architecture, subject.everything
    running = None
    if subject.from_qemu:
        running = _running(subject.from_qemu, numbers)
        architecture = architecture or ("" if scenario is not None or everything else running.architecture or "")
    host = None
    if fit is not None and scenario is None and not architecture and not everything:
        host = simlib.load_fit(fit).scenario
        architecture = host.policy.architecture
    if (scenario is not None) + bool(architecture) + everything != 1:
        given = " ".join([*([str(scenario)] if scenario else []), *(["--architecture"] if architecture else []),
                          *(["--all"] if everything else [])])  # fmt: skip
        raise InputError(command, given or "nothing", "give one of SCENARIO.toml, --architecture NAME, --all",
                         "such as --architecture x86-tdp, or a --fit, which knows its own")  # fmt: skip
    if scenario is not None:
        if subject.guest:
            raise InputError(
                "--guest", subject.guest, "a scenario has its own guest", "give --architecture instead of a file"
            )
        cases = {"": simlib.load_scenario(scenario)}
    else:
        named = decision.named_guest(subject.guest or decision.DEFAULT_GUEST)
        if running is None:
            say(f"guest {named.name}: {named.title}")
        names = decision.preset_architectures() if everything else (architecture,)
        cases = {name: named.in_place_of(decision.preset_scenario(name)) for name in names}
        if host is not None:
            cases = {name: _on_host(case, host, numbers, subject.from_qemu) for name, case in cases.items()}
    cases = {name: _tracking(case, subject, host) for name, case in cases.items()}
    if running is not None:
        from simlib.vmm.running_guest import apply

        for note in running.notes:
            say(note)
        cases = {name: apply(running, case) for name, case in cases.items()}
        changes = {"guest": {}, "workload": {k: v for k, v in changes["workload"].items() if k != "link"}}
    return {name: decision.with_guest(case, changes) for name, case in cases.items()}


def _tracking(case: Scenario, subject: Subject, host: Scenario | None) -> Scenario:
    """The scenario with the way in which the host learns of writes; a scenario of the user's says its own."""
    way = subject.dirty_tracking
    if not way and subject.scenario is None and "pml" in case.policy.facts.dirty_tracking:
        if subject.from_qemu and stat.S_ISSOCK(os.stat(subject.from_qemu).st_mode):
            from simlib.lab.host.facts import tracking_here

            way = tracking_here()
        if not way and host is not None:
            way = host.policy.resolved().dirty_tracking
            if way == "write_protect":  # a host is measured without PML, whatever it has
                say("the fit's host was measured without PML; if it logs by PML, add --dirty-tracking pml")
    return case.changed({"policy": {"dirty_tracking": way}}) if way else case


def _on_host(case: Scenario, host: Scenario, numbers: Numbers, from_qemu: str) -> Scenario:
    """The guest on the host that was calibrated: of its size, unless a size is given."""
    case = replace(case, host=host.host)
    cpus, vcpus = host.host.cores * host.host.threads_per_core, case.guest.vcpus
    if numbers.vcpus or from_qemu or vcpus <= cpus:
        return case
    memory = case.guest.pages_per_vcpu * case.guest.page_size * cpus
    say(f"as many vCPUs as {host.host.name} has CPUs, {cpus}, and a memory of {format_size(memory)} to match")
    return simlib.analysis.choose.with_guest(
        case, {"guest": {"vcpus": cpus, "memory": numbers.memory or format_size(memory)}}
    )


def _running(source: str, numbers: Numbers) -> Any:
    """The guest that QEMU runs, with what was given instead."""
    from simlib.vmm.running_guest import read_guest

    running = read_guest(source)
    given: dict[str, Any] = {"vcpus": numbers.vcpus} if numbers.vcpus else {}
    if numbers.memory:
        given["memory_bytes"] = parse_size(numbers.memory, "--memory")
    if numbers.link:
        given["link_bits"] = parse_bandwidth(numbers.link, "--link")
    return replace(running, **given)


def _advise(choice: Choice, objective: str) -> None:
    """What to do, how, how sure that is, and why."""
    for label, text in choice.advice(objective).items():
        write(paragraph(f"{label}: {text}." if label else f"{text}.") + "\n")
    write("\n")


def _print(choice: Choice, verbose: bool) -> None:
    """A choice for people to read: what to do first, and no more than decides unless all is asked for."""
    _advise(choice, choice.objective)
    show(choice.readable("" if verbose else choice.objective), Format.TABLE)
    write("\n")
    for note in choice.notes:
        write(paragraph(f"{note}.") + "\n")
    if not verbose:
        return
    runs = f"{choice.runs[0]} + {choice.runs[1]} replications, {choice.how}"
    write("\n" + paragraph(f"{choice.guarantee}; {runs}") + "\n\n")
    show(choice.readable_answers(), Format.TABLE)
    write("\nlongest stall that may be, and what keeping to it costs\n\n")
    show(choice.readable_budgets(), Format.TABLE)
    known = choice.readable_information()
    if not known.empty:
        write("\nwhat would change the answer, and what it would save on average over all that the cost may be\n\n")
        show(known, Format.TABLE)


_MAIN = ("guest_time_lost", "stall", "clear", "cost")
"""Objectives for which a terminal has room; a file has all."""


def _by_architecture(choices: Mapping[str, Choice]) -> pd.DataFrame:
    """One row an architecture: what to take for the main objectives, and its longest stall."""
    import pandas as pd

    rows = []
    for name, choice in choices.items():
        stalls = choice.table.set_index("strategy")["stall_s"]
        row = {"architecture": name}
        answers = choice.answers.set_index("objective", drop=False)
        for answer in answers.loc[list(_MAIN)].to_dict("records"):
            title = simlib.analysis.choose.OBJECTIVES[answer["objective"]].title
            stall = format_seconds(float(stalls[answer["take"]]), 2)
            row[title] = "any" if answer["any_is_as_good"] else f"{answer['take']} ({stall})"
        rows.append(row | {"knee": choice.knee, "evidence": choice.evidence_shown})
    return pd.DataFrame(rows)


def _print_batch(choice: BatchChoice, verbose: bool) -> None:
    _advise(choice.choice, choice.objective)
    table, rules = choice.readable(), choice.readable_regrets()
    few = ["pages a hold", choice.objective, "worse by", "as good", "longest stall", "stall, 90 %", "CLEAR"]
    show(table if verbose else table[few], Format.TABLE)
    shares = ", ".join(f"{rule} {share[:-1]} %" for rule, share in zip(rules["rule"], rules["share"], strict=True))
    write("\n")
    for text in (choice.sentence, f"simple rules, worse by: {shares}", choice.law):
        write(paragraph(f"{text[0].upper()}{text[1:]}.") + "\n")
    if verbose:
        write(f"\n{paragraph(choice.choice.guarantee)}\n\n")
        show(rules, Format.TABLE)


def _readable_batches(choices: Mapping[str, BatchChoice]) -> pd.DataFrame:
    import pandas as pd

    frame = simlib.analysis.choose.comparison_of_batches(choices)

    def part(column: str) -> list[str]:
        return [_pages(pages % chunk) for pages, chunk in zip(frame[column], frame["chunk_pages"], strict=True)]

    def with_stall(column: str, stall: str) -> list[str]:
        return [
            f"{pages} ({format_seconds(value, 2)})" for pages, value in zip(part(column), frame[stall], strict=True)
        ]

    rules = {
        rule: frame[f"regret_{key}_share"].map("{:+.1%}".format) for key, rule in simlib.analysis.choose.RULES.items()
    }
    return pd.DataFrame(
        {"architecture": frame["architecture"], "recommended": frame["recommended_pages"].map(_pages),
         "as good from (stall)": with_stall("as_good_from", "stall_from_s"),
         "to (stall)": with_stall("as_good_to", "stall_to_s"),
         "matters": frame["matters"].map({True: "yes", False: "no"}), **rules,
         "closed form": part("closed_form_pages"),
         "evidence": [choice.choice.evidence_shown for choice in choices.values()],
         "certain": frame["certain"].map({True: "yes", False: "no"})}
    )  # fmt: skip


def _pages(batch: int) -> str:
    return str(batch) if batch else "whole"
