# SPDX-License-Identifier: BSD-3-Clause
"""Experiment files: the matrix, and errors for values that a boot could not use."""

from __future__ import annotations

import pytest
from lab_fakes import cell

from simlib._lib.errors import InputError
from simlib.lab import has_migrations, load_experiment, load_migrations
from simlib.measurements import data_dir

HEAD = 'name = "one"\ntarget = "x86_64"\n'
MATRIX = """
mode = "shadow"
[parameters]
dirty_log_clear_batch = [0, 64]
fast_page_fault = "off"
eager_page_split = false
[test]
vcpus = [1, 2, 4]
parked = true
get_clears = false
"""


def test_lists_span_a_matrix(tmp_path):
    (tmp_path / "e.toml").write_text(HEAD + MATRIX)
    (spec,) = load_experiment(tmp_path / "e.toml")
    cells = list(spec.cells())
    assert [cell.label for cell in cells] == [
        f"one dirty_log_clear_batch={batch} vcpus={vcpus}" for batch in (0, 64) for vcpus in (1, 2, 4)
    ]
    assert [cell.cpus for cell in cells[:3]] == [2, 3, 5]
    assert cells[-1].script().splitlines() == [
        "parameter dirty_log_clear_batch 64",
        "parameter fast_page_fault off",
        "parameter eager_page_split N",
        "run /mmu_lock_contention_test -v 4 -p",
    ]


def test_lock_stat_is_reset_before_the_test_and_shown_after_it():
    assert cell(kernel="lock-stat", test={"parked": False}).script().splitlines() == [
        "write /proc/lock_stat 0",
        "run /mmu_lock_contention_test -v 1 -b 2M -r 2",
        "show /proc/lock_stat",
    ]


@pytest.mark.parametrize("path", sorted((data_dir() / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_experiments_are_good(path):
    if has_migrations(path):
        labels = [migration.label for migration in load_migrations(path)]
        assert len(labels) == len(set(labels))
        return
    for spec in load_experiment(path):
        labels = [cell.label for cell in spec.cells()]
        assert len(labels) == len(set(labels))


TEST, PARAMETERS = HEAD + "[test]\n", HEAD + "[parameters]\n"
BAD = {
    "no TOML": ("name =", "e.toml = not TOML: "),
    "nothing": ("", "e.toml = an empty file: must be an experiment (TOML)"),
    "no name": ("cpus = 1", "e.toml = {}: must have name; add name"),
    "a boot too many": (
        TEST + "seed = " + str([*range(101)]) + "\nflush_accesses = " + str([*range(100)]),
        "e.toml = 10100 cells: must be at most 10,000; list fewer values",
    ),
    "no target": ('name = "one"\n', "e.toml = {}: must have target; add target"),
    "unknown key": (
        HEAD + "repeat = 2\n",
        "e.toml: repeat = 2: is not known; did you mean 'repeats'? known: clock",
    ),
    "key of a type": (HEAD + 'repeats = "2"\n', "e.toml: repeats = 2: must be int; docs/lab.md lists the keys"),
    "truth as a number": (HEAD + "cpus = true\n", "e.toml: cpus = True: must be int; docs/lab.md lists the keys"),
    "target": (HEAD.replace("x86_64", "x86"), "architecture = x86: the lab cannot emulate it; did you mean 'x86_64'?"),
    "mode": (HEAD + 'mode = "vhe"\n', "e.toml: mode = vhe: is not known; known: npt, shadow"),
    "kernel": (HEAD + 'kernel = "lockstat"\n', "e.toml: kernel = lockstat: is not known; did you mean 'lock-stat'?"),
    "never": (HEAD + "timeout_s = 0\n", "e.toml: timeout_s = 0: must be at least 1; raise it"),
    "fewer than no CPUs": (HEAD + "cpus = -1\n", "e.toml: cpus = -1: must be at least 0; raise it"),
    "machine's size": (
        HEAD + 'machine_memory = "1 G"\n',
        "e.toml: machine_memory = 1 G: is not a size; write 512M or 1G",
    ),
    "guest's size": (TEST + 'memory_per_vcpu = "4Q"', "e.toml: one.test.memory_per_vcpu = 4Q: is not a size; write 4M"),
    "no size": (TEST + 'memory_per_vcpu = "0"', "e.toml: one.test.memory_per_vcpu = 0: is not a size; write 4M"),
    "unknown option": (
        TEST + "vcpu = 2\n",
        "one.test.vcpu = 2: is not an option of mmu_lock_contention_test; did you mean",
    ),
    "option of a type": (TEST + 'vcpus = [1, "2"]', "one.test.vcpus = 2: must be int; docs/lab.md lists the options"),
    "negative": (
        TEST + "vcpus = -1\n",
        "one.test.vcpus = -1: must be a keyword or a non-negative number; docs/lab.md lists",
    ),
    "no value": (TEST + "vcpus = []\n", "one.test.vcpus = []: must be int; docs/lab.md lists the options"),
    "value twice": (
        TEST + "vcpus = [1, 2, 1]\n",
        "one.test.vcpus = [1, 2, 1]: lists a value twice; remove one of them",
    ),
    "no table": (HEAD + "test = 3\n", "one.test = 3: must be a table; write [test] or [experiment.test]"),
    "parameter of a type": (PARAMETERS + "batch = 1.5", "one.parameters.batch = 1.5: must be a number, a boolean"),
    "empty word": (PARAMETERS + 'batch = ""', "one.parameters.batch = : must be a number, a boolean or a keyword; ke"),
    "one table": ("[experiment]\n" + HEAD, "e.toml = experiment: must be tables; write [[experiment]]"),
    "no tables": ("experiment = []\n", "e.toml = experiment: must be tables; write [[experiment]]"),
    "beside the tables": (
        "repeats = 2\n[[experiment]]\n" + HEAD,
        "e.toml = repeats: is outside of all experiments; write it below each [[experiment]]",
    ),
    "two of a name": (f"[[experiment]]\n{HEAD}" * 2, "e.toml = one: names two experiments; rename one of them"),
}
INJECTIONS = ["a b", "a\nrun /bin/sh", "a;b", "$(a)", "`a`", "a'b", 'a"b', "a|b", "a&b", "a\tb", "a\0", "é"]


def message_for(tmp_path, text: str) -> str:
    """Error message for a bad file."""
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_experiment(path)
    return str(caught.value)


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_file_is_one_sentence(tmp_path, fault):
    text, expected = BAD[fault]
    message = message_for(tmp_path, text)
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize("word", INJECTIONS, ids=repr)
def test_only_words_reach_the_script_and_paths(tmp_path, word):
    quoted = '"' + "".join(f"\\u{ord(letter):04x}" for letter in word) + '"'
    head = f'name = {quoted}\ntarget = "x86_64"\n'
    for text, expected in (
        (f"{TEST}access = {quoted}\n", "one.test.access = "),
        (f'{TEST}access = ["random", {quoted}]\n', "one.test.access = "),
        (f"{TEST}memory_per_vcpu = {quoted}\n", "one.test.memory_per_vcpu = "),
        (f"{PARAMETERS}batch = {quoted}\n", "one.parameters.batch = "),
        (f"{PARAMETERS}{quoted} = 1\n", "one.parameters = "),
        (f"{HEAD}machine_memory = {quoted}\n", "machine_memory = "),
        (head, "name = "),
    ):
        message = message_for(tmp_path, text)
        assert expected in message or "must be a printable character" in message


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/b", ".."])
def test_names_with_folders_are_refused(tmp_path, path):
    """Names become files of the lab and, natively, of /sys/module/kvm/parameters."""
    assert "is not a parameter name" in message_for(tmp_path, f'{PARAMETERS}"{path}" = 1\n')
    assert "must be letters, digits" in message_for(tmp_path, f'name = "{path}"\ntarget = "x86_64"\n')
