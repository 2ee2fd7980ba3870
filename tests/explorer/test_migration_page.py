# SPDX-License-Identifier: BSD-3-Clause
"""The second page: its address asks what simlib migrate is asked, and a wrong value is said beside its field."""

from __future__ import annotations

import json

import pytest

import simlib
from simlib.explorer.migration_page import MigrationControls, MigrationPage
from simlib.explorer.migration_state import DRAWS, MigrationState
from simlib.explorer.tabs import Tabs

SMALL = "page=migration&memory=8G&working-set=4G&writes=500000&link=10Gbit%2Fs&vcpus=4"


@pytest.fixture(scope="module")
def page():
    return MigrationPage(SMALL, background=False)


def test_the_page_shows_what_the_command_would_say(page):
    found = page.findings.parts["found"]
    state = page.state
    again = simlib.migrate(state.guest, state.wishes, draws=DRAWS, lock=False)
    assert found.take == again.take
    assert found.says() == again.says()
    drawn = json.loads(page.canvas.figures["migration_passes"])["data"]
    assert {trace["name"] for trace in drawn} == {"as it is", found.take.name}


def test_an_address_holds_the_whole_question(page):
    again = MigrationState.from_query(page.state.query)
    assert (again.guest, again.wishes) == (page.state.guest, page.state.wishes)
    assert (again.guest.vcpus, again.guest.memory) == (4, 8 * 2**30)


def test_a_wrong_value_is_said_beside_its_field_and_asks_nothing():
    told = []
    controls = MigrationControls(MigrationState(), told.append)
    controls.set("link", "0Gbit/s")
    assert "link" in controls.errors
    assert not told


def test_one_goes_from_page_to_page():
    tabs = Tabs(SMALL, background=False)
    assert isinstance(tabs.page, MigrationPage)
    assert len(tabs.buttons.options) == 2
