# SPDX-License-Identifier: BSD-3-Clause
"""Files of the user: anything but a text file of a reasonable size is refused in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simlib._lib.errors import InputError
from simlib._lib.reading import CSV_BYTES, JSON_BYTES, TOML_BYTES
from simlib.lab import load_experiment
from simlib.measurements import as_table, check, data_dir
from simlib.measurements.fits import find_fit, load_fit
from simlib.measurements.importers import import_log
from simlib.model.scenario import Scenario, load_scenario
from simlib.ui.explorer.state import ExplorerState

READERS = {"scenario": load_scenario, "experiment": load_experiment, "fit": load_fit, "table": check}
TOML = ("scenario", "experiment")


def error_message(kind: str, path: object) -> str:
    with pytest.raises(InputError) as caught:
        READERS[kind](path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.isprintable()
    return text.replace(f"{Path(str(path)).parent}/", "")


@pytest.mark.parametrize("kind", READERS)
def test_anything_but_a_file_is_refused(tmp_path, kind):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path, expected in (
        ("/dev/zero", "zero = a device or pipe: must be"),
        ("/dev/stdin", "stdin = a"),  # a device, a pipe or an empty file, depending on the caller
        (tmp_path / "pipe", "pipe = a device or pipe: must be"),
        (tmp_path / "link", "link = a device or pipe: must be"),
        (tmp_path, f"{tmp_path.name} = a directory: must be"),
        (tmp_path / "none", "none = missing: "),
        (tmp_path / "link" / "below", "below = Not a directory: must be readable"),
        (tmp_path / ("x" * 300), "= File name too long: must be readable"),
        ("a\0b", "a\\x00b = embedded null byte: must be the name of a file"),
        (tmp_path / os.fsdecode(b"\xff\x1b"), "\\udcff\\x1b = missing: "),
    ):
        assert expected in error_message(kind, path)


@pytest.mark.parametrize("kind", READERS)
def test_a_folder_without_access_is_named(tmp_path, kind, monkeypatch):
    """Root has access everywhere, so the system's error is simulated."""

    def refused(*_: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(os, "stat", refused)
    assert error_message(kind, tmp_path / "a.csv").startswith(
        "a.csv = Permission denied: must be readable; check its perm"
    )
    with pytest.raises(InputError, match="must be readable"):
        as_table(tmp_path / "a.csv")


@pytest.mark.parametrize("kind", READERS)
def test_anything_but_text_is_refused(tmp_path, kind):
    path = tmp_path / "file"
    sizes = {"scenario": TOML_BYTES, "experiment": TOML_BYTES, "fit": JSON_BYTES, "table": CSV_BYTES}
    for content, expected in (
        (b"", "file = an empty file: must be"),
        (b" \n", "file = an empty file: must be"),
        (b"\xff\xfea", "file, line 1 = byte 0xff: must be UTF-8 text; save the file as UTF-8"),
        (b"a\n\xe4", "file, line 2 = byte 0xe4: must be UTF-8 text"),
        (b"a\n\x1b[31mb", "file, line 2 = \\x1b: must be a printable character"),
    ):
        path.write_bytes(content)
        assert expected in error_message(kind, path)
    with path.open("wb") as stream:
        stream.truncate(sizes[kind] + 1)
    assert f"file = more than {sizes[kind] >> 20} MiB: must be" in error_message(kind, path)


LONG = "9" * 5000
DEEP = 100_000


@pytest.mark.parametrize("kind", TOML)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[guest\nvcpus = 1", "not TOML: Expected ']' "),
        ("[guest]\nvcpus = 1\nvcpus = 2", "not TOML: Cannot overwrite a value"),
        (f"a = {LONG}", "not TOML: Exceeds the limit (4300 digits)"),
        (f"a = {'[' * DEEP}{']' * DEEP}", "nested too deeply"),
        (f"a = {'[' * 40}{']' * 40}", "nested too deeply"),
        (f"{'.'.join('a' * 40)} = 1", "nested too deeply"),
        ('[guest]\nname = "\\u001B[31m"', "\\x1b in '\\x1b[31m': must be a printable character"),
        ('"\\u009B" = 1', "\\x9b in '\\x9b': must be a printable character"),
    ],
)
def test_bad_toml_is_named(tmp_path, kind, text, expected):
    (tmp_path / "a.toml").write_text(text)
    assert f"a.toml = {expected}" in error_message(kind, tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "a.json, line 1 = Expecting property name"),
        (f'{{"dof": {LONG}}}', "a.json = Exceeds the limit (4300 digits)"),
        ("[" * DEEP, "a.json = nested too deeply"),
        ("[" * 40 + "]" * 40, "a.json = nested too deeply"),
        ('{"dof": NaN}', "a.json = NaN, which JSON does not allow"),
        ('{"date": "\\ud800"}', "a.json = \\ud800 in '\\ud800': must be a printable character"),
        ('{"date": "\\u001b[2J"}', "a.json = \\x1b in '\\x1b[2J': must be a printable character"),
    ],
)
def test_bad_json_is_named(tmp_path, text, expected):
    (tmp_path / "a.json").write_text(text)
    assert expected in error_message("fit", tmp_path / "a.json")
    (tmp_path / "a.csv").write_text("vcpus,clear_time_s\n1,2\n")
    assert expected in error_message("table", tmp_path / "a.csv")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_dropped(tmp_path, mark):
    (tmp_path / "a.toml").write_bytes(mark + b"[guest]\r\nvcpus = 3\r\n")
    assert load_scenario(tmp_path / "a.toml").guest.vcpus == 3
    (tmp_path / "b.toml").write_bytes(mark + b'name = "one"\ntarget = "x86_64"\n')
    assert load_experiment(tmp_path / "b.toml")[0].name == "one"
    shipped = data_dir() / "fits" / "ampere-altra.json"
    (tmp_path / "c.json").write_bytes(mark + shipped.read_bytes())
    assert load_fit(tmp_path / "c.json").estimate.dof == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"[guest]\nvcpus = 0x1{'0' * 5000}",
            "guest.vcpus = an int that is too long or nested too deeply to be shown: must be a whole",
        ),
        (f'[guest]\nmemory = "{LONG}G"', "must be a whole, positive number of bytes below 2**62"),
        ('[costs]\nfault_hold = "1e300s"', "costs.fault_hold = 1e300s: must be from 0 to 53 days"),
        (f'[costs]\nfault_hold = "{LONG}s"', "must be from 0 to 53 days"),
        ('[workload]\nlink = "4000000Tbit/s"', "workload.link = 4000000Tbit/s: must be from 1 bit/s to 1000 Tbit/s"),
        (f'[policy]\nclear_drop_when = "{"(" * 5000}pages >= 64"', "policy.clear_drop_when = "),
        (f'[policy]\nclear_drop_when = "pages >= {LONG}"', "policy.clear_drop_when"),
        (f"[{'x' * 10**5}]\n", "unknown table; known: calibration"),
        (f"[guest]\n{'x' * 10**5} = 1\n", "unknown key"),
    ],
)
def test_oversized_values_of_a_scenario_are_named(tmp_path, text, expected):
    (tmp_path / "a.toml").write_text(text)
    message = error_message("scenario", tmp_path / "a.toml")
    assert expected in message
    assert len(message) < 5000


@pytest.mark.parametrize("name", ["x" * 300, "../fits/ampere-altra", "a/b", "a\0b", "ä", os.fsdecode(b"\xff")])
def test_a_host_without_a_fit_file_has_no_fit(name):
    assert find_fit(Scenario.parse({"host": {"name": name}})) is None


def test_a_log_with_a_name_that_is_not_text(tmp_path):
    path = tmp_path / os.fsdecode(b"log-\xff\x1b.txt")
    path.write_text("remote_tlb_flush: 96\n")
    imported = import_log("kvm-stats", path)
    assert imported.source == "log-\\udcff\\x1b.txt"
    with pytest.raises(InputError, match=r"File name too long: must be a readable file"):
        import_log("kvm-stats", tmp_path / ("x" * 300))


def test_the_explorer_s_state_has_the_same_limits():
    with pytest.raises(InputError, match="nested too deeply"):
        ExplorerState.from_toml("a = " + "[" * DEEP)
    with pytest.raises(InputError, match=r"must be a whole number"):
        ExplorerState.from_query(f"guest.vcpus={LONG}")


def test_control_characters_of_a_bad_file_do_not_reach_the_terminal(tmp_path):
    """Names of files, columns and tables of a descriptor are escaped, with any encoding."""
    path = tmp_path / os.fsdecode(b"\x1b[31m\xff.csv")
    path.write_text("vcpus,clear_time_s\n1,2\n")
    described = {"name": "µ", "title": "x\u202e", "schema": {"fields": [{"name": "é", "type": "number"}]}}
    path.with_suffix(".json").write_text(json.dumps(described))
    for encoding in ("ascii", "utf-8", "latin-1"):
        done = subprocess.run(
            [sys.executable, "-m", "simlib", "data", "check", path], capture_output=True, check=False,
            env=os.environ | {"PYTHONIOENCODING": encoding},
        )  # fmt: skip
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr
        assert b"\x1b" not in done.stderr
        assert b"\\x1b[31m\\udcff.csv" in done.stderr
