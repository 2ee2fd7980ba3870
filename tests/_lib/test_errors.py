# SPDX-License-Identifier: BSD-3-Clause
"""Errors: separate messages for Python and the command line where names differ; both survive a pickle."""

from __future__ import annotations

import pickle

import pytest

from simlib._lib.errors import HorizonError, InputError, SimlibError

ERRORS = [
    InputError("vcpus", 0, "must be at least 1", "write [16]", "write --vcpus 16", "--vcpus"),
    InputError("guest.vcpus", 0, "must be at least 1"),
    HorizonError("it would take a year", "sample it (pages_per_vcpu=…)", "sample it (--pages)"),
    SimlibError("the disk is full"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_survives_a_pickle(error):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # ours
    assert (type(again), str(again), again.cli_message()) == (type(error), str(error), error.cli_message())


def test_the_command_line_has_its_own_names_and_hints():
    python, command = str(ERRORS[0]), ERRORS[0].cli_message()
    assert python == "vcpus = 0: must be at least 1; write [16]"
    assert command == "--vcpus = 0: must be at least 1; write --vcpus 16"
    assert ERRORS[2].cli_message() == "it would take a year; sample it (--pages)"
    assert ERRORS[1].cli_message() == str(ERRORS[1])
