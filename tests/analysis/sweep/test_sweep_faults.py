# SPDX-License-Identifier: BSD-3-Clause
"""A few faults of `make sweep-faults`, with real processes on loopback."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from distributed.protocol.utils import pack_frames
from processes import DASK, at_work, dask_worker, port, rows_on_disk, scheduler, started, until
from sweep_faults import Bench, worker_killed

from simlib._lib.errors import SimlibError
from simlib.analysis.sweep import Cluster, Pool, cluster, run


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("faults"), 20, 6)


def test_a_worker_that_is_killed_costs_only_what_was_under_way(bench):
    assert "1 kills" in worker_killed(bench, 1, random.Random(1))  # noqa: S311  # moments, not secrets


def test_an_interrupt_leaves_no_process_behind():
    """Not the fork server, either, which may be importing: who waits for the end of the output would wait for it."""

    def interrupted() -> None:
        with Pool(2) as pool:
            pool.submit(time.sleep, 60)
            raise KeyboardInterrupt

    def left() -> list[str]:
        children = [" ".join(child.cmdline()) for child in psutil.Process().children()]
        return [command for command in children if "forkserver" in command]

    for _ in range(2):  # the next pool starts another one
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        until(lambda: not left(), "the end of the fork server")


@pytest.mark.study
def test_a_killed_driver_is_resumed_on_a_cluster(bench):
    out, at = bench.place(), port()
    with started(bench.command(out, "--workers", "1")) as driver:
        until(lambda: at_work(driver, out, bench.points), "work")
        driver.kill()
        driver.wait()
    assert rows_on_disk(out) < bench.points
    with scheduler(at), dask_worker(at, bench.folder):
        bench.finish(out, "--cluster", f"tcp://127.0.0.1:{at}")


def test_a_cluster_that_does_not_answer_is_one_sentence(bench, monkeypatch):
    monkeypatch.setattr(cluster, "TRY_S", 0.2)
    with pytest.raises(SimlibError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1 "):
        run(bench.grid, bench.place(), cluster="tcp://127.0.0.1:1")


FRAMES = pack_frames([b"\1\2"])
RUBBISH = len(FRAMES).to_bytes(8, "little") + FRAMES
"""A whole message of Dask's, of which two values stand where one is expected."""


@contextmanager
def peer(says: bytes) -> Iterator[str]:
    """The address of what says this to whoever connects, and then nothing."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    heard.append(listener.accept()[0])
                    heard[-1].sendall(says)
                except OSError:  # closed
                    return

        threading.Thread(target=answer, daemon=True).start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for one in heard:
            one.close()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        pytest.param(b"", "TimeoutError", id="silent"),
        pytest.param(bytes(1000), "what answers there does not speak Dask's protocol", id="zeros"),
        pytest.param(
            b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there does not speak Dask's protocol", id="http"
        ),
        pytest.param(RUBBISH, "ExtraData", id="rubbish"),
    ],
)
def test_what_answers_and_is_no_scheduler_is_one_sentence(says, why, monkeypatch):
    monkeypatch.setattr(cluster, "TRY_S", 0.5)
    with peer(says) as address, pytest.raises(SimlibError, match=rf"no Dask scheduler answers at {address} \({why}"):
        Cluster(address)


@pytest.mark.parametrize("address", ["foo://x", "/etc/passwd", " ", "tcp://[::1", "tls://127.0.0.1:1"])
def test_what_is_no_address_is_one_sentence(address):
    with pytest.raises(SimlibError, match=r"no Dask scheduler answers at .*(ValueError|TypeError).*such as tcp://"):
        Cluster(address)


def test_a_worker_s_address_is_no_scheduler_s(tmp_path):
    at, mine = port(), port()
    with scheduler(at), started([*DASK, "worker", f"tcp://127.0.0.1:{at}", "--host", "127.0.0.1", "--worker-port",
                                 str(mine), "--no-nanny", "--local-directory", str(tmp_path)]):  # fmt: skip
        with Cluster(f"tcp://127.0.0.1:{at}") as executor:
            assert executor.submit(divmod, 7, 2).result() == (3, 1)
        with pytest.raises(SimlibError, match=r"no Dask scheduler answers at .* \(a Dask Worker does\)"):
            Cluster(f"tcp://127.0.0.1:{mine}")


@pytest.mark.parametrize("scheme", ["tcp", "foo"])
def test_the_command_says_no_more_than_the_sentence(bench, scheme):
    """No line of Dask's log, and no fault of a client that is given up."""
    with peer(RUBBISH) as address:
        command = bench.command(bench.place(), "--cluster", address.replace("tcp", scheme))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"no Dask scheduler answers at {scheme}://127.0.0.1:" in done.stderr
