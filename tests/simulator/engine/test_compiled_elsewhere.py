# SPDX-License-Identifier: BSD-3-Clause
"""Two processes compile the engine, and only functions that are not cached."""

import importlib.util
import subprocess
import sys

import pytest

from simlib._lib import jit


@pytest.fixture
def twice(tmp_path):
    """A cached function that was never compiled."""
    path = tmp_path / "never_compiled.py"
    path.write_text(
        "from simlib._lib.jit import cached_njit\n\n@cached_njit(nogil=True)\ndef twice(x):\n    return 2 * x\n"
    )
    spec = importlib.util.spec_from_file_location("never_compiled", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.twice


def test_another_process_compiles_what_is_not_cached(twice, monkeypatch):
    began, real = [], subprocess.Popen

    def begin(command, **options):
        began.append(command[1:])
        return real([sys.executable, "-c", ""], **options)

    monkeypatch.setattr(jit.subprocess, "Popen", begin)
    with jit.compiling_in_background(twice, (4,), "some.module", "slow_path"):
        pass
    assert [command[-2:] for command in began] == [["some.module", "slow_path"]]
    assert jit.address_of(twice, (4,))
    assert twice(4) == 8
    with jit.compiling_in_background(twice, (4,), "some.module", "slow_path"):
        pass
    assert len(began) == 1, "it is kept"


def test_an_interrupted_wait_leaves_no_process(twice, monkeypatch):
    helpers, real = [], subprocess.Popen

    def begin(command, **options):
        helpers.append(real([sys.executable, "-c", "import time; time.sleep(600)"], **options))
        return helpers[0]

    monkeypatch.setattr(jit.subprocess, "Popen", begin)
    with pytest.raises(KeyboardInterrupt), jit.compiling_in_background(twice, (4,), "some.module"):
        raise KeyboardInterrupt
    assert helpers[0].poll() not in (None, 0)


def test_a_helper_ends_with_its_parent(tmp_path):
    """A process that is killed cannot end its helper: the helper ends when the pipe from its parent does."""
    (tmp_path / "slow_module.py").write_text("import sys, time; print(sys.argv[1], flush=True); time.sleep(600)")
    command = [sys.executable, "-c", "from simlib._lib.signals import run_helper; run_helper()", "slow_module", "kind"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as helper:
        assert helper.stdout.readline() == "kind\n"
        helper.stdin.close()
        assert helper.wait(30) == 1
