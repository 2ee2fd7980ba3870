# SPDX-License-Identifier: BSD-3-Clause
"""Errors: one sentence in Python, another on the command line where names differ, both through a pickle."""

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
    assert (type(again), str(again), again.on_command_line()) == (type(error), str(error), error.on_command_line())


def test_each_has_its_own_words():
    python, command = str(ERRORS[0]), ERRORS[0].on_command_line()
    assert python == "vcpus = 0: must be at least 1; write [16]"
    assert command == "--vcpus = 0: must be at least 1; write --vcpus 16"
    assert ERRORS[2].on_command_line() == "it would take a year; sample it (--pages)"
    assert ERRORS[1].on_command_line() == str(ERRORS[1])
