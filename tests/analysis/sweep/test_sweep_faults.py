# SPDX-License-Identifier: BSD-3-Clause
"""Some faults of `make sweep-faults`, with real processes on loopback."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import get_temp_dir
from pathlib import Path

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


def test_a_killed_worker_loses_only_running_batches(bench):
    assert "1 kills" in worker_killed(bench, 1, random.Random(1))  # noqa: S311  # moments, not secrets


def test_an_interrupt_leaves_no_process_and_no_folder_behind():
    """The fork server must end, too: otherwise a reader of the output waits until it has finished importing."""
    folders = []

    def interrupted() -> None:
        with Pool(2) as pool:
            folders.append(Path(get_temp_dir()))
            pool.submit(time.sleep, 60)
            raise KeyboardInterrupt

    def fork_servers() -> list[str]:
        children = [" ".join(child.cmdline()) for child in psutil.Process().children()]
        return [command for command in children if "forkserver" in command]

    for _ in range(2):  # the next pool starts another one
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        until(lambda: not fork_servers(), "the end of the fork server")
    assert not any(folder.exists() for folder in folders)


@pytest.mark.study
def test_a_killed_driver_is_resumed_on_a_cluster(bench):
    out, scheduler_port = bench.place(), port()
    with started(bench.command(out, "--workers", "1")) as driver:
        until(lambda: at_work(driver, out, bench.points), "work")
        driver.kill()
        driver.wait()
    assert rows_on_disk(out) < bench.points
    with scheduler(scheduler_port), dask_worker(scheduler_port, bench.folder):
        bench.finish(out, "--cluster", f"tcp://127.0.0.1:{scheduler_port}")


def test_a_scheduler_that_does_not_answer_is_reported_in_one_sentence(bench, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.2)
    with pytest.raises(SimlibError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1 "):
        run(bench.grid, bench.place(), workers="tcp://127.0.0.1:1")


FRAMES = pack_frames([b"\1\2"])
RUBBISH = len(FRAMES).to_bytes(8, "little") + FRAMES
"""A complete message of Dask with two values where one is expected."""


@contextmanager
def peer(reply: bytes) -> Iterator[str]:
    """Address of a server that sends a reply to every connection, and then nothing."""
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    connections.append(listener.accept()[0])
                    connections[-1].sendall(reply)
                except OSError:  # closed
                    return

        threading.Thread(target=answer, daemon=True).start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        pytest.param(b"", "TimeoutError", id="silent"),
        pytest.param(bytes(1000), "the peer does not speak Dask's protocol", id="zeros"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer does not speak Dask's protocol", id="http"),
        pytest.param(RUBBISH, "ExtraData", id="rubbish"),
    ],
)
def test_a_peer_that_is_no_scheduler_is_reported_in_one_sentence(reply, reason, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.5)
    with (
        peer(reply) as address,
        pytest.raises(SimlibError, match=rf"no Dask scheduler answers at {address} \({reason}"),
    ):
        Cluster(address)


@pytest.mark.parametrize("address", ["foo://x", "/etc/passwd", " ", "tcp://[::1", "tls://127.0.0.1:1"])
def test_an_invalid_address_is_reported_in_one_sentence(address):
    with pytest.raises(SimlibError, match=r"no Dask scheduler answers at .*(ValueError|TypeError).*such as tcp://"):
        Cluster(address)


def test_the_address_of_a_worker_is_refused(tmp_path):
    scheduler_port, worker_port = port(), port()
    with scheduler(scheduler_port), started([*DASK, "worker", f"tcp://127.0.0.1:{scheduler_port}",
                                             "--host", "127.0.0.1", "--worker-port",
                                 str(worker_port), "--no-nanny", "--local-directory", str(tmp_path)]):  # fmt: skip
        with Cluster(f"tcp://127.0.0.1:{scheduler_port}") as executor:
            assert executor.submit(divmod, 7, 2).result() == (3, 1)
        with pytest.raises(SimlibError, match=r"no Dask scheduler answers at .* \(a Dask Worker answers\)"):
            Cluster(f"tcp://127.0.0.1:{worker_port}")


@pytest.mark.parametrize("scheme", ["tcp", "foo"])
def test_the_command_prints_only_the_sentence(bench, scheme):
    """Neither Dask's log nor the failing client prints anything."""
    with peer(RUBBISH) as address:
        command = bench.command(bench.place(), "--cluster", address.replace("tcp", scheme))
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1, result.stderr
    assert f"no Dask scheduler answers at {scheme}://127.0.0.1:" in result.stderr
