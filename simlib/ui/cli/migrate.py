# SPDX-License-Identifier: BSD-3-Clause
"""``simlib migrate``: whether a migration converges, how long it takes, and which settings to use."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, make_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import simlib
from simlib._lib.files import write_together
from simlib.ui.cli.output import Format, into_folder, paragraph, progress_bar, read_file, say, show, write
from simlib.ui.cli.questions import Output, grouped
from simlib.vmm import inputs


class EmitFormat(StrEnum):
    """Format of the recommended settings."""

    QMP = "qmp"
    VIRSH = "virsh"
    KUBEVIRT = "kubevirt"
    PROXMOX = "proxmox"
    NOVA = "nova"
    CLOUD_HYPERVISOR = "cloud-hypervisor"


def _options(name: str, declared: tuple[inputs.MigrationInput, ...]) -> type:
    fields: list[tuple[str, Any, Any]] = []
    for item in declared:
        option = Option(item.option, metavar=item.metavar, help=item.help)
        kind, default = (list[str] | None, None) if item.repeated else (str, "")
        fields.append((item.name.replace("-", "_"), Annotated[kind, option], default))
    return make_dataclass(name, fields, frozen=True)


def _texts(options: object) -> dict[str, Any]:
    """Return the options of a group by the names of their inputs."""
    return {name.replace("_", "-"): text for name, text in vars(options).items()}


if TYPE_CHECKING:
    GuestOptions = Any
    TargetOptions = Any
else:
    GuestOptions, TargetOptions = _options("GuestOptions", inputs.GUEST), _options("TargetOptions", inputs.TARGETS)


@dataclass(frozen=True)
class SourceOptions:
    """Source of the guest's size, settings and dirty rates."""

    from_: Annotated[
        str,
        Option("--from", metavar="FILE|SOCKET|-", help="Read the guest's size, settings, dirty rates and migrations "
               "from a QMP socket, from a file with QEMU's replies or a log of QEMU's monitor, libvirt, Proxmox VE, "
               "Nova, KubeVirt or Cloud Hypervisor (docs/migrate.md; -: standard input), or from the table watch.csv "
               "of 'simlib host watch'.", callback=read_file),
    ] = ""  # fmt: skip
    measure: Annotated[
        bool,
        Option("--measure", help="First measure the guest of the QMP socket for 75 s: dirty rates over 0.3 to 60 s, "
               "CPU use and resident memory. This changes nothing in the guest; --out saves it as measurement.txt."),
    ] = False  # fmt: skip

    def read(self) -> tuple[simlib.analysis.migrate.RunningGuest, str]:
        """Return the guest as its source describes it, and the text of its measurement, empty if it is not measured."""
        from simlib.vmm.guest import RunningGuest
        from simlib.vmm.read_guest import parse_guest, read_guest

        if not self.measure:
            return read_guest(self.from_) if self.from_ else RunningGuest(), ""
        if not self.from_ or not Path(self.from_).is_socket():
            rule, hint = "must be a QMP socket to measure", "docs/migrate.md has libvirt's commands"
            raise simlib.InputError("--from", self.from_ or "nothing", rule, hint)
        from simlib.vmm.measure import measure

        with progress_bar() as progress:
            text = measure(self.from_, progress)
        return parse_guest(text, self.from_), text


@grouped
def migrate(
    *,
    sources: SourceOptions,
    described: GuestOptions,
    bounds: TargetOptions,
    emit: Annotated[
        EmitFormat | None,
        Option(
            "--emit",
            help="Format of the settings: virsh, qmp, kubevirt, proxmox or nova; settings that this tool cannot "
            "express are not tried. cloud-hypervisor is simulated instead of QEMU. By default, that of the tool whose "
            "log --from is, else virsh.",
        ),
    ] = None,
    kernel: Annotated[
        bool, Option("--kernel", help="Also simulate the effect of patched kernels; this takes another half minute.")
    ] = False,
    draws: Annotated[int, Option(min=1, help="Number of working sets to simulate.")] = 64,
    seed: Annotated[int, Option(min=0, help="Random seed; the same seed gives the same result.")] = 1,
    out: Annotated[Path | None, into_folder("FOLDER", "Also write the answer as JSON, and its tables as CSV.")] = None,
    output: Output,
) -> None:
    """Predict whether a guest's migration converges and how long it takes, and recommend settings.

    Simulates the migration as QEMU 10.0 performs it, with the current settings and then with increasingly intrusive
    ones. Recommends the first settings that meet the targets, and prints the commands that set them. A dirty rate does
    not show which pages a guest writes. simlib therefore simulates several working sets that are consistent with the
    measured dirty rates, and prints ranges that contain 90 % of the results. docs/migrate.md describes how to measure
    a guest, and explains the answer.

    If the log of --from ends while the migration runs, the answer is about this migration: how long it still takes, and
    commands that help now. Its times, and --deadline, then count from now.

    Examples: simlib migrate --vcpus 64 --memory 512G --dirty '250000/s in 1s' --link 25Gbit/s --downtime-limit 300ms

    simlib migrate --from qmp.sock --measure --link 10Gbit/s --deadline 15min --min-guest-speed 80% --emit kubevirt
    """
    from dataclasses import replace

    from simlib._lib.parallel import subprogress
    from simlib.analysis.migrate import MigrationOptions
    from simlib.analysis.migrate.answer import add_kernel, add_lock
    from simlib.analysis.migrate.sentences import lock_line
    from simlib.vmm.read_inputs import read_options, read_targets
    from simlib.vmm.settings import VMMS

    texts = _texts(described)
    for text in texts["dirty"] or ():
        if text.strip().endswith("/s"):
            say(f"--dirty {text}: the time is not known, which widens the ranges; add it, such as '{text} in 10s'")
    targets = read_targets(_texts(bounds))
    known, measured = sources.read()
    guest = read_options(texts, known)
    emit = emit or EmitFormat(guest.emit or "virsh")
    guest = replace(guest, vmm=emit.value if emit.value in VMMS else "qemu")
    for note in (*guest.notes, *(note for option, note in guest.missing.items() if not texts[option])):
        say(note)
    options = MigrationOptions(draws=draws, seed=seed, lock=False, emit=str(emit.value))
    with progress_bar() as progress:
        answer = simlib.migrate(guest, targets, options=options, progress=progress)
    if output.how is Format.TABLE:  # before the part about mmu_lock, which takes most of the time
        _print_answer(answer, emit)
    with progress_bar() as progress:
        answer = add_lock(answer, subprogress(progress, 0.0, 0.4 if kernel else 1.0))
        if kernel:
            answer = add_kernel(answer, subprogress(progress, 0.4, 1.0))
    if out is not None:
        files = {"plans.csv": answer.frame.to_csv(index=False), "passes.csv": answer.passes.to_csv(index=False)}
        files |= {"measurement.txt": measured} if measured else {}
        write_together(out, {"migrate.json": json.dumps(answer.to_dict(), indent=1) + "\n"} | files)
        say(f"written to {out}")
    output.write_page(answer)
    if output.how is Format.JSON:
        write(json.dumps(answer.to_dict(), indent=1) + "\n")
    elif output.how is Format.CSV:
        show(answer.frame, output.how)
    else:
        for text in filter(None, (lock_line(answer), answer.kernel)):
            write(f"\n{paragraph(f'{text}.')}\n")


def _print_answer(answer: simlib.analysis.migrate.Migration, emit: EmitFormat) -> None:
    """Print the verdict, the commands and the table of plans."""
    for text in answer.summary_lines():
        write(paragraph(f"{text}.") + "\n")
    if answer.recommended.name != "current":
        write(f"\n{answer.paste(emit)}\n")
    write("\n")
    show(answer.readable(), Format.TABLE)
    sys.stdout.flush()
