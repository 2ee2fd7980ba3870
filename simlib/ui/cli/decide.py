# SPDX-License-Identifier: BSD-3-Clause
"""``simlib choose`` and ``simlib choose-batch``: a strategy for CLEAR, its cost, and the confidence in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import simlib
from simlib._lib.errors import InputError
from simlib._lib.files import write_together
from simlib._lib.parallel import subprogress
from simlib.model.quantities import format_seconds, format_size, parse_bandwidth, parse_duration, parse_size
from simlib.ui.cli.output import Format, into_folder, paragraph, progress_bar, read_file, say, show, write
from simlib.ui.cli.questions import FitOption, Output, Processes, grouped

if TYPE_CHECKING:
    import pandas as pd

    from simlib import Choice, Scenario
    from simlib.vmm.guest import RunningGuest

    Choices = Mapping[str, Choice]
    Tabulate = Callable[[Choices], pd.DataFrame]
    Print = Callable[[Choice, bool], None]


@dataclass(frozen=True)
class Subject:
    """The migration: a scenario, or a preset guest on an architecture."""

    scenario: Annotated[
        Path | None,
        Argument(metavar="SCENARIO.toml", help="Scenario file of a migration (docs/scenario.md).", callback=read_file),
    ] = None
    architecture: Annotated[
        str, Option(metavar="NAME", help="Simulate a preset guest on this architecture, e.g. x86-tdp.")
    ] = ""
    everything: Annotated[bool, Option("--all", help="Simulate a preset guest on each of seven architectures.")] = False
    dirty_tracking: Annotated[
        str,
        Option(metavar="NAME", help="How KVM tracks dirty pages: write_protect, pml, dbm or hdbss. Default for "
               "a preset guest: write_protect; on x86 with EPT or NPT: pml, unless this machine's KVM (--from with "
               "a socket) or the host of --fit uses another method."),
    ] = ""  # fmt: skip
    guest: Annotated[
        str,
        Option(metavar="NAME", help="Preset guest: database (default), web, idle, write-heavy, mysql-1g, "
               "mysql-8g, three-setups; docs/choose.md describes each."),
    ] = ""  # fmt: skip
    from_: Annotated[
        str,
        Option("--from", metavar="FILE|SOCKET|-", help="Read the guest's size and dirty rate, and the bandwidth, from "
               "a QMP socket, or from a file with QEMU's replies or a migration log (docs/migrate.md; -: standard "
               "input).", callback=read_file),
    ] = ""  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """Values that replace those of the guest."""

    vcpus: Annotated[int, Option(min=0, help="Number of vCPUs. 0: the guest's; with --fit, at most one per CPU.")] = 0
    memory: Annotated[str, Option(help="Total memory of the guest, e.g. 512G.")] = ""
    access_interval: Annotated[str, Option(help="Time between successive accesses of a vCPU, e.g. 20us.")] = ""
    link: Annotated[str, Option(help="Bandwidth available to the migration, e.g. 25Gbit/s.")] = ""
    chunk: Annotated[str, Option(help="Memory that one CLEAR ioctl covers, e.g. 1G (QEMU's default).")] = ""

    def changes(self) -> dict[str, dict[str, Any]]:
        """Return the values as tables of a scenario file. Raises `InputError` if one is malformed."""
        changes: dict[str, dict[str, Any]] = {"guest": {"vcpus": self.vcpus} if self.vcpus else {}, "workload": {}}
        for table, key, text, parse, option in (
            ("guest", "memory", self.memory, parse_size, "--memory"),
            ("workload", "access_interval", self.access_interval, parse_duration, "--access-interval"),
            ("workload", "link", self.link, parse_bandwidth, "--link"),
            ("workload", "clear_chunk", self.chunk, parse_size, "--chunk"),
        ):
            if text:
                parse(text, option)
                changes[table][key] = text
        return changes


@dataclass(frozen=True)
class Criteria:
    """Objective, indifference zone and confidence level."""

    objective: Annotated[
        str,
        Option(metavar="NAME", help="Objective to minimise: cost (weighted cost), guest_time_lost, stall, p999, "
               "above10, above50, above99, clear or precopy; docs/choose.md defines each."),
    ] = "cost"  # fmt: skip
    weight: Annotated[float, Option(help="CPU seconds that weigh as much as a second of guest time lost.")] = 1.0
    indifference: Annotated[float, Option(help="Relative difference below which results count as equal.")] = 0.02
    confidence: Annotated[float, Option(help="Joint confidence level of all comparisons.")] = 0.95
    max_stall: Annotated[
        str,
        Option(metavar="TIME", help="Exclude strategies whose longest stall exceeds this time, e.g. 1ms, with a "
               "probability of more than 10 %."),
    ] = ""  # fmt: skip
    seed: Annotated[int, Option(min=0, help="Random seed; the same seed gives the same result.")] = 1

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `simlib.choose` and `simlib.choose_batch`."""
        stall = parse_duration(self.max_stall, "--max-stall") * 1e-12 if self.max_stall else None
        return {"objective": self.objective, "weight": self.weight, "indifference": self.indifference,
                "confidence": self.confidence, "seed": self.seed, "max_stall_s": stall}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ChoiceOutput:
    """Options of both commands, and the output of their choices."""

    subject: Subject
    fit: FitOption = None
    numbers: Numbers
    criteria: Criteria
    out: Annotated[Path | None, into_folder("FOLDER", "Also write the result as JSON, and its tables as CSV.")] = None
    processes: Processes
    verbose: Annotated[bool, Option("--verbose", "-v", help="Print all objectives and tables.")] = False
    output: Output

    def compute(self, command: str, function: Callable[..., Choice]) -> dict[str, Choice]:
        """Return the choices by architecture; progress and flags go to stderr."""
        choices = {}
        with self.processes.in_use():  # the processes import modules while the input is read
            cases = _cases(command, self.subject, self.numbers, self.fit)
            with progress_bar() as progress:
                for done, (name, case) in enumerate(cases.items()):
                    label = f"{name}: " if len(cases) > 1 else ""
                    choices[name] = function(
                        case, fit=self.fit, announce=None if done else _labelled(say, label),
                        progress=_labelled(subprogress(progress, done / len(cases), (done + 1) / len(cases)), label),
                        **self.criteria.arguments(),
                    )  # fmt: skip
        for name, choice in choices.items():
            for flag in choice.flags:
                say(f"{name}: {flag}" if len(cases) > 1 else flag)
        return choices

    def report(
        self, name: str, choices: Choices, title: str, joined: Tabulate, readable: Tabulate, printed: Print
    ) -> None:
        """Write the files of ``--out`` and ``--plot``, and print one choice, or one table of all architectures.

        - `title`: name of the table of all architectures; `joined` returns it, and `readable` formats it.
        - `printed`: print one choice; True: with all objectives and tables.
        """
        how, choice = self.output.how, next(iter(choices.values()))
        everything = self.subject.everything
        content: object = {key: value.to_dict() for key, value in choices.items()} if everything else choice.to_dict()
        tables = {title: joined(choices)} if everything else choice.files()
        if self.out is not None:
            files = {f"{key}.csv": frame.to_csv(index=False) for key, frame in tables.items()}
            write_together(self.out, {f"{name}.json": json.dumps(content, indent=1) + "\n"} | files)
            say(f"written to {self.out}")
        self.output.write_page(choices)
        if everything:
            show(readable(choices) if how is Format.TABLE else tables[title], how)
        elif how is Format.TABLE:
            printed(choice, self.verbose)
        elif how is Format.CSV:
            show(choice.table if choice.closed_form is None else choice.batches.table, how)
        else:
            write(json.dumps(content, indent=1) + "\n")


@grouped
def choose(
    *,
    strategy: Annotated[
        list[str] | None,
        Option(
            metavar="STRATEGY",
            help="Compare this strategy instead of the default ones; may be repeated. Name of a policy (listed by "
            "'simlib policies'), several names joined by +, or a condition such as 'held >= 50us'.",
        ),
    ] = None,
    kernel: Annotated[
        bool,
        Option(
            "--kernel",
            help="Compare strategies of patched kernels instead of the default ones: CLEAR drops the lock after a "
            "batch, after a time or on contention, or runs under the read lock; huge pages are split in other ways.",
        ),
    ] = False,
    rings: Annotated[
        bool,
        Option(
            "--rings",
            help="Compare dirty rings of 1024, 4096 and 65536 entries (QEMU's dirty-ring-size), and the dirty bitmap "
            "with each method of dirty tracking, instead of the default strategies.",
        ),
    ] = False,
    question: ChoiceOutput,
) -> None:
    """Choose how CLEAR_DIRTY_LOG should hold mmu_lock, and compare the costs of the strategies.

    By default, the strategies are settings of a stock kernel and of QEMU: the memory that one CLEAR covers (QEMU's
    x-clear-bitmap-shift), and eager splitting (x86). Each strategy is simulated in migrations of the same guest, with
    costs drawn from their distributions, and evaluated for all objectives. Migrations of large guests are sampled
    (docs/sampling.md). The answer also reports how much a limit on the longest stall would cost, and which of the
    model's costs are worth measuring. docs/choose.md explains the answer.

    Examples: simlib choose --architecture arm64

    simlib choose --architecture x86-tdp --guest mysql-8g

    simlib choose mine.toml --strategy whole-ioctl --strategy every-64 --strategy "held >= 50us" --max-stall 1ms

    simlib choose --architecture arm64 --memory 256G --kernel

    simlib choose --architecture x86-tdp --rings

    simlib choose --from /run/qemu/qmp.sock

    simlib choose --fit host/fit.json
    """

    def choose_for(case: Scenario, **arguments: Any) -> Choice:
        names = [
            *(strategy or []),
            *(simlib.analysis.choose.patched_kernel_strategies(case) if kernel else ()),
            *(simlib.analysis.choose.tracking_strategies(case) if rings else ()),
        ]
        return simlib.choose(case, strategies=list(dict.fromkeys(names)) or None, **arguments)

    choices = question.compute("choose", choose_for)
    question.report("choose", choices, "answers", simlib.analysis.choose.comparison, _by_architecture, _print)
    if question.subject.everything:
        say("the longest stall is in parentheses; --format csv prints all objectives")


@grouped
def choose_batch(*, question: ChoiceOutput) -> None:
    """Choose how many pages CLEAR_DIRTY_LOG should process in one hold of mmu_lock.

    Compares batches of 64, 128, 256, ... pages and the whole ioctl for one objective, by the method of 'simlib choose'.
    Also reports the batch that a closed form gives, and how much worse than the best batch three simple rules are: the
    whole ioctl, 64 pages, and one huge page. docs/choose-batch.md explains the answer.

    If the costs were neither calibrated nor given by the scenario, the evidence is stated as "facts alone".

    Examples: simlib choose-batch --architecture arm64

    simlib choose-batch mine.toml --fit build/mine-fit.json --max-stall 100us --out build/choice

    simlib choose-batch --all
    """

    def choose_for(case: Scenario, **arguments: Any) -> Choice:
        return simlib.choose_batch(case, **arguments)  # imported here, while the processes import modules, too

    choices = question.compute("choose-batch", choose_for)
    joined = simlib.analysis.choose.comparison_of_batches
    question.report("choose-batch", choices, "architectures", joined, _readable_batches, _print_batch)


def _labelled(report: Any, label: str) -> Callable[..., None]:
    """Return a callback that prefixes its text with the name of the choice."""
    return lambda text, *share: report(f"{label}{text}", *share)


def _cases(command: str, subject: Subject, numbers: Numbers, fit: Path | None) -> dict[str, Scenario]:
    """Return the scenarios by architecture. Raises `InputError` unless exactly one subject is given."""
    presets, changes = simlib.analysis.choose, numbers.changes()
    scenario, architecture, everything = subject.scenario, subject.architecture, subject.everything
    running = None
    if subject.from_:
        running = _running(subject.from_, numbers)
        architecture = architecture or ("" if scenario is not None or everything else running.architecture or "")
    host = None
    if fit is not None and scenario is None and not architecture and not everything:
        host = simlib.load_fit(fit).scenario
        architecture = host.policy.architecture
    if (scenario is not None) + bool(architecture) + everything != 1:
        given = [str(scenario or ""), "--architecture" * bool(architecture), "--all" * everything]
        rule = "must be one of SCENARIO.toml, --architecture NAME and --all"
        hint = "give --architecture x86-tdp, or a --fit, which names an architecture"
        raise InputError(command, " ".join(filter(None, given)) or "nothing", rule, hint)
    if scenario is not None:
        if subject.guest:
            rule, hint = "cannot replace the guest of a scenario file", "give --architecture instead of the file"
            raise InputError("--guest", subject.guest, rule, hint)
        cases = {"": simlib.load_scenario(scenario)}
    else:
        guest = presets.named_guest(subject.guest or presets.DEFAULT_GUEST)
        if running is None:
            say(f"guest {guest.name}: {guest.title}")
        names = presets.preset_architectures() if everything else (architecture,)
        cases = {name: guest.in_place_of(presets.preset_scenario(name)) for name in names}
        if host is not None:
            cases = {name: _on_host(case, host, numbers, subject.from_) for name, case in cases.items()}
    cases = {name: _tracking(case, subject, host) for name, case in cases.items()}
    if running is not None:
        from simlib.vmm.guest_scenario import apply

        for note in running.notes:
            say(note)
        cases = {name: apply(running, case) for name, case in cases.items()}
        changes = {"guest": {}, "workload": {k: v for k, v in changes["workload"].items() if k != "link"}}
    return {name: presets.with_guest(case, changes) for name, case in cases.items()}


def _tracking(case: Scenario, subject: Subject, host: Scenario | None) -> Scenario:
    """Return the scenario with the given method of dirty tracking or, without a file, this host's or the fit's."""
    method = subject.dirty_tracking
    if not method and subject.scenario is None and "pml" in case.policy.facts.dirty_tracking:
        if subject.from_ and Path(subject.from_).is_socket():
            from simlib.lab.host.facts import detect_dirty_tracking

            method = detect_dirty_tracking()
        if not method and host is not None:
            method = host.policy.resolved().dirty_tracking
            if method == "write_protect":  # measurements of a host disable PML
                say("the fit was made from measurements without PML; if your host uses PML, add --dirty-tracking pml")
    return case.changed({"policy": {"dirty_tracking": method}}) if method else case


def _on_host(case: Scenario, host: Scenario, numbers: Numbers, source: str) -> Scenario:
    """Return the guest on the calibrated host, with at most one vCPU per CPU unless a size is given."""
    case = replace(case, host=host.host)
    cpus, vcpus = host.host.cores * host.host.threads_per_core, case.guest.vcpus
    if numbers.vcpus or source or vcpus <= cpus:
        return case
    memory = numbers.memory or format_size(case.guest.pages_per_vcpu * case.guest.page_size * cpus)
    say(f"guest reduced to one vCPU per CPU of {host.host.name} (vCPUs: {cpus}, memory: {memory})")
    size = {"vcpus": cpus, "memory": memory}
    return simlib.analysis.choose.with_guest(case, {"guest": size})


def _running(source: str, numbers: Numbers) -> RunningGuest:
    """Return the guest that QEMU runs; options replace its numbers."""
    from simlib.vmm.read_guest import read_guest
    from simlib.vmm.read_inputs import read_options

    texts = {"vcpus": str(numbers.vcpus or ""), "memory": numbers.memory, "link": numbers.link}
    return read_options(texts, read_guest(source))


def _advise(choice: Choice) -> None:
    for label, text in choice.advice().items():
        write(paragraph(f"{label}: {text}." if label else f"{text}.") + "\n")
    write("\n")


def _print(choice: Choice, verbose: bool) -> None:
    """Print a choice: the recommendation and the main objectives; `verbose`: all objectives and tables."""
    _advise(choice)
    show(choice.readable("" if verbose else choice.objective), Format.TABLE)
    write("\n")
    for note in choice.notes:
        write(paragraph(f"{note}.") + "\n")
    if not verbose:
        return
    runs = f"{choice.runs[0]} + {choice.runs[1]} replications, {choice.how}"
    write("\n" + paragraph(f"{choice.guarantee}; {runs}") + "\n\n")
    show(choice.readable_answers(), Format.TABLE)
    write("\nlimits on the longest stall, and the cost of each\n\n")
    show(choice.readable_budgets(), Format.TABLE)
    known = choice.readable_information()
    if not known.empty:
        write("\ncosts worth measuring, and the mean saving from knowing each\n\n")
        show(known, Format.TABLE)


def _by_architecture(choices: Choices) -> pd.DataFrame:
    """Return one row per architecture: the recommendations for the main objectives, and their longest stalls."""
    import pandas as pd

    rows = []
    for name, choice in choices.items():
        stalls = choice.table.set_index("strategy")["stall_s"]
        row = {"architecture": name}
        answers = choice.answers.set_index("objective", drop=False)
        for answer in answers.loc[["guest_time_lost", "stall", "clear", "cost"]].to_dict("records"):  # files have all
            title = simlib.analysis.choose.OBJECTIVES[answer["objective"]].title
            stall = format_seconds(float(stalls[answer["recommended"]]), 2)
            row[title] = "any" if answer["all_equivalent"] else f"{answer['recommended']} ({stall})"
        rows.append(row | {"knee": choice.knee, "evidence": choice.evidence_label})
    return pd.DataFrame(rows)


def _print_batch(choice: Choice, verbose: bool) -> None:
    _advise(choice)
    batches = choice.batches
    table, rules = batches.readable(), batches.readable_regrets()
    main = ["batch", choice.objective, "worse by", "equivalent", "longest stall", "stall, 90 %", "CLEAR"]
    show(table if verbose else table[main], Format.TABLE)
    shares = ", ".join(f"{rule} {share}" for rule, share in zip(rules["rule"], rules["share"], strict=True))
    write("\n")
    for text in (batches.sentence, f"excess of the simple rules over the recommended batch: {shares}", batches.law):
        write(paragraph(f"{text[0].upper()}{text[1:]}.") + "\n")
    if verbose:
        write(f"\n{paragraph(choice.guarantee)}\n\n")
        show(rules, Format.TABLE)


def _readable_batches(choices: Choices) -> pd.DataFrame:
    """Return one row per architecture: the recommended batch, the equivalent range, and each rule's excess cost."""
    import pandas as pd

    frame = simlib.analysis.choose.comparison_of_batches(choices)

    def pages(column: str) -> list[str]:
        return [_pages(batch % chunk) for batch, chunk in zip(frame[column], frame["chunk_pages"], strict=True)]

    def with_stall(column: str, stall: str) -> list[str]:
        cells = zip(pages(column), frame[stall], strict=True)
        return [f"{batch} ({format_seconds(value, 2)})" for batch, value in cells]

    rules = {
        rule: frame[f"regret_{key}_share"].map(lambda share: f"{100 * share:+.1f} %")
        for key, rule in simlib.analysis.choose.RULES.items()
    }
    return pd.DataFrame(
        {"architecture": frame["architecture"], "recommended": frame["recommended_pages"].map(_pages),
         "equivalent from (stall)": with_stall("equivalent_from", "stall_from_s"),
         "to (stall)": with_stall("equivalent_to", "stall_to_s"),
         "matters": frame["matters"].map({True: "yes", False: "no"}), **rules,
         "closed form": pages("closed_form_pages"),
         "evidence": [choice.evidence_label for choice in choices.values()],
         "certain": frame["certain"].map({True: "yes", False: "no"})}
    )  # fmt: skip


def _pages(batch: int) -> str:
    return str(batch) if batch else "whole"
