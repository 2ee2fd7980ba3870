# SPDX-License-Identifier: BSD-3-Clause
"""``simlib migrate``: does a migration converge, how long does it take, and what is to be set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import simlib
from simlib._lib.errors import InputError
from simlib._lib.files import write_together
from simlib.model.quantities import parse_bandwidth, parse_size
from simlib.ui.cli.output import Format, into_folder, paragraph, progress_bar, read_file, say, show, write
from simlib.ui.cli.questions import Output, grouped


class EmitFormat(StrEnum):
    """For what the settings are written."""

    QMP = "qmp"
    VIRSH = "virsh"
    KUBEVIRT = "kubevirt"
    CLOUD_HYPERVISOR = "cloud-hypervisor"


@dataclass(frozen=True)
class GuestOptions:
    """Whose migration is asked about."""

    from_qemu: Annotated[
        str,
        typer.Option(metavar="FILE|SOCKET|-", help="Take the guest's numbers from QEMU: its pasted replies "
                     "(docs/migrate.md says to which queries), or a QMP socket.", callback=read_file),
    ] = ""  # fmt: skip
    from_watch: Annotated[
        str,
        typer.Option(metavar="FILE", help="Take its rates of dirtying from the passes of a migration that simlib host "
                     "watch saw: its table watch.csv."),
    ] = ""  # fmt: skip
    vcpus: Annotated[int, typer.Option(min=0, help="Number of vCPUs.")] = 0
    memory: Annotated[str, typer.Option(help="Memory in all, e.g. 512G.")] = ""
    dirty: Annotated[
        list[str] | None,
        typer.Option(metavar="RATE", help="What the guest writes: '250000/s in 10s', distinct pages, measured; again "
                     "for other times, which narrows the answer. Or '200000/s over 40G, zipf': writes to a working "
                     "set."),
    ] = None  # fmt: skip
    link: Annotated[str, typer.Option(help="What the migration may send, e.g. 25Gbit/s.")] = ""
    architecture: Annotated[
        str, typer.Option(metavar="NAME", help="Of the host. Default: QEMU's target, else x86-tdp.")
    ] = ""
    dirty_tracking: Annotated[
        str, typer.Option(metavar="NAME", help="How its KVM learns of writes: write_protect, pml. Default on x86: pml.")
    ] = ""
    chunk: Annotated[str, typer.Option(help="Memory of one CLEAR: QEMU's x-clear-bitmap-shift. Default: 1G.")] = ""
    ring: Annotated[int, typer.Option(min=0, help="QEMU's dirty-ring-size; 0: the bitmap.")] = 0
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of QEMU's that stands, by its name, e.g. "
                     "downtime-limit=500, auto-converge=on. Others are as QEMU said, or its defaults; the bandwidth "
                     "is unlimited."),
    ] = None  # fmt: skip

    def guest(self, target: EmitFormat) -> simlib.analysis.migrate.MigratingGuest:
        """The guest; what its settings are written for tells which VMM it has."""
        from simlib.vmm.guest import MigratingGuest, from_running, from_watch
        from simlib.vmm.running_guest import read_guest
        from simlib.vmm.texts import parse_settings

        given: dict[str, Any] = {}
        if self.from_qemu:
            given = from_running(read_guest(self.from_qemu))
        if self.from_watch:
            seen = from_watch(self.from_watch)
            given |= seen | {"notes": (*given.get("notes", ()), *seen["notes"])}
        if self.vcpus:
            given["vcpus"] = self.vcpus
        if self.memory:
            given["memory"] = parse_size(self.memory, "--memory")
        if self.link:
            given["link"] = parse_bandwidth(self.link, "--link")
        if self.dirty:
            given["dirty"] = _by_hand(self.dirty, given.get("dirty", ()))
        for name, cure in (("vcpus", "--vcpus 64"), ("memory", "--memory 512G"), ("link", "--link 25Gbit/s"),
                           ("dirty", "--dirty '250000/s in 10s' (docs/migrate.md: how to measure it)")):  # fmt: skip
            if name not in given:
                rule = "QEMU did not say it" if self.from_qemu else "is needed"
                raise InputError(f"--{name}", "nothing", rule, f"give {cure}")
        if self.architecture:
            given["architecture"] = self.architecture
        given["dirty_tracking"] = self.dirty_tracking
        if self.chunk:
            given["chunk"] = parse_size(self.chunk, "--chunk")
        if target is EmitFormat.CLOUD_HYPERVISOR:
            given["vmm"] = "cloud-hypervisor"
        given["settings"] = parse_settings(self.setting or (), given.get("settings"))
        return MigratingGuest(**given, ring_entries=self.ring)


def _by_hand(texts: list[str], known: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is told of the guest's writes, beside what was measured over other times."""
    from simlib.vmm.dirtying import DirtyRate, parse_dirty

    told = tuple(parse_dirty(one) for one in texts)
    for text in texts:
        if text.strip().endswith("/s"):
            say(f"--dirty {text}: taken as counted over 1 s, as calc-dirty-rate does by default; else '{text} in 10s'")
    times = [one.seconds for one in told if isinstance(one, DirtyRate)]
    others = [one for one in known if one.seconds not in times] if len(times) == len(told) else []
    return (*others, *told)


@dataclass(frozen=True)
class Wished:
    """What is wished."""

    downtime: Annotated[str, typer.Option(help="For how long it may stand, e.g. 300ms.")] = ""
    within: Annotated[str, typer.Option(help="When it is to be over, e.g. 900s.")] = ""
    guest_keeps: Annotated[str, typer.Option(help="Share of its work that the guest still does, e.g. 80%.")] = ""
    max_stall: Annotated[str, typer.Option(help="Longest wait of a vCPU, the downtime aside, e.g. 50ms.")] = ""

    def wishes(self) -> simlib.analysis.migrate.Targets:
        """The wishes."""
        from simlib.vmm.texts import parse_wishes

        return parse_wishes(
            downtime=self.downtime, within=self.within, guest_keeps=self.guest_keeps, max_stall=self.max_stall
        )


@grouped
def migrate(
    *,
    who: GuestOptions,
    wished: Wished,
    target: Annotated[
        EmitFormat,
        typer.Option(
            "--for",
            help="For what the settings are written; cloud-hypervisor is another VMM than QEMU, with rules of its own.",
        ),
    ] = EmitFormat.VIRSH,
    kernel: Annotated[
        bool,
        typer.Option("--kernel", help="Say what a patched kernel could do about mmu_lock, too: half a minute more."),
    ] = False,
    draws: Annotated[int, typer.Option(min=1, help="Guests drawn from those that may have been measured.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Root of all random streams.")] = 1,
    out: Annotated[Path | None, into_folder("FOLDER", "Write everything as JSON, and its tables as CSV files.")] = None,
    output: Output,
) -> None:
    """Does my guest's migration converge, how long does it take, and what do I set?

    Migrates the guest as QEMU 10.0 would, with what stands, and with other settings from the least drastic on. The
    first that keeps to the wishes is recommended, as text that can be pasted. What the guest writes is rarely known
    well: several guests that fit what was measured are migrated, and intervals hold nine tenths of them.

    docs/migrate.md tells how to measure a guest, and what is behind the answer.

    Examples: simlib migrate --vcpus 64 --memory 512G --dirty '250000/s in 1s' --link 25Gbit/s --downtime 300ms

    simlib migrate --from-qemu guest.txt --link 10Gbit/s --within 15min --guest-keeps 80% --for kubevirt
    """
    guest, wishes = who.guest(target), wished.wishes()
    for note in guest.notes:
        say(note)
    with progress_bar() as progress:
        found = simlib.migrate(
            guest, wishes, draws=draws, seed=seed, kernel=kernel, target=str(target.value), progress=progress
        )
    if out is not None:
        files = {"plans.csv": found.frame.to_csv(index=False), "passes.csv": found.passes.to_csv(index=False)}
        write_together(out, {"migrate.json": json.dumps(found.to_dict(), indent=1) + "\n"} | files)
        say(f"written to {out}")
    output.write_page(found)
    if output.how is Format.JSON:
        write(json.dumps(found.to_dict(), indent=1) + "\n")
    elif output.how is Format.CSV:
        show(found.frame, output.how)
    else:
        for text in found.summary_lines():
            write(paragraph(f"{text}.") + "\n")
        if found.recommended.name != "as it is":
            write(f"\n{found.paste(target)}\n")
        write("\n")
        show(found.readable(), output.how)
