# SPDX-License-Identifier: BSD-3-Clause
"""Options in groups: a command line sees fields, a command sees dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.ui.cli import app, questions
from simlib.ui.cli.questions import Processes, grouped


@dataclass(frozen=True)
class Clock:
    hertz: Annotated[int, typer.Option(min=1, help="Ticks per second.")] = 100


@dataclass(frozen=True, kw_only=True)
class Guest:
    path: Annotated[str, typer.Argument(metavar="PATH")]
    vcpus: Annotated[int, typer.Option("--cpus", help="How many.")]
    tags: Annotated[list[str] | None, typer.Option()] = None
    clock: Clock

    def __post_init__(self) -> None:
        if self.vcpus > 8:
            raise InputError("--cpus", str(self.vcpus), "must be at most 8", "give fewer")


ran: list[object] = []
small = typer.Typer(add_completion=False)


@small.command()
@grouped
def show(*, early: bool = False, guest: Guest, seed: int = 1) -> None:
    """What show is for."""
    ran.append((early, guest, seed))


def given(*words: str):
    """What the command got, or how it ended."""
    ran.clear()
    done = CliRunner().invoke(small, words)
    return ran[0] if ran else done


def test_groups_are_built_of_what_is_given():
    clock = Clock()
    assert given("a.toml", "--cpus", "4") == (False, Guest(path="a.toml", vcpus=4, clock=clock), 1)
    whole = Guest(path="b.toml", vcpus=8, tags=["x", "y"], clock=Clock(hertz=7))
    words = ["--hertz", "7", "--tags", "x", "b.toml", "--seed", "3", "--tags", "y", "--early", "--cpus", "8"]
    assert given(*words) == (True, whole, 3)


def test_fields_stand_where_their_group_stood():
    command = get_command(small)
    assert [one.name for one in command.params] == ["early", "path", "vcpus", "tags", "hertz", "seed"]
    assert command.help == "What show is for."
    assert "Ticks per second." in CliRunner().invoke(small, ["--help"]).output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["a.toml"], "Missing option '--cpus'"), (["--cpus", "4"], "Missing argument 'PATH'"),
     (["a.toml", "--cpus", "4", "--hertz", "0"], "Invalid value for '--hertz'")],
)  # fmt: skip
def test_faults_name_the_field_as_the_command_line_does(words, sentence):
    done = given(*words)
    assert (done.exit_code, ran) == (2, [])
    assert sentence in done.output


def test_a_group_that_refuses_its_values_keeps_the_command_from_running():
    done = given("a.toml", "--cpus", "9")
    assert isinstance(done.exception, InputError)
    assert not ran


def test_two_groups_with_the_same_field_are_refused():
    def twice(guest: Guest, clock: Clock) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'hertz'"):
        grouped(twice)


def test_the_choices_take_the_same_options_in_the_same_order():
    commands = get_command(app).commands
    choose, batch = ([one.name for one in commands[name].params] for name in ("choose", "choose-batch"))
    assert " ".join(choose) == (
        "strategy kernel rings scenario architecture everything dirty_tracking guest from_ fit vcpus memory "
        "access_interval link chunk objective weight indifference confidence max_stall seed out workers cluster "
        "verbose plot how"
    )
    assert choose[3:] == batch


@pytest.mark.parametrize(("cpus", "workers"), [(1, None), (3, 3), (64, 16)])
def test_choices_have_a_process_a_cpu_unless_told_otherwise(cpus, workers, monkeypatch):
    monkeypatch.setattr(questions, "cpus", lambda: cpus)
    with Processes().in_use():
        assert getattr(parallel._thread.executor, "workers", None) == workers
    with Processes(workers=0).in_use():
        assert parallel._thread.executor is None
