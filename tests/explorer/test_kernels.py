# SPDX-License-Identifier: BSD-3-Clause
"""A kernel that waits is the first page's, with what Voilà tells it, and ends if nobody takes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simlib.explorer import launch
from simlib.explorer.kernels import PageKernel

ASK = """
import os
print(os.environ['QUERY_STRING'], os.getcwd(), 'HOME' in os.environ, get_ipython().kernel.parent.parent_handle)
"""
OF_A_PAGE = {"SERVER_SOFTWARE": "voila/0.5", "QUERY_STRING": "guest.vcpus=8"}


@pytest.fixture
def waiting() -> Iterator[launch.Waiting]:
    kernel = launch.Waiting.start()
    launch._kernels.append(kernel)
    yield kernel
    launch._kernels.clear()
    kernel.process.kill()
    kernel.process.wait()


async def printed(kernel: PageKernel, code: str) -> str:
    """What some code prints in a kernel."""
    texts: list[str] = []

    def heed(message: dict[str, Any]) -> None:
        texts.append(message["content"].get("text", ""))

    client = kernel.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=120)
        await client.execute_interactive(code, timeout=60, output_hook=heed)
    finally:
        client.stop_channels()
    return "".join(texts).strip()


def test_the_first_page_has_the_kernel_that_waits_and_the_next_one_its_own(
    waiting: launch.Waiting, tmp_path: Path
) -> None:
    plain = {name: value for name, value in os.environ.items() if name != "HOME"}

    async def two() -> tuple[list[int], str]:
        pages = [PageKernel(kernel_name="python3") for _ in range(2)]
        try:
            for page in pages:
                await page.start_kernel(env=plain | OF_A_PAGE, cwd=str(tmp_path))
            return [page.provisioner.pid for page in pages], await printed(pages[0], ASK)
        finally:
            for page in pages:
                await page.shutdown_kernel(now=True)

    pids, told = asyncio.run(two())
    assert pids[0] == waiting.process.pid != pids[1]
    # The environment is Voilà's, not what it started with, but whose it is it knew from the start.
    assert told == f"guest.vcpus=8 {tmp_path} False {os.getpid()}"
    assert waiting.process.poll() is not None  # shut down as any other


def test_a_notebook_of_jupyterlab_s_gets_a_kernel_of_its_own(waiting: launch.Waiting) -> None:
    async def one() -> int:
        kernel = PageKernel(kernel_name="python3")
        await kernel.start_kernel(env=dict(os.environ))
        try:
            return int(kernel.provisioner.pid)
        finally:
            await kernel.shutdown_kernel(now=True)

    assert asyncio.run(one()) != waiting.process.pid
    assert launch.take() is waiting


def test_a_kernel_that_nobody_takes_ends_with_its_server(waiting: launch.Waiting) -> None:
    os.close(waiting.pipe)
    assert waiting.process.wait(120) == 0


def test_a_kernel_that_has_ended_is_not_handed_out(waiting: launch.Waiting) -> None:
    waiting.process.kill()
    waiting.process.wait()
    assert launch.take() is None
