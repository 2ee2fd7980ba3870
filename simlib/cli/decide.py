# SPDX-License-Identifier: BSD-3-Clause
"""``simlib choose-batch``: which batch for CLEAR, and how sure that is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import simlib
from simlib.cli.output import Format, FormatOption, progress_bar, say, show
from simlib.errors import InputError
from simlib.files import write_together
from simlib.model.quantities import format_seconds, parse_bandwidth, parse_duration, parse_size

if TYPE_CHECKING:
    import pandas as pd

    from simlib import BatchChoice, Scenario

Progress = Callable[[str, float], None]


class Objective(StrEnum):
    """What is to be least."""

    COST = "cost"
    STALL = "stall"
    CLEAR = "clear"
    PRECOPY = "precopy"


def choose_batch(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO.toml", help="A migration; docs/scenario.md lists the keys.")
    ] = None,
    architecture: Annotated[
        str, typer.Option(metavar="NAME", help="Instead of a scenario: the standard guest on this architecture.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="The standard guest on each: one table.")] = False,
    fit: Annotated[
        Path | None,
        typer.Option(metavar="FIT.json", help="Calibrated costs. Default: the shipped fit for the machine, if any."),
    ] = None,
    vcpus: Annotated[int, typer.Option(min=0, help="Number of vCPUs instead of the scenario's.")] = 0,
    memory: Annotated[str, typer.Option(help="Memory in all, e.g. 1G; time grows with it.")] = "",
    write_interval: Annotated[str, typer.Option(help="A vCPU's own work between two accesses, e.g. 1us.")] = "",
    link: Annotated[str, typer.Option(help="What can be sent, e.g. 25Gbit/s.")] = "",
    chunk: Annotated[str, typer.Option(help="Memory of one CLEAR ioctl, e.g. 1G.")] = "",
    objective: Annotated[
        Objective,
        typer.Option(help="cost: CPU time of CLEAR + weight x what the vCPUs lose; stall: the longest of a vCPU; "
                     "clear: CPU time of CLEAR; precopy: how long it lasts."),
    ] = Objective.COST,
    weight: Annotated[float, typer.Option(help="cost: what a second of a vCPU is worth.")] = 1.0,
    zone: Annotated[float, typer.Option(help="Share of the best objective that does not matter.")] = 0.02,
    confidence: Annotated[float, typer.Option(help="Probability of a correct selection.")] = 0.95,
    max_stall: Annotated[
        str, typer.Option(metavar="TIME", help="Leave out batches that stall a vCPU for longer, e.g. 1ms.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Root of all random streams.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write choose-batch.json and its tables as CSV files.")
    ] = None,
    how: FormatOption = Format.TABLE,
) -> None:  # fmt: skip
    """Choose how many pages CLEAR_DIRTY_LOG should write-protect in one hold of mmu_lock.

    Compared are 64, 128, 256, ... pages and the whole ioctl: migrations of the same guest, simulated with costs drawn
    anew each time from what is known of them. If one batch is better than all others by the indifference zone, it is
    found with the stated probability (Kim and Nelson's procedure); batches that differ by less are said to be as good.
    Then three simple rules (whole ioctl, every 64 pages, one huge page) are priced on fresh replications.

    Where no cost was calibrated, the result says that it rests on facts alone. docs/choose-batch.md tells the rest.

    Examples: simlib choose-batch --architecture arm64

    simlib choose-batch mine.toml --fit build/mine-fit.json --max-stall 100us --out build/choice

    simlib choose-batch --all
    """
    if (scenario is not None) + bool(architecture) + everything != 1:
        given = " ".join([*([str(scenario)] if scenario else []), *(["--architecture"] if architecture else []),
                          *(["--all"] if everything else [])])  # fmt: skip
        raise InputError("choose-batch", given or "nothing", "give one of SCENARIO.toml, --architecture NAME, --all")
    changes = _changes(memory, write_interval, link, chunk)
    if scenario is not None:
        changes["guest"] |= {"vcpus": vcpus} if vcpus else {}
        cases = {"": simlib.load_scenario(scenario).changed(changes)}
    else:
        names = simlib.decision.standard_architectures() if everything else (architecture,)
        cases = {name: simlib.decision.standard_scenario(name, vcpus or None).changed(changes) for name in names}
    options: dict[str, Any] = {
        "fit": fit, "objective": objective.value, "weight": weight,
        "zone": zone, "confidence": confidence, "seed": seed,
        "max_stall_s": parse_duration(max_stall, "--max-stall") * 1e-12 if max_stall else None,
    }  # fmt: skip
    choices = _choose(cases, options)
    if out is not None:
        write_together(out, _files(choices))
        say(f"written to {out}")
    if everything:
        frame = simlib.decision.comparison(choices)
        show(_readable_comparison(frame) if how is Format.TABLE else frame, how)
        return
    (choice,) = choices.values()
    if how is Format.TABLE:
        _print(choice)
    elif how is Format.CSV:
        show(choice.table, how)
    else:
        sys.stdout.write(json.dumps(choice.to_dict(), indent=1) + "\n")


def _changes(memory: str, write_interval: str, link: str, chunk: str) -> dict[str, dict[str, Any]]:
    """Options as the tables of a scenario file, once each was found to be well-formed."""
    changes: dict[str, dict[str, Any]] = {"guest": {}, "workload": {}}
    for table, key, text, parse, option in (
        ("guest", "memory", memory, parse_size, "--memory"),
        ("workload", "access_interval", write_interval, parse_duration, "--write-interval"),
        ("workload", "link", link, parse_bandwidth, "--link"),
        ("workload", "clear_chunk", chunk, parse_size, "--chunk"),
    ):
        if text:
            parse(text, option)
            changes[table][key] = text
    return changes


def _choose(cases: Mapping[str, Scenario], options: Mapping[str, Any]) -> dict[str, BatchChoice]:
    """The choices, one after another, with progress and what to know of each on stderr."""
    choices = {}
    with progress_bar() as progress:
        for done, (name, case) in enumerate(cases.items()):
            label = f"{name}, " if len(cases) > 1 else ""
            part = partial(_report, progress, label, done, len(cases))
            choices[name] = simlib.choose_batch(case, **options, progress=part)
    for name, choice in choices.items():
        for flag in choice.flags:
            say(f"{name}: {flag}" if len(cases) > 1 else flag)
    return choices


def _report(progress: Progress, label: str, done: int, cases: int, what: str, share: float) -> None:
    """Progress of one choice among several."""
    progress(f"{label}{what}", (done + share) / cases)


def _files(choices: Mapping[str, BatchChoice]) -> dict[str, str]:
    """What ``--out`` writes, by the names of the files."""
    if len(choices) > 1:
        whole: object = {name: choice.to_dict() for name, choice in choices.items()}
        tables = {"architectures": simlib.decision.comparison(choices)}
    else:
        (choice,) = choices.values()
        whole = choice.to_dict()
        tables = {"alternatives": choice.table, "regrets": choice.regrets, "costs": choice.costs}
    files = {f"{name}.csv": frame.to_csv(index=False) for name, frame in tables.items()}
    return {"choose-batch.json": json.dumps(whole, indent=1) + "\n"} | files


def _print(choice: BatchChoice) -> None:
    """A choice for people to read."""
    import pandas as pd

    sys.stdout.write(f"{choice.sentence}\n{choice.law}\nevidence: {choice.evidence}\n\n")
    table = choice.table
    show(
        pd.DataFrame(
            {"pages a hold": [_pages(batch) for batch in table["batch_pages"]],
             choice.objective: table["objective_s"].map(format_seconds),
             "interval": _interval(table, "low_s", "high_s"),
             "worse by": table["difference_s"].map(format_seconds),
             "at least … at most": _interval(table, "difference_low_s", "difference_high_s"),
             "as good": ["yes" if good else "" if there else "too long" for good, there in
                         zip(table["as_good"], table["allowed"], strict=True)],
             "runs": table["replications"], "longest stall": table["longest_stall_s"].map(format_seconds),
             "p99.9": table["stall_p999_s"].map(format_seconds), "CLEAR": table["clear_cpu_time_s"].map(format_seconds),
             "pre-copy": table["precopy_duration_s"].map(format_seconds),
             "guest": table["guest_throughput"].map("{:.1%}".format),
             "front": table["on_front"].map({True: "yes", False: ""})}
        ),
        Format.TABLE,
    )  # fmt: skip
    sys.stdout.write("\n")
    rules = choice.regrets
    show(
        pd.DataFrame(
            {"rule": rules["rule"], "regret": rules["regret_s"].map(format_seconds),
             "at least … at most": _interval(rules, "low_s", "high_s"), "share": rules["share"].map("{:+.1%}".format)}
        ),
        Format.TABLE,
    )  # fmt: skip


def _readable_comparison(frame: pd.DataFrame) -> pd.DataFrame:
    """The table of all architectures, for people to read."""
    import pandas as pd

    def part(column: str) -> list[str]:
        return [_pages(pages % chunk) for pages, chunk in zip(frame[column], frame["chunk_pages"], strict=True)]

    rules = {rule: frame[f"{key}_share"].map("{:+.1%}".format) for key, rule in simlib.decision.RULES.items()}
    return pd.DataFrame(
        {"architecture": frame["architecture"], "recommended": frame["recommended_pages"].map(_pages),
         "as good from": part("as_good_from"), "to": part("as_good_to"),
         "matters": frame["matters"].map({True: "yes", False: "no"}), **rules,
         "closed form": part("closed_form_pages"), "evidence": frame["evidence"],
         "guarantee": frame["guarantee"].map({True: "yes", False: "no"})}
    )  # fmt: skip


def _pages(batch: int) -> str:
    return str(batch) if batch else "whole"


def _interval(frame: pd.DataFrame, low: str, high: str) -> pd.Series[str]:
    return frame[low].map(format_seconds) + " … " + frame[high].map(format_seconds)
