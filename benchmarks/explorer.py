# SPDX-License-Identifier: BSD-3-Clause
"""Response time of the explorer's page in a real browser, from the release of a control to the new figure.

    python benchmarks/explorer.py [--moves 100] [--guest QUERY]

Starts `simlib explore`, opens its page in a headless Chromium, moves one control after the other, and takes the time
until the first answer (theory) is drawn and until all of it is simulated, both as the page itself sees them. Run it on
an idle machine: browser, server and simulation share its CPUs.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import cycle

import numpy as np
from playwright.sync_api import Page, sync_playwright

MOVES = {
    "vCPUs": ("32", "64", "96", "128", "160", "48"),
    "chunk of a CLEAR": ("512M", "1G", "2G", "256M"),
    "access every": ("10us", "20us", "50us", "15us"),
    "share written, %": ("10", "30", "60", "100"),
    "strategy": ("every-64", "bounded-hold", "every-512", "every-4096"),
}
"""Values that each control is moved to in turn."""

ANSWERED = """([after, part]) => new Promise(done => {
    const look = () => {
        const shown = document.querySelector('.simlib-figures')?.dataset;
        if (shown && +shown.generation > after && (!part || shown.part === part)) done(performance.now());
        else setTimeout(look, 2);
    };
    look(); })"""


def main() -> int:
    """Start the explorer, move its controls and print the response times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=100, help="number of times that a control is moved (default: 100)")
    parser.add_argument(
        "--guest", default="", metavar="QUERY", help="query of the first page (default: that of a first visit)"
    )
    options = parser.parse_args()
    query = ["--query", options.guest] if options.guest else []
    command = [sys.executable, "-m", "simlib", "explore", "--no-browser", *query]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        start = time.perf_counter()
        address = re.search(r"explorer: (\S+)", server.stderr.readline())
        assert address is not None
        try:
            with sync_playwright() as playwright:
                path = shutil.which("chromium") or shutil.which("google-chrome")
                browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
                page = browser.new_page(viewport={"width": 1280, "height": 720})
                open_page(page, address[1])
                page.evaluate(ANSWERED, [0, ""])
                usable = time.perf_counter() - start
                page.evaluate(ANSWERED, [0, "done"])
                report(options.guest or "the first page", usable, *move(page, options.moves))
                browser.close()
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate()
    return 0


def open_page(page: Page, address: str) -> None:
    """Open the page as soon as the server answers."""
    for _ in range(300):
        try:
            page.goto(address, timeout=120_000)
            return
        except Exception:  # the server is not ready
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def move(page: Page, moves: int) -> tuple[list[float], list[float]]:
    """Move controls, and return the times to the first answer and to its last part, s."""
    first, last = [], []
    values = {label: cycle(texts) for label, texts in MOVES.items()}
    for label in (label for _, label in zip(range(moves), cycle(MOVES), strict=False)):
        before = int(page.get_attribute(".simlib-figures", "data-generation") or 0)
        control = page.get_by_label(label, exact=True)
        text = next(values[label])
        if control.input_value() == text:
            text = next(values[label])
        is_list = control.evaluate("element => element.tagName") == "SELECT"
        page.evaluate(
            "name => addEventListener(name, () => { window.at = performance.now(); }, {once: true, capture: true})",
            "change" if is_list else "keydown",
        )
        if is_list:
            control.select_option(label=text)
        else:
            control.fill(text)
            control.press("Enter")
        drawn = page.evaluate(ANSWERED, [before, ""])
        done = page.evaluate(ANSWERED, [before, "done"])
        released = page.evaluate("window.at")
        first.append((drawn - released) / 1e3)
        last.append((done - released) / 1e3)
    return first, last


def report(query: str, usable: float, first: list[float], last: list[float]) -> None:
    """Print percentiles of the response times."""
    print(f"{query}: page usable {usable:.1f} s after the command; {len(first)} moves")
    for name, times in (("first answer", first), ("refined", last)):
        median, high, most = np.percentile(times, [50, 95, 100])
        print(f"{name}: median {1e3 * median:.0f} ms, 95th percentile {1e3 * high:.0f} ms, longest {1e3 * most:.0f} ms")


if __name__ == "__main__":
    sys.exit(main())
