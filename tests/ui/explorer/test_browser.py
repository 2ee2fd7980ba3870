# SPDX-License-Identifier: BSD-3-Clause
"""The explorer's page in a real browser: every control, every export, an address, nonsense, and a kernel that ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from test_migration_page import LOG

from simlib.ui.explorer import server
from simlib.ui.explorer.controls import KEYS
from simlib.ui.explorer.drawing import TITLES
from simlib.ui.explorer.launch import started_by
from simlib.ui.explorer.state import ExplorerState

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")

ASKED = "architecture=arm64&guest.memory=2G&guest.vcpus=8"
START = f"import sys; from simlib.ui.explorer.server import explore; sys.exit(explore(browser=False, query={ASKED!r}))"
PATIENCE_MS = 180_000


PASTE = '(area, text) => { area.value = text; area.dispatchEvent(new Event("input")); }'
"""Fill a text area at once; Playwright types line by line, which takes a minute for many lines."""

OTHERS = {
    "vCPUs": "16", "memory": "16G", "chunk of a CLEAR": "512M", "backing": "4k", "access every": "30us",
    "share written, %": "50", "accesses": "uniform", "slow fault every": "1000", "link": "10Gbit/s",
    "maximum passes": "2",
    "lock": "ticket", "protection fault": "write", "translation fault": "write", "split fault": "write",
    "CLEAR": "write", "dirty tracking": "pml", "eager split": "no", "split allocation": "drop", "cores": "96",
    "sockets": "2",
    "remote transfer": "2",
}  # fmt: skip
"""Another value for each control, by its label."""


class Page:
    """The page, as its user sees it."""

    def __init__(self, page, errors, foreign):
        self.page, self.errors, self.foreign = page, errors, foreign

    def generation(self) -> int:
        return int(self.page.get_attribute(".simlib-figures", "data-generation") or 0)

    def wait(self, part: str = "done", after: int = -1) -> None:
        """Until a part of an answer later than `after` is on the screen."""
        self.page.wait_for_function(
            "([part, after]) => { const d = document.querySelector('.simlib-figures')?.dataset;"
            " return d && +d.generation > after && (part === '' || d.part === part); }",
            arg=[part, after], timeout=PATIENCE_MS,
        )  # fmt: skip

    def set(self, label: str, value: str) -> None:
        """Type into a text control and leave it, or choose from a list."""
        control = self.page.get_by_label(label, exact=True)
        if control.evaluate("one => one.tagName") == "SELECT":
            control.select_option(value)
        else:
            control.fill(value)
            control.press("Enter")

    def open_fold(self, title: str) -> None:
        fold = self.page.locator(".jupyter-widget-Collapse-header", has_text=title)
        if "jupyter-widget-Collapse-open" not in (fold.locator("xpath=..").get_attribute("class") or ""):
            fold.click()

    def download(self, button: str) -> tuple[str, bytes]:
        """What a button saves."""
        with self.page.expect_download(timeout=PATIENCE_MS) as waiting:
            self.page.get_by_role("button", name=button, exact=True).click()
        return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()

    def text(self) -> str:
        return str(self.page.inner_text(".simlib-explorer"))


def kernels(server_id: int) -> list[int]:
    """Process IDs of the kernels of a server."""
    ids = []
    for number in started_by(server_id):
        with contextlib.suppress(OSError):
            if b"ipykernel" in Path(f"/proc/{number}/cmdline").read_bytes():
                ids.append(number)
    return ids


def wait_for_kernels(server_id: int, number: int, seconds: float) -> None:
    """Wait until a server has so many kernels."""
    end = time.monotonic() + seconds
    while len(running := kernels(server_id)) != number:
        assert time.monotonic() < end, f"{len(running)} kernels, not {number}, after {seconds} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def server_process(tmp_path_factory):
    """The address of a server of its own, and its process ID."""
    folder = tmp_path_factory.mktemp("home")
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(folder),
        "JUPYTER_RUNTIME_DIR": str(folder),
        "IPYTHONDIR": str(folder),
    }
    with subprocess.Popen([sys.executable, "-c", START], stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        found = re.search(r"explorer: (\S+)", process.stderr.readline())
        assert found is not None
        process.stderr.readline()
        try:
            time.sleep(2)
            yield found[1], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            messages = process.communicate()[1]
    unasked = "\n".join(line for line in messages.splitlines() if not line.startswith("simlib: "))
    assert not unasked, unasked


@pytest.fixture(scope="module")
def served(server_process):
    """The address of the server."""
    return server_process[0]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        one = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield one
        one.close()


@pytest.fixture(scope="module")
def visited(served, browser):
    """A page that has answered; the tests are one visit, so that each leaves it able to answer."""
    errors: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 720}, accept_downloads=True)
    page.on("pageerror", lambda error: errors.append(str(error)))
    foreign: list[str] = []
    page.on(
        "response",
        lambda answer: (
            foreign.append(answer.url) if answer.url.startswith("http") and "//127.0.0.1:" not in answer.url else None
        ),
    )
    for _ in range(60):
        try:
            page.goto(served, timeout=PATIENCE_MS)
            break
        except playwright.Error:  # the server is not there yet
            time.sleep(0.5)
    one = Page(page, errors, foreign)
    one.wait()
    yield one
    page.close()


@pytest.fixture
def shown(visited):
    """The page, and at the end what the browser complained of."""
    yield visited
    assert not visited.foreign
    assert not visited.errors


def test_the_page_answers_shows_all_figures_and_no_code(shown):
    assert f"{server.PAGE}?{ASKED}" in shown.page.url
    assert shown.page.locator("script[src^='blob:']").count() == 0, "Plotly is the page's own, not sent by the kernel"
    assert "token" not in shown.page.url
    drawn = shown.page.eval_on_selector_all(
        ".simlib-figure", "all => all.map(one => [one.dataset.figure, one.data.length])"
    )
    assert {name for name, _ in drawn} == set(TITLES)
    assert all(number for _, number in drawn)
    assert "import" not in shown.text()
    assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert shown.page.inner_text(".simlib-answer").startswith("With the baseline strategy, the longest stall is")


def test_the_keyboard_reaches_every_control(shown):
    """Tab goes from control to control, and Enter pins."""
    shown.page.locator("body").press("Tab")
    seen = set()
    for _ in range(40):
        seen.add(
            shown.page.evaluate(
                "document.activeElement.closest('.jupyter-widgets')?.innerText || document.activeElement.innerText"
            )
        )
        shown.page.keyboard.press("Tab")
    assert {"Pin this strategy"} <= {text.strip() for text in seen if text}


@pytest.mark.study
def test_every_format_is_saved(shown, tmp_path):
    shown.open_fold("Open and save")
    name, scenario = shown.download("scenario (TOML)")
    assert (name, ExplorerState.from_toml(scenario.decode()).query) == ("scenario.toml", ASKED)
    name, table = shown.download("table (CSV)")
    (tmp_path / name).write_bytes(table)
    assert set(pd.read_csv(tmp_path / name)["kind"]) == {"theory", "simulated", "measured"}
    _, trace = shown.download("trace (Perfetto)")
    assert {event["ph"] for event in json.loads(trace)["traceEvents"]} >= {"M", "X"}
    for button, start in {"SVG": b"<svg", "PNG": b"\x89PNG", "PDF": b"%PDF"}.items():
        name, image = shown.download(button)
        assert (name, image[: len(start)]) == (f"batch.{button.lower()}", start)
    (tmp_path / "mine.toml").write_text(ExplorerState.of("riscv", "web").to_toml())
    (tmp_path / "as-it-was.toml").write_text(scenario.decode())
    for name, architecture in {"mine.toml": "riscv", "as-it-was.toml": "arm64"}.items():
        before = shown.generation()
        with shown.page.expect_file_chooser() as chooser:
            shown.page.get_by_role("button", name=re.compile("open a scenario")).click()
        chooser.value.set_files(str(tmp_path / name))
        shown.wait("first", before)
        assert f"architecture={architecture}" in shown.page.url


def test_nonsense_gets_the_scenario_s_error_beside_its_control(shown):
    before = shown.generation()
    shown.set("vCPUs", "5000")
    shown.page.get_by_text("guest.vcpus = 5000: must be").wait_for()
    assert shown.generation() == before
    shown.set("vCPUs", "4")
    shown.wait("", before)
    assert "5000" not in shown.text()


@pytest.mark.study
def test_two_pins_stay_through_a_reload(shown):
    for strategy in ("every-64", "every-4096"):
        before = shown.generation()
        shown.set("strategy", strategy)
        shown.wait("", before)
        shown.page.get_by_role("button", name="Pin this strategy").click()
        shown.page.get_by_role("button", name=f"✕ {strategy}").wait_for()
    shown.wait()
    shown.page.reload()
    shown.wait()
    state = ExplorerState.from_query(shown.page.url.partition("?")[2])
    assert (state.strategy, state.pins) == ("every-4096", ("every-64", "every-4096"))
    names = shown.page.eval_on_selector("[data-figure=guest]", "one => one.data.map(trace => trace.name)")
    assert names == ["every-4096", "every-64"]


@pytest.mark.study
def test_every_control_asks_something_else(shown):
    """Each is set to another value by its label; the address follows, and what was changed is told."""
    for title, keys in KEYS.items():
        shown.open_fold(title)
        for key in keys:
            before = shown.generation()
            shown.set(key.label, OTHERS[key.label])
            shown.wait("", before)
            assert f"{key.table}.{key.name}=" in shown.page.url, key
    shown.open_fold("Costs")
    before = shown.generation()
    shown.set("fault_hold", "2us")
    shown.wait("done", before)
    assert "costs.fault_hold=2us" in shown.page.url.replace("%3D", "=")
    before = shown.generation()
    shown.set("or type one", "pages >= 512 and waiters >= 1")
    shown.wait("done", before)
    assert "pages >= 512 and waiters >= 1" in shown.page.inner_text(".simlib-words")


def test_a_slider_asks_when_it_rests(shown):
    shown.open_fold("Guest")
    before = shown.generation()
    row = shown.page.locator(".widget-hbox", has=shown.page.get_by_label("vCPUs", exact=True))
    row.locator(".noUi-handle").press("ArrowRight")
    shown.wait("", before)
    vcpus = ExplorerState.from_query(shown.page.url.partition("?")[2]).scenario.guest.vcpus
    assert shown.page.get_by_label("vCPUs", exact=True).input_value() == str(vcpus)


def test_a_closed_or_reloaded_page_ends_its_kernel(shown, server_process, browser):
    """Ten visits leave the kernel of the page that stays open. Its request to end a kernel needs the token of xsrf."""
    address, server_id = server_process
    context = browser.new_context()
    for _ in range(5):
        page = context.new_page()
        page.goto(address, timeout=PATIENCE_MS)
        page.locator(".simlib-answer").wait_for(timeout=PATIENCE_MS)
        page.reload()
        page.locator(".simlib-answer").wait_for(timeout=PATIENCE_MS)
        page.close(run_before_unload=True)
    wait_for_kernels(server_id, 1, 10)  # less than the time after which the server culls
    context.close()
    forged = """async () => {
        const {baseUrl, kernelId} = JSON.parse(document.querySelector("#jupyter-config-data").textContent);
        return (await fetch(`${baseUrl}voila/api/shutdown/${kernelId}`, {method: "POST"})).status; }"""
    assert shown.page.evaluate(forged) == 403
    shown.open_fold("Guest")
    before = shown.generation()
    shown.set("vCPUs", "6")
    shown.wait("done", before)


def test_a_first_visit_answers_in_a_sentence_and_fits_the_window(served, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(f"{served.partition('?')[0]}?token={served.rpartition('token=')[2]}", timeout=PATIENCE_MS)
    page.locator(".simlib-answer", has_text="With every-512 the longest stall falls").wait_for(timeout=PATIENCE_MS)
    assert page.inner_text("h1") == "What does another strategy for mmu_lock cost?"
    assert page.get_by_role("button", name="✕").count() == 3
    for width, height in ((1280, 720), (1920, 1080), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        tops = [page.locator(one).first.bounding_box()["y"] for one in ("h1", ".simlib-answer", ".simlib-figure")]
        assert tops == sorted(tops)
        assert width == 390 or tops[-1] < height - 200
        wide = page.locator("html, .widget-label:visible")
        cut = wide.evaluate_all("all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.title)")
        assert cut == []
    page.close()


def test_where_there_is_no_plotly_as_in_a_notebook_the_kernel_sends_it(served, browser):
    page = browser.new_page()
    page.route("**/plotly.min.js", lambda route: route.abort())
    page.goto(served, timeout=PATIENCE_MS)
    page.locator(".simlib-figure .main-svg").first.wait_for(timeout=PATIENCE_MS)
    page.close()


def test_the_page_about_a_migration_answers_fits_and_is_a_button_away(shown):
    before = shown.page.url
    shown.page.get_by_role("button", name="A migration", exact=True).click()
    shown.page.locator(".simlib-answer", has_text="The migration does not converge").wait_for(timeout=PATIENCE_MS)
    shown.wait()
    assert "page=migration" in shown.page.url
    asked = shown.generation()
    shown.set("writes given as", "measured: distinct pages")
    shown.wait("done", asked)
    shown.set("measured for", "soon")
    shown.page.get_by_text("over = soon: ").wait_for()
    assert shown.page.url.endswith("page=migration&writes-known=measured")
    shown.open_fold("QEMU's current settings")
    for width in (1920, 1280, 390):
        shown.page.set_viewport_size({"width": width, "height": 844})
        tops = [shown.page.locator(one).first.bounding_box()["y"] for one in ("h1", ".simlib-answer", ".simlib-figure")]
        assert tops == sorted(tops)
        wide = shown.page.locator("html, .widget-label:visible")
        assert not wide.evaluate_all(
            "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.title)"
        )
    shown.page.set_viewport_size({"width": 1280, "height": 720})
    shown.page.get_by_role("button", name="mmu_lock", exact=True).click()
    shown.page.wait_for_url(lambda url: url == before, timeout=PATIENCE_MS)
    shown.page.locator("h1", has_text="mmu_lock").wait_for()
    shown.wait()


def test_a_pasted_log_is_read_and_shown(served, browser):
    """A fragment opens the page; the log may be long, and one that is too long is not sent to the kernel."""
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(f"{served.partition('?')[0]}?token={served.rpartition('token=')[2]}#migration", timeout=PATIENCE_MS)
    page.locator("h1", has_text="Will this migration converge").wait_for(timeout=PATIENCE_MS)
    visit = Page(page, [], [])
    visit.wait()
    area = page.get_by_label("Paste a log")
    before = visit.generation()
    area.fill("x" * 2**20 + "y")
    page.get_by_text("The log has 1,048,577 bytes").wait_for()
    area.fill("nothing of use")
    page.get_by_text("log = nothing of use: has no reply to query-migrate").wait_for()
    assert visit.generation() == before
    area.fill("")
    area.evaluate(PASTE, "a line of a terminal\n" * 40_000 + LOG)
    page.locator(".simlib-notes li", has_text="memory 8.004 GiB").wait_for(timeout=PATIENCE_MS)
    page.get_by_text("vcpus = not known: is not in the log").first.wait_for()
    before = visit.generation()
    visit.set("vCPUs", "2")
    visit.wait("done", before)
    before = visit.generation()
    area.fill(LOG)
    visit.wait("done", before)
    assert page.get_by_label("vCPUs", exact=True).input_value() == "2"
    page.reload()
    page.locator(".simlib-notes li", has_text="memory 8.004 GiB").wait_for(timeout=PATIENCE_MS)
    assert page.get_by_label("Paste a log").input_value() == LOG
    for title in ("More about the guest", "QEMU's current settings"):
        visit.open_fold(title)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 844})
            wide = page.locator("html, .widget-label:visible")
            cut = wide.evaluate_all("all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.title)")
            assert cut == []
    page.close(run_before_unload=True)


@pytest.mark.study
def test_the_kernel_of_a_killed_browser_ends(shown, server_process, tmp_path):
    """A page that stays open and idle meanwhile keeps its kernel."""
    address, server_id = server_process
    wait_for_kernels(server_id, 1, 60)  # Playwright closed pages of earlier tests with their contexts, unasked
    line = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    line += [f"--user-data-dir={tmp_path}", address]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed:
        wait_for_kernels(server_id, 2, 60)
        for number in (killed.pid, *started_by(killed.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
    wait_for_kernels(server_id, 1, 90)
    shown.open_fold("Guest")
    before = shown.generation()
    shown.set("vCPUs", "7")
    shown.wait("done", before)


def test_a_kernel_that_ended_is_told(shown, served):
    token = served.rpartition("token=")[2]
    base = served.split("/voila/")[0]
    killed = shown.page.evaluate(
        """async ([base, token]) => {
            const all = await (await fetch(`${base}/api/kernels?token=${token}`)).json();
            for (const one of all) await fetch(`${base}/api/kernels/${one.id}?token=${token}`, {method: "DELETE",
                headers: {"X-XSRFToken": document.cookie.match(/_xsrf=([^;]*)/)?.[1] || ""}});
            return all.length; }""",
        [base, token],
    )  # fmt: skip
    assert killed >= 1
    shown.page.evaluate("() => { const now = Date.now; Date.now = () => now() + 30000; }")  # half a minute later
    shown.page.get_by_text("no longer answers").wait_for(timeout=60_000)
