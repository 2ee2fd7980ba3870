# SPDX-License-Identifier: BSD-3-Clause
"""What the explorer asks survives an address and a file, and nonsense is refused in the scenario's words."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as some

from simlib._lib.errors import InputError
from simlib.analysis.choose import guests
from simlib.ui.explorer.controls import KEYS, NAMED, architectures
from simlib.ui.explorer.state import MAX_PINS, ExplorerState

STRATEGIES = (*NAMED, "baseline", "pages >= 512 and waiters >= 1", "held >= 50us", "every-64+read-lock-clear")

LOCKS = some.fixed_dictionaries(
    {},
    optional={
        "lock": some.sampled_from(["spin", "rwlock", "ticket", "cohort"]),
        "write_protect_fault": some.sampled_from(["lockless", "read", "write"]),
        "eager_split": some.booleans(),
    },
)


@some.composite
def states(draw):
    """Any state that the controls can make."""
    strategy = some.sampled_from(STRATEGIES)
    start = ExplorerState.of(
        draw(some.sampled_from([name for _, name in architectures()])), draw(some.sampled_from(["", *guests()]))
    )
    changes = {
        "guest": {"vcpus": draw(some.integers(1, 1023))},
        "workload": {
            "clear_chunk": draw(some.sampled_from(["256M", "1G", "8G"])),
            "access_interval": draw(some.sampled_from(["130ns", "20us", "10ms"])),
        },
        "policy": draw(LOCKS),
        "host": {"cores": draw(some.sampled_from([64, 96, 192]))},
        "costs": draw(some.fixed_dictionaries({}, optional={"fault_hold": some.sampled_from(["500ns", "2us"])})),
    }
    pins = draw(some.lists(strategy, max_size=MAX_PINS, unique=True))
    return start.changed(changes, strategy=draw(strategy), pins=pins)


@given(states())
def test_an_address_and_a_file_say_the_same_again(state):
    assert ExplorerState.from_query(state.query) == state
    loaded = ExplorerState.from_toml(state.to_toml())
    assert loaded.case() == state.case()
    assert ExplorerState.from_query(loaded.query).case() == state.case()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("guest.vcpus=5000", "guest.vcpus = 5000: must be"),
        ("guest.vcpu=8", "did you mean 'vcpus'"),
        ("architectur=arm64", "did you mean 'architecture'"),
        ("architecture=s390x", "unknown architecture"),
        ("strategy=evry-64", "unknown policy"),
        ("strategy=get-clears", "must be a strategy with which the migration calls CLEAR"),
        ("pin=every-64&pin=every-128&pin=every-192&pin=every-256&pin=every-320", "must be at most 4"),
        ("workload.kind=zap", "must be one migration"),
        ("workload.access_interval=soon", "workload.access_interval = soon"),
        ("costs.fault_hold=nan", "costs.fault_hold"),
    ],
)
def test_nonsense_in_an_address_is_refused(query, words):
    with pytest.raises(InputError, match=words):
        ExplorerState.from_query(query)


def test_the_server_s_own_parameters_are_not_asked_about():
    assert (
        ExplorerState.from_query(urlencode({"token": "secret", "guest.vcpus": 8})).query
        == "architecture=arm64&guest.vcpus=8"
    )


def test_every_control_is_a_key_that_a_file_has():
    state = ExplorerState.of("x86-tdp")
    for key in (key for keys in KEYS.values() for key in keys):
        assert hasattr(getattr(state.scenario, key.table), key.name), key
