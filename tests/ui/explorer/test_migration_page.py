# SPDX-License-Identifier: BSD-3-Clause
"""The second page: its address asks what simlib migrate is asked, and a wrong value is said beside its field."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from urllib.parse import urlencode

import pytest
import traitlets
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from typer.testing import CliRunner

import simlib
from simlib._lib.errors import InputError
from simlib.analysis.migrate import MigrationOptions
from simlib.ui.cli import app
from simlib.ui.explorer import migration_page
from simlib.ui.explorer.migration_inputs import BY_NAME, CURRENT, PARTS
from simlib.ui.explorer.migration_page import MigrationControls, MigrationPage
from simlib.ui.explorer.migration_state import DRAWS, LOG_FILE, MigrationState
from simlib.ui.explorer.pasted_log import LOG_LIMIT, TOO_LONG, pack
from simlib.ui.explorer.state import ExplorerState
from simlib.ui.explorer.tabs import Tabs
from simlib.vmm import inputs
from simlib.vmm.paste import SETTABLE
from simlib.vmm.read_guest import parse_guest
from simlib.vmm.read_inputs import read_options
from simlib.vmm.settings import NAMES

LOG = """(qemu) info migrate
Migration status: active
total time: 20000 ms
transferred ram: 2400000 kbytes
throughput: 983.04 mbps
remaining ram: 6000000 kbytes
total ram: 8392704 kbytes
duplicate: 1000 pages
normal: 590000 pages
normal bytes: 2360000 kbytes
dirty sync count: 1
page size: 4 kbytes
(qemu) info dirty_rate
Status: measured
Period: 10 (sec)
Mode: dirty-bitmap
Dirty rate: 100 (MB/s)
"""
CPUS = '{"return": [{"cpu-index": 0, "target": "x86_64"}, {"cpu-index": 1, "target": "x86_64"}]}\n'

SMALL = "page=migration&memory=8G&working-set=4G&writes=500000&link=10Gbit%2Fs&vcpus=4"


@pytest.fixture(scope="module")
def page():
    return MigrationPage(SMALL, background=False)


def test_the_page_shows_what_the_command_would_say(page):
    found = page.findings.parts["answer"]
    state = page.state
    again = simlib.migrate(state.guest, state.targets, options=MigrationOptions(draws=DRAWS, lock=False))
    assert found.recommended == again.recommended
    assert found.summary_lines() == again.summary_lines()
    drawn = json.loads(page.canvas.figures["migration_passes"])["data"]
    assert {trace["name"] for trace in drawn} == {"current", found.recommended.name}


def test_an_address_holds_the_whole_question(page):
    again = MigrationState.from_query(page.state.query)
    assert (again.guest, again.targets) == (page.state.guest, page.state.targets)
    assert (again.guest.vcpus, again.guest.memory) == (4, 8 * 2**30)


def test_a_wrong_value_is_said_beside_its_field_and_asks_nothing():
    told = []
    controls = MigrationControls(MigrationState(), told.append)
    controls.set("link", "0Gbit/s")
    assert "link" in controls.errors
    assert not told


def command_words(state):
    """Pairs of words of the command, such as an option and its value."""
    words = shlex.split(state.command)
    return set(pairwise(words))


def test_every_input_of_the_command_has_a_control():
    """Set to another value, it is an option of the command; a slider offers only valid values."""
    controls = MigrationControls(MigrationState(), lambda _state: None)
    names = {item.name for item in (*inputs.GUEST, *inputs.TARGETS)}
    assert names - set(PARTS) <= set(BY_NAME)
    assert {f"{CURRENT}{name}" for name in NAMES} <= set(BY_NAME)
    assert set(PARTS) <= names
    shown = {name for name, (row, _) in controls._rows.items() if row is not None}
    assert shown == set(BY_NAME) | {"log"}
    for name in names - set(PARTS):
        key = BY_NAME[name]
        for text in (str(word) for word in (*key.steps, *key.words[-1:]) if word):
            state = MigrationState({"working-set": "128M", name: text})
            assert (f"--{name}", text) in command_words(state), name
    for key in PARTS["current"]:
        text = "on" if key.words else "1"
        words = command_words(MigrationState({key.name: text}))
        assert ("--current", f"{key.name.removeprefix(CURRENT)}={text}") in words


def test_a_pasted_log_gives_what_it_has_and_can_be_overridden():
    page = MigrationPage(SMALL, background=False)
    page.controls.set("log", LOG + CPUS)
    known = parse_guest(LOG + CPUS, "log")
    assert page.state.guest == known
    assert page.state.targets == MigrationState().targets
    assert page._log_notes.value.count("<li>") == len(known.notes) > 3
    assert page.controls._widgets["memory"].value == ""
    assert page.controls._widgets["memory"].placeholder == "8.004 GiB"
    again = simlib.migrate(known, page.state.targets, options=MigrationOptions(draws=DRAWS, lock=False))
    assert page.findings.parts["answer"].summary_lines() == again.summary_lines()
    page.change(vcpus="16", link="10Gbit/s", resident="4G")
    assert page.state.guest == read_options({"vcpus": "16", "link": "10Gbit/s", "resident": "4G"}, known)
    assert MigrationState.from_query(page.state.query) == page.state
    page.controls.set("log", "")
    assert (page.state.guest.vcpus, page.state.guest.memory, page._log_notes.value.strip()) == (16, 512 * 2**30, "")


def test_a_value_that_is_in_no_log_is_asked_for_below_its_control():
    page = MigrationPage(SMALL, background=False)
    page.change(vcpus="64")  # as on the first visit: an example, and no value of this guest
    page.controls.set("log", LOG)
    assert "vcpus = not known: is not in the log" in page._status.value
    assert "is not in the log" in page.controls._notes["vcpus"].value
    assert "answer" not in page.findings.parts
    page.controls.set("vcpus", "2")
    assert page._status.value == "Simulated."
    assert page.controls._notes["vcpus"].value == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<script>alert(1)</script>", "log = &lt;script&gt;alert(1)&lt;/script&gt;: has no reply to query-migrate"),
        ("x" * (LOG_LIMIT + 1), "log = 1,048,577 bytes: must have at most 1 MiB; paste its end only"),
        (LOG + LOG.replace("8392704", "4392704"), "the replies contradict each other; paste the replies of one guest"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused_below_its_field(text, words):
    states = []
    controls = MigrationControls(MigrationState(), states.append)
    controls.set("log", text)
    assert words in controls._notes["log"].value
    assert not states


def test_a_log_too_long_for_a_url_is_asked_for_again():
    noise = "".join(f"{number * 2654435761 % 2**32:08x}\n" for number in range(40_000))
    state = MigrationState({}, LOG + CPUS + noise)
    assert f"log={TOO_LONG}" in state.query
    with pytest.raises(InputError, match="paste the log into the page"):
        MigrationState.from_query(state.query)
    with pytest.raises(InputError, match="must have at most 1 MiB"):
        MigrationState.from_query(f"page=migration&log={pack('x' * (2 * LOG_LIMIT))}")  # a small URL


def test_a_kernel_that_exits_cancels_the_simulation(monkeypatch, capsys):
    """Pools of threads then start no task, which is not an error of the page."""
    shell = type("Shell", (traitlets.HasTraits,), {"exit_now": traitlets.Bool()})()

    def stages(*_arguments):
        shell.exit_now = True
        raise RuntimeError("cannot schedule new futures after shutdown")
        yield

    monkeypatch.setattr("simlib.ui.explorer.base.get_ipython", lambda: shell)
    monkeypatch.setattr(MigrationPage, "_stages", stages)
    page = MigrationPage("", background=False)
    assert (capsys.readouterr().err, page._status.value) == ("", "Simulating …")


def test_one_goes_from_page_to_page():
    tabs = Tabs(SMALL, background=False)
    assert isinstance(tabs.page, MigrationPage)
    assert len(tabs.buttons.options) == 2


def test_a_page_keeps_what_it_was_asked_while_another_is_shown(monkeypatch):
    monkeypatch.setattr("simlib.ui.explorer.page.Explorer._ask", lambda *_: None)  # nothing is simulated
    tabs = Tabs(SMALL, background=False)
    mine = tabs.page
    tabs.buttons.value = ""
    assert tabs.page.state == ExplorerState.first()
    assert tabs.widget.children[1] is tabs.page.widget
    tabs.buttons.value = "migration"
    assert tabs.page is mine


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("vcpus=0", "vcpus = 0: must be from 1 to"),
        ("memory=5Q", "memory = 5Q: unknown unit"),
        ("memory=2G", "dirty = over 40 GiB: is more than the guest's memory; give a smaller working set"),
        ("writes=1e999", "writes = 1e999: must be at most"),
        ("current-downtime-limit=300ms", "current-downtime-limit = 300ms: must be a whole number"),
        ("min-guest-speed=120%25", "min-guest-speed = 1.2: must be above 0"),
        ("vcpu=8", "did you mean 'vcpus'"),
        ("emit=qemu", "must be a listed value; did you mean 'qmp'"),
    ],
)
def test_nonsense_in_an_address_is_told_and_the_first_example_shown(query, words, monkeypatch):
    with pytest.raises(InputError) as told:
        MigrationState.from_query(f"page=migration&{query}")
    assert words in str(told.value)
    monkeypatch.setattr(
        migration_page,
        "migration_answer",
        lambda *_: simlib.migrate(*small(), options=MigrationOptions(draws=1, lock=False)),
    )
    page = MigrationPage(f"page=migration&{query}", background=False)
    assert "The URL is invalid" in page._status.value  # also once it is simulated
    assert page._status.value.endswith("Simulated.")
    assert page.state == MigrationState()
    page.change(vcpus="8")
    assert page._status.value == "Simulated."


def small():
    state = MigrationState.from_query(SMALL)
    return state.guest, state.targets


@pytest.mark.parametrize("query", ["page=migration", "migration", "#migration", "?page=migration&token=a"])
def test_a_query_names_the_page(query, monkeypatch):
    monkeypatch.setattr("simlib.ui.explorer.base.ExplorerPage._ask", lambda *_: None)  # nothing is simulated
    assert Tabs(query).page.state == MigrationState()
    assert Tabs(query.replace("migration", "strategies")).page.state == ExplorerState.first()


def test_an_unknown_page_is_told_on_the_first(monkeypatch):
    monkeypatch.setattr("simlib.ui.explorer.page.Explorer._stages", lambda *_: iter(()))
    tabs = Tabs("page=migrtion", background=False)
    assert tabs.buttons.value == ""
    assert "page = migrtion" in tabs.page._status.value


def test_what_is_pasted_follows_the_list_and_nothing_is_simulated_again(page, monkeypatch):
    found = page.findings.parts["answer"]
    monkeypatch.setattr(migration_page, "migration_answer", None)
    for target in ("qmp", "virsh"):
        page.controls.set("emit", target)
        assert page._pasted.value == Markup("<pre>{}</pre>").format(found.paste(target))
    assert page.findings.parts["answer"] is found


def test_what_kubevirt_cannot_set_is_not_recommended_to_it():
    shown = MigrationPage(f"{SMALL}&emit=kubevirt", background=False)
    found = shown.findings.parts["answer"]
    assert all(plan.settings.changes_from(found.guest.settings).keys() <= SETTABLE["kubevirt"] for plan in found.plans)
    assert "cannot set" not in found.paste("kubevirt")


TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(
    ["0", "-1", "1e400", "nan", "9" * 30, "512G", "0G", "1/s in 1s", "over 1G", "80%", "on", "5min", "1Gbit/s", "sweep",
     pack(LOG), pack(LOG + CPUS)]
))  # fmt: skip


@given(st.dictionaries(st.one_of(st.sampled_from(sorted([*BY_NAME, "log"])), st.text(max_size=5)), TEXTS, max_size=6))
def test_whatever_an_address_says_is_a_question_or_a_sentence(asked):
    query = urlencode({"page": "migration"} | asked)
    try:
        state = MigrationState.from_query(query)
    except InputError:
        return
    assert MigrationState.from_query(state.query) == state


def test_only_what_counts_has_a_control():
    controls = MigrationControls(MigrationState(), lambda _state: None)

    def shown():
        return {name for name, (row, _) in controls._rows.items() if row.layout.display != "none"}

    before = shown()
    controls.set("writes-known", "measured")
    assert before - shown() == {"writes", "working-set"}
    assert shown() - before == {"distinct", "over", "more"}


@pytest.mark.parametrize("log", ["", LOG + CPUS])
def test_the_command_that_a_page_shows_asks_the_same(log, tmp_path, monkeypatch):
    page = MigrationPage(MigrationState.from_query(SMALL).with_log(log).changed(link="2Gbit/s"), background=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / LOG_FILE).write_text(log, encoding="utf-8")
    command = page.calls().rpartition("\n")[2]
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], "--seed", "1", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "plans.csv").read_text(encoding="utf-8") == page.findings.table().to_csv(index=False)
    done = CliRunner().invoke(app, ["explore", "--query", page.state.query, "--table", str(tmp_path / "table.csv")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "table.csv").read_bytes() == (tmp_path / "out" / "plans.csv").read_bytes()
