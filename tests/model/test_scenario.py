# SPDX-License-Identifier: BSD-3-Clause
"""Scenario files: they read back equal, and every error is one sentence with key, value, rule and hint."""

import dataclasses
import pickle
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlib._lib.errors import InputError
from simlib.measurements import data_dir
from simlib.model.architectures import ARCHITECTURES
from simlib.model.costs import Calibration, Costs
from simlib.model.host import Host
from simlib.model.scenario import Guest, Policy, Scenario, load_scenario
from simlib.model.workload import Workload
from simlib.simulator.workloads import build, kind_of

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
SIZES = st.integers(1, 4096).map(lambda n: f"{2 * n}M")
PS = st.integers(0, 10**10).map(lambda n: f"{n}ps")


def table(**keys):
    return st.fixed_dictionaries({}, optional=keys)


SECTIONS = {
    "host": table(
        name=WORDS, cores=st.integers(4, 1024), sockets=st.integers(1, 4), line_transfer_local=PS,
        line_transfer_remote=PS,
    ),
    "guest": table(vcpus=st.sampled_from([1, 2, 8, 1023]), backing=st.sampled_from(["4k", "thp", "hugetlb_2mb"]),
                   memslot_aligned=st.booleans(), memory_per_vcpu=SIZES),
    "policy": table(
        architecture=st.sampled_from(sorted(ARCHITECTURES)), lock=st.sampled_from(["default", "ticket", "rwlock"]),
        write_protect_fault=st.sampled_from(["default", "lockless", "read"]),
        clear_lock=st.sampled_from(["lockless", "read", "write"]),
        clear_drop_when=st.sampled_from(["never", "pages >= 64", "held>=50us and (waiters > 2 or not vcpus < 1)"]),
        fault_lock_sections=st.integers(0, 8),
    ),
    "workload": table(iterations=st.integers(1, 9), write_percent=st.integers(1, 100), initially_set=st.booleans(),
                      clear_chunk=st.sampled_from(["256K", "2M"]), lock_stat_runs=st.integers(1, 9)),
    "costs": table(**dict.fromkeys(["fault_unlocked", "fault_hold", "flush", "clear_page"], PS),
                   fault_jitter=st.one_of(st.integers(0, 8), st.floats(0, 8))),
    "calibration": table(costs=st.lists(st.sampled_from(["fault_unlocked", "flush"]), max_size=2),
                         per_group_costs=st.just(["fault_hold"]), metrics=st.just(["contentions"])),
}  # fmt: skip
FILES = st.fixed_dictionaries({}, optional=SECTIONS)
VARIANTS = st.dictionaries(WORDS, st.fixed_dictionaries({}, optional={**SECTIONS, "cost_group": WORDS}), max_size=3)


@given(file=FILES, variants=VARIANTS)
@settings(max_examples=200)
def test_a_scenario_reads_back_equal(file, variants):
    scenario = Scenario.parse({**file, "variants": variants})
    again = Scenario.parse(tomllib.loads(scenario.to_toml()))
    assert again == scenario
    assert list(again.variants) == list(variants)  # none is lost, and the order is kept


@pytest.mark.parametrize(
    "file",
    [
        pytest.param({"costs": {"fault_unlocked": "1.234567us"}}, id="more than six digits"),
        pytest.param({"variants": {"as-is": {}}}, id="a variant that changes nothing"),
        pytest.param({"variants": {"größe": {"guest": {"vcpus": 2}}}}, id="a key beyond ASCII"),
        pytest.param({"variants": {'2" disk': {"guest": {"vcpus": 2}}}}, id="a quote in a key"),
        pytest.param({"host": {"name": 'the "big" one'}}, id="quotes in a text"),
        pytest.param({"host": {"name": "two\nlines\\"}}, id="control characters in a text"),
    ],
)
def test_values_that_need_escapes_read_back(file):
    scenario = Scenario.parse(file)
    assert Scenario.parse(tomllib.loads(scenario.to_toml())) == scenario


def test_total_memory_reads_back_in_base_and_variant():
    scenario = Scenario.parse({
        "guest": {"vcpus": 2, "memory": "4G"},
        "variants": {"large": {"guest": {"memory": "8G"}}, "more": {"guest": {"vcpus": 4}}},
    })  # fmt: skip
    assert scenario.variants["more"].guest.pages_per_vcpu == 2**18
    assert Scenario.parse(tomllib.loads(scenario.to_toml())) == scenario
    per_vcpu = Scenario.parse({"guest": {"memory_per_vcpu": "4G"}, "variants": {"all": {"guest": {"memory": "8G"}}}})
    assert per_vcpu.variants["all"].guest == Guest(memory=2**33)
    assert Scenario.parse(tomllib.loads(per_vcpu.to_toml())) == per_vcpu


def test_a_variant_may_give_memory_per_vcpu_where_the_base_gives_memory():
    scenario = Scenario.parse({"guest": {"memory": "4G"}, "variants": {"each": {"guest": {"memory_per_vcpu": "2G"}}}})
    assert scenario.variants["each"].guest.pages_per_vcpu == 2**19


def test_the_shipped_scenario():
    scenario = load_scenario(data_dir() / "scenarios" / "arm64-ampere-altra.toml")
    assert list(scenario.variants) == ["spinlock-old-test", "rwlock-old-test", "rwlock-fixed-test"]
    assert [v.cost_group for v in scenario.variants.values()] == ["old test", "old test", "fixed test"]
    assert [v.policy.facts.lock for v in scenario.variants.values()] == ["spin", "rwlock", "rwlock"]
    assert scenario.guest.pages_per_vcpu == 2**19
    assert not scenario.guest.mapped_as_blocks
    assert Scenario.parse(tomllib.loads(scenario.to_toml())) == scenario


def test_every_shipped_scenario_loads():
    files = sorted((data_dir() / "scenarios").glob("*.toml"))
    assert files
    for file in files:
        load_scenario(file)


BAD = [
    # text, what, value, part of the rule, part of the hint
    ("[guest]\nvcpu = 8", "guest.vcpu", 8, "unknown key", "did you mean 'vcpus'?"),
    ("[costs]\nfault_hol = '1us'", "costs.fault_hol", "1us", "unknown key", "did you mean 'fault_hold'?"),
    ("[guests]\nvcpus = 8", "guests", "…", "unknown table", "did you mean 'guest'?"),
    ("vcpus = 8", "vcpus", "…", "unknown table", "known: calibration, costs, guest"),
    ("guest = 8", "guest", 8, "must be a table: write [guest]", ""),
    ("[guest]\nvcpus = 0", "guest.vcpus", 0, "must be a whole number from 1 to 1023", ""),
    ("[guest]\nvcpus = 1024", "guest.vcpus", 1024, "from 1 to 1023", ""),
    ("[guest]\nvcpus = 8.0", "guest.vcpus", 8.0, "whole number", ""),
    ("[guest]\nvcpus = true", "guest.vcpus", True, "whole number", ""),
    ("[guest]\nvcpus = '8'", "guest.vcpus", "8", "whole number", ""),
    ("[guest]\nmemslot_aligned = 1", "guest.memslot_aligned", 1, "must be true or false", ""),
    ("[guest]\nbacking = '2m'", "guest.backing", "2m", "unknown value", "known: 4k, hugetlb_1gb, hugetlb_2mb, thp"),
    ("[guest]\nmemory_per_vcpu = '2Q'", "guest.memory_per_vcpu", "2Q", "unknown unit 'Q'", ""),
    ("[guest]\nmemory_per_vcpu = '3M'", "guest.memory_per_vcpu", "3M", "must be a multiple of 2M", ""),
    ("[guest]\nmemory_per_vcpu = 2097153", "guest.memory_per_vcpu", "2097153", "must be a multiple of 2M", ""),
    ("[guest]\nbacking = '4k'\nmemory_per_vcpu = '4K'", "guest.memory_per_vcpu", "4K", "a multiple of 256K", ""),
    ("[guest]\nvcpus = 3\nmemory = '2G'", "guest.memory", "2G", "must be a multiple of", ""),
    (
        "[guest]\nmemory = '2G'\nmemory_per_vcpu = '2G'",
        "guest.memory",
        "2G",
        "cannot be combined with memory_per_vcpu",
        "one of them",
    ),
    ("[guest]\npage_size = '8K'", "guest.page_size", "8K", "must be 4K, 16K or 64K", ""),
    ("[guest]\nmemory = nan", "guest.memory", float("nan"), "must be a finite number", ""),
    ("[costs]\nfault_jitter = inf", "costs.fault_jitter", float("inf"), "must be a finite number", ""),
    ("[costs]\nfault_jitter = -0.1", "costs.fault_jitter", -0.1, "must be a number from 0 to 8", ""),
    ("[costs]\nfault_unlocked = '-1us'", "costs.fault_unlocked", "-1us", "must not be negative", ""),
    ("[costs]\nfault_unlocked = 1.5", "costs.fault_unlocked", 1.5, "needs a unit", ""),
    ("[costs]\nfault_unlocked = '1 hour'", "costs.fault_unlocked", "1 hour", "unknown unit 'hour'", ""),
    (
        "[policy]\nclear_batch_pages = 65",
        "policy.clear_batch_pages",
        65,
        "must be 0 or a multiple of 64",
        "bitmap words",
    ),
    ("[policy]\nclear_batch_pages = -64", "policy.clear_batch_pages", -64, "whole number from 0", ""),
    ("[policy]\narchitecture = 'arm'", "policy.architecture", "arm", "unknown value", "did you mean 'arm64'?"),
    ("[policy]\nlock = 'mutex'", "policy.lock", "mutex", "unknown value", "rwlock, spin, ticket"),
    ("[host]\nname = ''", "host.name", "", "must be a non-empty string", ""),
    ("[host]\ncores = 2\nsockets = 4", "host.sockets", 4, "must not exceed the number of cores", ""),
    ("[workload]\nwrite_percent = 0", "workload.write_percent", 0, "from 1 to 100", ""),
    ("[workload]\niterations = 0", "workload.iterations", 0, "from 1 to 1000", ""),
    ("[workload]\nclear_chunk = '400K'", "workload.clear_chunk", "400K", "must be a multiple of 256K", ""),
    ("[workload]\nclear_chunk = '2000'", "workload.clear_chunk", "2000", "must be a multiple of 256K", ""),
    (
        "[workload]\nclear_chunk = '2G'",
        "workload.clear_chunk",
        "2G",
        "larger than the guest's memory of 1G",
        "a smaller chunk",
    ),
    (
        "[workload]\nkind = 'zap'\naccess_interval = '0ns'",
        "workload.access_interval",
        "0ps",
        "more than 0",
        "not advance",
    ),
    (
        "[workload]\nkind = 'eager_split'\nparked = false\naccess_interval = '0ns'",
        "workload.access_interval",
        "0ps",
        "more than 0",
        "not advance",
    ),
    ("[workload]\nkind = 'zap'\n[policy]\nlock_regions = 2", "policy.lock_regions", 2, "one lock", "lock_regions"),
    ("[calibration]\ncosts = ['fault_hould']", "calibration.costs", "fault_hould", "unknown cost", "'fault_hold'?"),
    (
        "[calibration]\nper_group_costs = ['fault_hould']",
        "calibration.per_group_costs",
        "fault_hould",
        "unknown cost",
        "",
    ),
    ("[calibration]\nmetrics = 'contentions'", "calibration.metrics", "contentions", "must be a list of strings", ""),
    ("variants = 3", "variants", 3, "must be tables such as [variants.NAME.policy]", ""),
    ("[variants]\na = 3", "variants.a", 3, "must be a table: write [variants.a.policy]", ""),
    ("[variants.a]\ncost_group = 3", "variants.a.cost_group", 3, "must be a non-empty string", ""),
    ("[variants.a.guest]\nvcpu = 3", "variants.a.guest.vcpu", 3, "unknown key", "did you mean 'vcpus'?"),
    ("[variants.a.variants.b]", "variants.a.variants", "…", "unknown table", ""),
]


@pytest.mark.parametrize(("text", "what", "value", "rule", "hint"), BAD, ids=[b[0].replace("\n", " ") for b in BAD])
def test_a_bad_file_gives_one_sentence(tmp_path, text, what, value, rule, hint):
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    error = caught.value
    assert error.what == what
    assert repr(error.value) == repr(value)  # which also holds for NaN
    assert rule in error.rule
    assert hint in error.hint
    assert "\n" not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301  # workers send their errors home


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Guest(vcpus=0), "guest.vcpus"),
        (lambda: Scenario().with_vcpus(-1), "guest.vcpus"),
        (lambda: Guest(memory_per_vcpu=2.5), "guest.memory_per_vcpu"),
        (lambda: Host(line_transfer_local=-1), "host.line_transfer_local"),
        (lambda: Costs(fault_unlocked=-1), "costs.fault_unlocked"),
        (lambda: Scenario().with_costs(fault_hold=-5.0), "costs.fault_hold"),
        (lambda: Costs(fault_jitter=float("nan")), "costs.fault_jitter"),
        (lambda: Policy(lock="mutex"), "policy.lock"),
        (lambda: Workload(clear_chunk=0), "workload.clear_chunk"),
        (lambda: Scenario().changed({"policy": {"clear_batch_pages": 1}}), "policy.clear_batch_pages"),
    ],
)
def test_python_objects_have_the_same_rules(make, what):
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.what == what


def test_a_change_reaches_every_variant():
    scenario = Scenario.parse({"variants": {"a": {"guest": {"vcpus": 2}}, "b": {"policy": {"lock": "spin"}}}})
    changed = scenario.everywhere({"workload": {"iterations": 5}})
    assert [s.workload.iterations for s in (changed, *changed.variants.values())] == [5, 5, 5]
    assert changed.variants["a"].guest.vcpus == 2
    assert scenario.workload.iterations == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        scenario.guest.vcpus = 3


def test_the_manual_lists_every_key():
    manual = (Path(__file__).parents[2] / "docs" / "scenario.md").read_text(encoding="utf-8")
    words = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`[^`]*`", manual))))
    for kind in (Host, Guest, Policy, Workload, Costs, Calibration):
        missing = {f.name for f in dataclasses.fields(kind)} - words
        assert not missing, kind.__name__


def test_the_scenario_s_cost_group_is_that_of_variants_without_one():
    tables = {"cost_group": "fixed test", "variants": {"a": {}, "b": {"cost_group": "other"}}}
    scenario = Scenario.parse(tables)
    assert [variant.cost_group for variant in scenario.variants.values()] == ["fixed test", "other"]
    assert Scenario.parse({"variants": {"a": {}}}).variants["a"].cost_group == "a"
    for text in (scenario.to_toml(), Scenario.parse({"variants": {"a": {}}}).to_toml()):
        assert Scenario.parse(tomllib.loads(text)).to_toml() == text


def test_costs_may_be_durations():
    assert Scenario().with_costs(fault_hold="1us", fault_jitter=0.5).costs.given() == {
        "fault_hold": 1_000_000, "fault_jitter": 0.5
    }  # fmt: skip
    for costs, message in (
        ({"fault_hold": "1 parsec"}, "unknown unit 'parsec'"),
        ({"hold": 1}, "costs.hold = 1: unknown cost; did you mean"),
    ):
        with pytest.raises(InputError, match=message):
            Scenario().with_costs(**costs)


def test_memory_that_all_vcpus_access_is_not_divided():
    """128 MiB: whole blocks for 2 vCPUs, but not for 3; programs and samples use all of it."""
    tables = {"guest": {"vcpus": 3, "memory": "128M"}, "workload": {"kind": "migration", "clear_chunk": "16M"}}
    with pytest.raises(InputError, match=r"multiple of 6M for 3 vCPUs .* shared = true under \[workload\]"):
        Scenario.parse(tables)
    tables["workload"]["shared"] = True
    scenario = Scenario.parse(tables)
    job = build(scenario)
    assert job.pages == scenario.guest.pages == 128 * 256
    assert job.region[:4].tolist() == [[0, job.pages]] * 4
    part, factor = kind_of(scenario).sample(scenario, 512)
    assert part.guest.pages * factor == job.pages
    with pytest.raises(InputError, match="multiple of 2M with backing"):
        Scenario.parse(tables | {"guest": {"vcpus": 3, "memory": "129M"}})
    with pytest.raises(InputError, match=r"multiple of 6M for 3 vCPUs with backing 'hugetlb_2mb'$"):
        Scenario.parse({"guest": {"vcpus": 3, "memory": "128M"}, "workload": {"shared": True}})
