# SPDX-License-Identifier: BSD-3-Clause
"""Server of the explorer's page and of JupyterLab: on loopback only, with a token, without requests to other hosts.

Voilà shows the page, a notebook with one cell, without its code. Voilà and JupyterLab are extensions of one server;
`kernels` ends the kernel of a closed page.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from simlib._lib import signals
from simlib._lib.errors import InputError, SimlibError
from simlib._lib.extras import missing
from simlib._lib.files import write_bytes
from simlib._lib.signals import DeferSignals
from simlib.ui.explorer.launch import started_by

ADDRESS = "127.0.0.1"
PAGE = "explorer.ipynb"  # the notebook that is the explorer's page
NOTEBOOK = "00-tour.ipynb"  # the notebook that JupyterLab opens first
PARTS = {"notebooks": "_notebooks", "docs": "_docs"}
"""Served folders of the source tree, and their names in the package; notebooks link to pages in docs."""

COPIES = "simlib-notebooks"  # folder, below the current one, to which an installed package copies them
INTERRUPTED = 130
_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data: ws:; frame-ancestors 'self'"
"""Sources from which a browser may load content: Voilà's template would request icons and MathJax from elsewhere."""

_TEMPLATES = Path(__file__).with_name("jupyter")  # folder of the page's template for Voilà
_SHOWN = ("anywidget", "@jupyter-widgets/jupyterlab-manager", "@voila-dashboards/widgets-manager8")
"""Extensions of JupyterLab that the page needs; by default, all are loaded, including another copy of Plotly."""

_IDLE_S, _CULL_S = 30, 5
"""Time after which the idle kernel of a page without a browser ends, and period of the check, s. A page that loads
connects to its kernel about a second after the kernel has run the notebook."""

_GRACE_S = 0.5  # time for JupyterLab to stop its kernels and exit, s: the command must end within a second


def explore(port: int = 0, browser: bool = True, query: str = "", lab: bool = False) -> int:
    """Open the explorer and JupyterLab, and wait until the server exits.

    Ctrl-C, SIGTERM and a closed terminal stop the server and its kernels.

    Returns: 0 if JupyterLab was shut down from its menu, 130 if it was interrupted. Raises `SimlibError` if JupyterLab
    is not installed, or failed. Raises `InputError` if the port is not available.

    - `port`: TCP port on loopback; 0: any free port.
    - `browser`: True to open a browser.
    - `query`: first state of the page (`simlib.ui.explorer.ExplorerState.query`).
    - `lab`: True to open the notebooks in JupyterLab instead of the page.
    """
    for package in ("jupyterlab", "voila"):
        if importlib.util.find_spec(package) is None:
            raise SimlibError(missing(package))
    folder = served_folder()
    port = free_port(port)
    page = f"/voila/render/notebooks/{PAGE}"
    book = f"/lab/tree/notebooks/{NOTEBOOK}"
    asked = f"{query}&" if query else ""
    with tempfile.TemporaryDirectory(prefix="simlib-explore-") as private:
        token = secrets.token_hex(24)
        first = book if lab else page + (f"?{query}" if query else "")
        config = write_config(Path(private), settings(folder, port, token, first=first, browser=browser))
        environment = quiet(Path(private), os.environ)
        _say(f"explorer: http://{ADDRESS}:{port}{page}?{asked}token={token} (ready in a few seconds)")
        _say(f"notebooks: http://{ADDRESS}:{port}{book}?token={token}")
        _say(f"serving {folder}; Ctrl-C stops the server and its kernels")
        code = _run(command(config), environment, Path(private))
    if code not in (0, INTERRUPTED):
        raise SimlibError(f"JupyterLab failed with exit code {code}; its messages are above")
    return code


def served_folder(package: Path | None = None, below: Path | None = None) -> Path:
    """Return the folder with the notebooks and the pages that they link to: the source tree, or a copy.

    The copy is made in the current folder, or in `below`; existing files are kept. Raises `SimlibError` if there are no
    notebooks, or they cannot be copied.
    """
    package = Path(__file__).resolve().parents[2] if package is None else package
    source = package.parent
    if (source / "notebooks" / NOTEBOOK).is_file():
        return source
    if not (package / PARTS["notebooks"] / NOTEBOOK).is_file():
        raise SimlibError(f"no {NOTEBOOK} in {source / 'notebooks'} or {package / '_notebooks'}: install simlib again")
    target = (Path.cwd() if below is None else below) / COPIES
    for place in (target, *(target / name for name in PARTS)):
        if os.path.exists(place) and place.stat().st_uid != os.geteuid():
            raise SimlibError(f"{place} belongs to another user: change to a folder of your own")
    try:
        for name, packaged in PARTS.items():
            (target / name).mkdir(parents=True, exist_ok=True)
            for file in sorted((package / packaged).glob("*.*")):
                copy = target / name / file.name
                if file.name == PAGE or not os.path.exists(copy):  # the page's code runs when it is opened
                    write_bytes(copy, file.read_bytes())
    except (InputError, OSError) as error:
        why = error.rule if isinstance(error, InputError) else error.strerror
        refused = f"cannot copy the notebooks to {target} ({why})"
        raise SimlibError(f"{refused}: change to a folder to which you may write") from None
    return target


def free_port(port: int = 0) -> int:
    """Return a free port on loopback: the given one, or any for 0; raises `InputError` if it cannot be used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server: a port just closed is free
        try:
            probe.bind((ADDRESS, port))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            rule = f"cannot be used on {ADDRESS} ({why})"
            raise InputError("port", port, rule, "give another port, or 0 for any free port", flag="--port") from None
        return int(probe.getsockname()[1])


def settings(served: Path, port: int, token: str, *, first: str = "/lab", browser: bool) -> dict[str, dict[str, Any]]:
    """Return the configuration of the server: its extensions, and a page that shows no file and no traceback.

    - `served`: folder with the notebooks.
    - `first`: path that a browser opens.
    """
    server = {
        "ip": ADDRESS, "port": port, "port_retries": 0, "allow_remote_access": False, "root_dir": str(served),
        "open_browser": browser, "log_level": "ERROR",  # Jupyter's warnings ask for nothing that a reader could do
        "allow_root": os.geteuid() == 0,  # for containers: otherwise JupyterLab refuses to run as root
        "extra_static_paths": [str(resources.files("plotly").joinpath("package_data"))],  # for the template
        "jpserver_extensions": {"jupyterlab": True, "simlib.ui.explorer.kernels": True},
        "kernel_manager_class": "simlib.ui.explorer.kernels.PageKernelManager",
        "tornado_settings": {"headers": {"Content-Security-Policy": _POLICY}},
    }  # fmt: skip
    # JupyterLab would otherwise query jupyter.org for news and for a newer version.
    silent = {"news_url": None, "check_for_updates_class": "jupyterlab.NeverCheckForUpdate"}
    page = {
        "template": "simlib", "theme": "light", "allow_theme_override": "NO", "allow_template_override": "NO",
        "show_tracebacks": False, "file_allowlist": [], "show_margins": False, "extension_allowlist": list(_SHOWN),
    }  # fmt: skip
    return {
        "ServerApp": server,
        "LabApp": {"log_level": "ERROR", "default_url": first, **silent},
        # Other users of the machine can connect to a kernel's TCP ports: without encryption, they could read outputs.
        "PageKernelManager": {"transport_encryption": "auto", "cull_idle_timeout": _IDLE_S, "cull_interval": _CULL_S},
        "VoilaConfiguration": page,
        "IdentityProvider": {"token": token},
    }


def write_config(folder: Path, configuration: Mapping[str, Any]) -> Path:
    """Write a configuration file with the token, which only this user can read.

    The token is not passed in the environment, where the user's own configuration could override it, or as an
    argument, which other users can read. JupyterLab reads no other configuration (`launch.main`).

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     oct(write_config(Path(folder), {}).stat().st_mode & 0o777)
    '0o600'
    """
    path = folder / "simlib_explore_config.json"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(configuration, file)
    return path


def command(config: Path) -> list[str]:
    """Return the command line of JupyterLab."""
    # -P: import no module from the current folder, where other users may write.
    code = f"from simlib.ui.explorer.launch import main; main({str(config.parent)!r})"
    return [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", code, f"--config={config}"]


def quiet(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which JupyterLab neither fetches news nor saves a notebook automatically.

    JupyterLab's configuration is read only from the folder. Settings that the user made in JupyterLab, such as its
    theme, are kept.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     quiet(Path(folder), {"JUPYTER_CONFIG_PATH": "/etc/mine"})["JUPYTER_CONFIG_PATH"] == folder
    True
    """
    defaults = {
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
        "@jupyterlab/docmanager-extension:plugin": {"autosave": False},  # the notebook is kept without outputs
        "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": False},  # megabytes
    }
    path = folder / "labconfig" / "default_setting_overrides.json"
    path.parent.mkdir()
    path.write_text(json.dumps(defaults), encoding="utf-8")
    home = environment.get("JUPYTER_CONFIG_DIR") or str(Path(environment.get("HOME", "~")).expanduser() / ".jupyter")
    kept = {"JUPYTERLAB_SETTINGS_DIR": "user-settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
    settings = {name: os.path.join(home, "lab", part) for name, part in kept.items() if name not in environment}
    given = {name: value for name, value in environment.items() if name not in ("JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE")}
    paths = os.pathsep.join([str(_TEMPLATES), *filter(None, [environment.get("JUPYTER_PATH")])])
    private = {"JUPYTER_CONFIG_DIR": str(folder), "JUPYTER_CONFIG_PATH": str(folder), "JUPYTER_PATH": paths}
    return {**given, **settings, **private}


def _run(line: list[str], environment: Mapping[str, str], folder: Path) -> int:
    previous = {} if signals.handlers_installed() else signals.install_handlers()
    process = None
    try:
        with DeferSignals():
            # In its own process group, so that Ctrl-C reaches only this process, which then stops JupyterLab cleanly.
            # JupyterLab exits when its stdin is closed, which happens even if this process is killed by SIGKILL.
            process = subprocess.Popen(  # noqa: S603  # no shell: a list that `command` makes
                line, stdin=subprocess.PIPE, process_group=0, env=dict(environment), cwd=folder
            )
        while process.poll() is None:  # process.wait, once interrupted, would wait for another 0.25 s
            time.sleep(0.1)
        return process.returncode
    except KeyboardInterrupt:
        _say("stopping JupyterLab")
        return INTERRUPTED
    finally:
        if process is not None:
            _end(process)
            if process.stdin is not None:
                process.stdin.close()
        if previous:
            signals.restore_handlers(previous)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process; after `_GRACE_S` kill it and its descendants."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for number in (process.pid, *started_by(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()


def _say(text: str) -> None:
    sys.stderr.write(f"simlib: {text}\n")
    sys.stderr.flush()
