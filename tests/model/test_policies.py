# SPDX-License-Identifier: BSD-3-Clause
"""The named policies: each runs identically on both engines, makes its changes, and is in the manual."""

import json
import re
from pathlib import Path

import pytest

from simlib._lib.errors import InputError
from simlib.model.policies import POLICIES, apply, policy
from simlib.model.scenario import Scenario
from simlib.simulator.engine import compiled, reference
from simlib.simulator.workloads import build
from simlib.ui.cli import changes_of

SCENARIO = Scenario.parse(
    {
        "guest": {"vcpus": 3, "memory": "6M"},
        "policy": {"architecture": "x86-shadow", "clear_drop_when": "pages >= 192"},
        "workload": {"kind": "migration", "link": "100Gbit/s", "warm_up": "1ms", "pass_limit": 2, "downtime": "0ps",
                     "clear_chunk": "2M", "slow_fault_every": 7},
        "costs": {"fault_unlocked": "1us", "fault_hold": "800ns", "line_transfer": "50ns", "clear_page": "30ns",
                  "reacquire": "100ns", "flush": "5us", "kick": "2us", "split_block": "20us", "split_alloc": "5us",
                  "zap_block": "10us"},
        "variants": {"arm": {"policy": {"architecture": "arm64", "clear_drop_when": "pages >= 512"}}},
    }
)  # fmt: skip


@pytest.mark.parametrize("name", [*POLICIES, "every-512"])
def test_every_policy_runs_identically_and_makes_its_changes(name):
    changed = apply(SCENARIO, name)
    for section, table in policy(name).changes.items():
        for key, value in table.items():
            assert str(getattr(getattr(changed, section), key)) == str(value)
    for case in (changed, changed.variants["arm"]):
        job = build(case)
        assert compiled.run(job, 3, trace=100_000) == reference.run(job, 3, trace=100_000)


def test_the_opt_in_depends_on_the_architecture():
    changed = apply(SCENARIO, "arch-opt-in")
    assert str(changed.policy.clear_drop_when) == "pages >= 64"
    assert str(changed.variants["arm"].policy.clear_drop_when) == "never"


def test_an_unknown_policy_is_named_in_one_sentence():
    with pytest.raises(InputError, match="policy = every-65: must drop the lock after a multiple of 64 pages; such as"):
        policy("every-65")
    with pytest.raises(InputError, match="policy = nx-fault: unknown policy; did you mean 'nx-faults'"):
        apply(SCENARIO, "nx-fault")


def test_the_manual_has_a_row_for_each_policy_in_order():
    """The table of docs/policies.md."""
    page = Path(__file__).parents[2] / "docs" / "policies.md"
    table = page.read_text(encoding="utf-8").partition("| name | meaning |")[2]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    expected = []
    for row in POLICIES.values():
        set_values = {section: {key: value for key, value in table.items() if value != "default"}
                      for section, table in row.changes.items()}  # fmt: skip
        changes = f"`{changes_of(set_values)}`"
        if row.architectures:
            changes += f" on {', '.join(row.architectures)}; elsewhere `{changes_of(row.elsewhere)}`"
        expected.append(f"| `{row.name}` | {row.title} | {changes} | {row.exists} |")
    assert rows == expected


PARAMETERS = {
    (name, path.name[:4])
    for path in (Path(__file__).parents[2] / "kernel-patches").glob("*.patch")
    for name in re.findall(r"^\+module_param(?:_cb|_named)?\((\w+),", path.read_text(encoding="utf-8"), re.M)
}
"""Module parameters, each with the patch that adds it."""


def test_kernel_patches_have_the_parameters_that_policies_and_pages_name():
    texts = [*POLICIES, "every-512", "pages >= 128 and waiters >= 1"]
    sentences = "\n".join(policy(name).to_do(arch)[0] for name in texts for arch in ("x86-tdp", "arm64"))
    named = re.findall(r"kernel-patches/([0-9]{4}).*?kvm\.(\w+)=", sentences)
    assert len(set(named)) == 6
    assert {(name, patch) for patch, name in named} <= PARAMETERS
    page = (Path(__file__).parents[2] / "kernel-patches" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` .*\| ([0-9]{4}) \|", page, re.M)) == PARAMETERS


def test_the_command_lists_and_applies_them(ask, tmp_path):
    code, out, _ = ask("policies", "--format", "json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == list(POLICIES)
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO.variants["arm"].to_toml(), encoding="utf-8")
    whole, every = (ask("simulate", path, "--policy", name, "--format", "json") for name in ("whole-ioctl", "every-64"))
    assert whole[0] == every[0] == 0
    assert whole[1] != every[1]
    assert ask("simulate", path, "--policy", "every-63")[0] == 2
