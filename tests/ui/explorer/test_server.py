# SPDX-License-Identifier: BSD-3-Clause
"""JupyterLab is started on loopback only, never without its token, and never left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from interruptions import marked

import simlib
from simlib._lib.errors import InputError, SimlibError
from simlib.ui.explorer import server

START = "import sys; from simlib.ui.explorer.server import explore; sys.exit(explore(browser=False))"
URL = re.compile(r"(http://127\.0\.0\.1:\d+)/voila/render/notebooks/explorer.ipynb\?token=([0-9a-f]{48}) ")
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is not asked of a proxy


def status(url: str) -> int:
    """HTTP status of a GET."""
    try:
        with LOCAL.open(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return int(error.code)


def answers(base: str, process: subprocess.Popen[str]) -> bool:
    """Wait until the server answers; False if it ended before."""
    for _ in range(300):
        try:
            return status(f"{base}/api") == 200
        except OSError:
            pass
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        return False
    return False


def test_the_server_binds_loopback_and_keeps_the_token() -> None:
    line = server.command(Path("/private/config.json"))
    assert line[:2] == [sys.executable, "-P"]  # no jupyterlab.py of the current folder
    found = json.loads(json.dumps(server.settings(Path("/books"), 8901, "secret", browser=False)))
    assert found["ServerApp"].items() >= {"ip": "127.0.0.1", "root_dir": "/books", "open_browser": False}.items()
    assert found["LabApp"]["news_url"] is None
    assert found["LabApp"]["check_for_updates_class"] == "jupyterlab.NeverCheckForUpdate"
    assert server.settings(Path("/books"), 1, "c", browser=True)["ServerApp"]["open_browser"]


def test_serves_with_the_token_only_and_ends(tmp_path: Path) -> None:
    """A real start, against a user's configuration that would open it to everybody."""
    settings = tmp_path / "jupyter"
    settings.mkdir()
    for name in ("jupyter_config", "jupyter_server_config", "jupyter_lab_config"):
        (settings / f"{name}.json").write_text(
            json.dumps(
                {
                    "IdentityProvider": {"token": ""},
                    "PasswordIdentityProvider": {"hashed_password": ""},
                    "ServerApp": {
                        "ip": "0.0.0.0",  # noqa: S104  # the hostile case
                        "open_browser": True,
                        "allow_unauthenticated_access": True,
                        "identity_provider_class": "jupyter_server.auth.identity.LegacyIdentityProvider",
                        "token": "",
                        "password": "",
                        "disable_check_xsrf": True,
                    },
                }
            )
        )
        (settings / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(settings), "JUPYTER_DATA_DIR": str(tmp_path), "IPYTHONDIR": str(tmp_path),
        "JUPYTER_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(Path(simlib.__file__).parents[1]),
        "TMPDIR": str(tmp_path), "JUPYTER_TOKEN": "known",
    }  # fmt: skip
    imported = tmp_path / "imported"
    for name in ("jupyterlab", "voila"):  # of the current folder: neither is a module, nor a configuration
        (tmp_path / f"{name}.py").write_text(f"open({str(imported)!r}, 'w')")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", START], stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as process:
        try:
            assert process.stderr is not None
            found = URL.search(process.stderr.readline())
            assert found is not None
            base, token = found.groups()
            assert answers(base, process)
            assert status(f"{base}/api/status") == 403
            assert status(f"{base}/api/status?token=known") == 403
            assert status(f"{base}/api/status?token={token}") == 200
            for path in ("notebooks/01-arm64-rwlock.ipynb", "docs/model.md"):  # the notebooks link to the pages
                assert status(f"{base}/api/contents/{path}?content=0&token={token}") == 200
                assert status(f"{base}/api/contents/{path}?content=0") == 403
            with LOCAL.open(f"{base}/voila/render/notebooks/{server.PAGE}", timeout=10) as page:
                assert "/login?" in page.geturl()
                assert "default-src 'self'" in page.headers["Content-Security-Policy"]
            assert not imported.exists()
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read() if process.stderr is not None else ""
        assert process.wait(30) == 130
    assert "Traceback" not in rest
    assert token not in "".join(line for line in rest.splitlines() if not line.startswith("simlib: "))
    with pytest.raises(OSError, match="refused"):
        status(f"{base}/api")
    assert not list(tmp_path.glob("simlib-explore-*"))


def test_the_browser_opens_the_page_that_a_query_names(tmp_path: Path) -> None:
    """The program in BROWSER is given a local file, which has the page's URL with its token."""
    opened = tmp_path / "opened"
    (tmp_path / "browser").write_text(f'#!/bin/sh\ncp "${{1#file://}}" {opened}.part && mv {opened}.part {opened}\n')
    (tmp_path / "browser").chmod(0o700)
    start = START.replace("browser=False", "query='page=migration&vcpus=8'")
    environment = os.environ | {"TMPDIR": str(tmp_path), "BROWSER": f"{tmp_path / 'browser'} %s"}
    environment |= {"JUPYTER_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", start], stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            address = re.search(r"explorer: (\S+)", process.stderr.readline())
            assert address is not None
            while not opened.exists():
                assert process.poll() is None
                time.sleep(0.1)
            assert f"url={address[1]}".replace("&", "&amp;") in opened.read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


@pytest.mark.parametrize("lab", [False, True])
def test_a_server_whose_command_was_killed_ends(tmp_path: Path, lab: bool) -> None:
    """Its kernels end, too, and nothing is left in the folder of temporary files."""
    start = START.replace("browser=False", f"browser=False, lab={lab}")
    mark = f"simlib-test-{os.getpid()}-{lab}"
    environment = os.environ | {"TMPDIR": str(tmp_path), "MOMENT": mark}
    with subprocess.Popen([sys.executable, "-c", start], stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        found = URL.search(process.stderr.readline())
        assert found is not None
        assert answers(found[1], process)
        process.kill()
        process.stderr.read()  # to its end: whoever could write to it is gone
    assert not marked(mark)
    assert not list(tmp_path.glob("simlib-explore-*"))


def test_a_server_that_is_interrupted_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    """JupyterLab is being imported."""
    mark = f"simlib-test-{os.getpid()}-early"
    environment = os.environ | {"TMPDIR": str(tmp_path), "MOMENT": mark}
    with subprocess.Popen([sys.executable, "-c", START], stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not any("explorer.launch" in line for line in marked(mark)):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
        assert not marked(mark)
    assert not list(tmp_path.glob("simlib-explore-*"))


def test_a_taken_port_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=rf"port = {port}: cannot be used on 127.0.0.1 \(.*in use\)"):
            server.explore(port=port, browser=False)


def test_a_port_that_does_not_exist_is_named() -> None:
    with pytest.raises(InputError, match="port = 70000"):
        server.free_port(70000)


def test_missing_jupyterlab_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SimlibError, match=r"jupyterlab is not installed: install it with pip install 'simlib\[notebook\]'"
    ):
        server.explore(browser=False)


def test_a_server_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(server, "command", lambda *_arguments, **_options: fails)
    with pytest.raises(SimlibError, match="exit code 3"):
        server.explore(browser=False)


def test_a_server_shut_down_from_its_menu_is_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "command", lambda *_arguments, **_options: [sys.executable, "-c", ""])
    assert server.explore(browser=False) == 0


def test_an_installed_package_copies_its_notebooks_once(tmp_path: Path) -> None:
    packaged = tmp_path / "site" / "simlib" / "_notebooks"
    packaged.mkdir(parents=True)
    (packaged / server.NOTEBOOK).write_text("{}")
    pages = tmp_path / "site" / "simlib" / "_docs"
    pages.mkdir()
    (pages / "model.md").write_text("# The model")
    folder = server.served_folder(tmp_path / "site" / "simlib", tmp_path)
    notebook = folder / "notebooks" / server.NOTEBOOK
    assert (notebook.read_text(), (folder / "docs" / "model.md").read_text()) == ("{}", "# The model")
    notebook.write_text("mine")
    assert server.served_folder(tmp_path / "site" / "simlib", tmp_path) == folder
    assert notebook.read_text() == "mine"
    (packaged / server.PAGE).write_text("new")
    (folder / "notebooks" / server.PAGE).write_text("somebody's")
    server.served_folder(tmp_path / "site" / "simlib", tmp_path)
    assert (folder / "notebooks" / server.PAGE).read_text() == "new"  # it would run without being opened


def test_copies_of_another_user_are_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = tmp_path / "site" / "simlib" / "_notebooks"
    packaged.mkdir(parents=True)
    (packaged / server.NOTEBOOK).write_text("{}")
    server.served_folder(tmp_path / "site" / "simlib", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SimlibError, match=r"simlib-notebooks belongs to another user: change to a folder of your own"):
        server.served_folder(tmp_path / "site" / "simlib", tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    packaged = tmp_path / "site" / "simlib" / "_notebooks"
    packaged.mkdir(parents=True)
    (packaged / server.NOTEBOOK).write_text("{}")
    (tmp_path / "file").write_text("")
    with pytest.raises(SimlibError, match="cannot copy the notebooks"):
        server.served_folder(tmp_path / "site" / "simlib", tmp_path / "file")


def test_missing_notebooks_are_named(tmp_path: Path) -> None:
    with pytest.raises(SimlibError, match="install simlib again"):
        server.served_folder(tmp_path / "simlib", tmp_path)


def test_defaults_are_quiet_and_the_user_s_own_paths_stay(tmp_path: Path) -> None:
    environment = server.quiet(tmp_path, {"HOME": "/home/me", "JUPYTER_PATH": "/mine"})
    assert environment == {
        "HOME": "/home/me", "JUPYTER_PATH": f"{server._TEMPLATES}:/mine",
        "JUPYTER_CONFIG_PATH": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path),
        "JUPYTERLAB_SETTINGS_DIR": "/home/me/.jupyter/lab/user-settings",
        "JUPYTERLAB_WORKSPACES_DIR": "/home/me/.jupyter/lab/workspaces",
    }  # fmt: skip
    defaults = json.loads((tmp_path / "labconfig" / "default_setting_overrides.json").read_text())
    assert defaults["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    assert defaults["@jupyterlab/docmanager-extension:plugin"]["autosave"] is False
