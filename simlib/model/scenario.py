# SPDX-License-Identifier: BSD-3-Clause
"""The nouns of a scenario, as frozen validated dataclasses; TOML in and out.

Every field carries its rule as data, so that one function checks them all and
one sentence reports every fault: where, which value, which rule, what to do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from markupsafe import Markup

from simlib._lib.errors import InputError, nearest
from simlib._lib.reading import read_toml
from simlib.model import agreement, rules
from simlib.model.costs import Calibration, Costs, named
from simlib.model.host import HOSTS, Host
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.policy import Policy, renamed
from simlib.model.quantities import format_size, say_size
from simlib.model.topology import far_share
from simlib.model.workload import RING_RESERVE, Workload


@dataclass(frozen=True)
class Guest(rules.Checked):
    """The virtual machine.

    - `memory_per_vcpu`: bytes that each vCPU walks; give this or `memory`.
    - `memory`: bytes in all: divided evenly over the vCPUs, unless all of them touch all of it (`Workload.shared`).
    - `page_size`: base page, bytes.
    - `backing`: what backs the memory: ``4k``, ``thp``, ``hugetlb_2mb`` or ``hugetlb_1gb``.
    - `memslot_aligned`: whether guest-physical and host-virtual address agree modulo the block size. If not, stage 2
      maps base pages whatever the backing (arch/arm64/kvm/mmu.c fault_supports_stage2_huge_mapping).
    """

    vcpus: int = rules.rule(rules.whole(1, 1023), 1)
    memory_per_vcpu: int | None = rules.size()
    memory: int | None = rules.size()
    page_size: int = rules.size(4096)
    backing: str = rules.rule(rules.choice("4k", "thp", "hugetlb_2mb", "hugetlb_1gb"), "hugetlb_2mb")
    memslot_aligned: bool = rules.rule(rules.flag, True)

    @property
    def pages(self) -> int:
        """Base pages in all."""
        if self.memory is not None:
            return self.memory // self.page_size
        return self.pages_per_vcpu * self.vcpus

    @property
    def pages_per_vcpu(self) -> int:
        """Base pages that are one vCPU's part; rounded down where memory that all share does not divide."""
        each = self.memory_per_vcpu if self.memory_per_vcpu is not None else (self.memory or 0) // self.vcpus
        return each // self.page_size

    @property
    def mapped_as_blocks(self) -> bool:
        """Whether stage 2 maps blocks before dirty logging splits them."""
        return self.backing != "4k" and self.memslot_aligned


FILE = "a scenario file (TOML)"
"""What a scenario file is called where one is no good."""

_OF_THE_VCPU = ("fault_unlocked", "fault_hold", "split_hold", "guest_access")
"""Costs of what vCPUs do."""

_OF_A_WALK = ("clear_page", "lockless_page", "clear_word", "clear_unsplit", "enable_page", "split_block", "zap_block",
              "unmap_entry", "clean_line", "walk_entry", "protect_entry", "table_entry")  # fmt: skip
"""Costs of what one thread does to all of the memory's page table and to what KVM keeps beside it."""

_COSTS = {f.name: f.metadata["parse"] for f in dataclasses.fields(Costs)}
"""How each cost is read."""

OF_AN_ENTRY = ("fault_hold", "split_hold", "clear_page", "enable_page")
"""Costs of what changes an entry of which a TLB may know."""


Section = TypeVar("Section", Host, Guest, Policy, Workload, Costs, Calibration)


@dataclass(frozen=True, repr=False)
class Scenario:
    """A host, a guest, a policy, a workload, and what actions cost.

    - `variants`: the same scenario with some values changed (other kernels on the same host), by name.
    - `group`: variants of one group share the costs that are listed in `Calibration.per_group_costs`. A variant that
      names none has the scenario's, and without one its own name.

    >>> s = Scenario.parse({"guest": {"vcpus": 8, "memory_per_vcpu": "2G"}, "policy": {"architecture": "arm64"}})
    >>> s.guest.pages_per_vcpu
    524288
    >>> Scenario.parse({"guest": {"vcpu": 8}})
    Traceback (most recent call last):
    ...
    simlib.InputError: guest.vcpu = 8: unknown key; did you mean 'vcpus'? known: backing, ...
    """

    host: Host = field(default_factory=Host)
    guest: Guest = field(default_factory=Guest)
    policy: Policy = field(default_factory=Policy)
    workload: Workload = field(default_factory=Workload)
    costs: Costs = field(default_factory=Costs)
    calibration: Calibration = field(default_factory=Calibration)
    variants: Mapping[str, Scenario] = field(default_factory=dict)
    cost_group: str = ""

    def __post_init__(self) -> None:
        """Check what depends on more than one section."""
        guest = self.guest
        if guest.memory_per_vcpu is not None and guest.memory is not None:
            raise InputError(
                "guest.memory", format_size(guest.memory), "memory_per_vcpu is given too", "give one of them"
            )
        if guest.memory_per_vcpu is None and guest.memory is None:
            object.__setattr__(self, "guest", dataclasses.replace(guest, memory_per_vcpu=2**30))
            guest = self.guest
        table = PageTable(guest.page_size)
        unit = table.pages_per_block() if guest.backing != "4k" else WORD_PAGES
        key = "memory_per_vcpu" if guest.memory_per_vcpu is not None else "memory"
        given = guest.memory_per_vcpu if guest.memory_per_vcpu is not None else guest.memory
        shares = self.workload.facts.shares
        divided = key == "memory" and not (shares and self.workload.shared)
        whole = unit * guest.page_size * (guest.vcpus if divided else 1)
        if given is None or given % whole:
            each = f" for {guest.vcpus} vCPUs" if divided else ""
            raise InputError(
                f"guest.{key}", format_size(given or 0),
                f"must be a multiple of {format_size(whole)}{each} with backing {guest.backing!r}",
                "give such a one, or shared = true under [workload]: memory that all vCPUs access is not divided"
                if divided and shares else "",
            )  # fmt: skip
        memory = guest.pages * guest.page_size
        agreement.check(self.host, self.policy, self.workload, guest.vcpus, memory, guest.page_size)
        for name in ("sockets", "clusters"):
            if getattr(self.host, name) > self.host.cores:
                raise InputError(f"host.{name}", getattr(self.host, name), "must not be more than the cores")
        if self.host.clusters % self.host.sockets:
            raise InputError("host.clusters", self.host.clusters, "must be a multiple of the sockets",
                             "every socket has as many")  # fmt: skip

    @property
    def ring_full(self) -> int:
        """Entries with which a vCPU's dirty ring is full: a reserve stays free, and room for its log buffer.

        Source: virt/kvm/dirty_ring.c kvm_dirty_ring_get_rsvd_entries (6.12).
        """
        return self.workload.ring_entries - RING_RESERVE - self.policy.buffer_entries

    @cached_property
    def host_costs(self) -> Costs:
        """The costs as they are on this host with this guest.

        What a vCPU does takes longer while all are busy (`Host.slowdown`). What one thread does to the memory of all
        takes longer for the part that lies on another socket than the first (`Host.remote_ratio`), where that thread
        is: a vCPU's memory and its page table lie where it runs. Where every vCPU is told of an entry that changes
        (`Costs.fence_vcpu`), whatever changes one takes longer with each of them.

        >>> host = {"cores": 4, "sockets": 2, "remote_ratio": 3}
        >>> costs = {"clear_page": "30ns", "fault_hold": "1us"}
        >>> two, four = (Scenario.parse({"host": host, "guest": {"vcpus": n}, "costs": costs}) for n in (2, 4))
        >>> two.host_costs.clear_page, four.host_costs.clear_page, four.host_costs.fault_hold
        (30000, 60000, 1000000)
        """
        vcpus, host = self.guest.vcpus, self.host
        far = 1 + (host.remote_ratio - 1) * far_share(host, vcpus)
        factors = dict.fromkeys(_OF_THE_VCPU, host.slowed(vcpus)) | dict.fromkeys(_OF_A_WALK, far)
        given = self.costs.given()
        changed = {
            name: round(given[name] * factor) for name, factor in factors.items() if factor != 1 and name in given
        }
        if self.policy.facts.page_fence:
            fences = vcpus * (self.costs.fence_vcpu or 0)
            changed |= {name: changed.get(name, round(given[name])) + fences for name in OF_AN_ENTRY if name in given}
        return dataclasses.replace(self.costs, **changed) if changed else self.costs

    @classmethod
    def parse(cls, tables: Mapping[str, Any], where: str = "") -> Scenario:
        """A scenario from the tables of a TOML file.

        Raises `InputError` on an unknown key (the nearest known one is named), a value of the wrong kind, or a broken
        rule.
        """
        tables = dict(tables)
        variants = tables.pop("variants", {})
        group = rules.text(tables.pop("cost_group"), f"{where}cost_group") if "group" in tables else ""
        base = cls(**sections(tables, where), cost_group=group)
        if not isinstance(variants, Mapping):
            raise InputError(f"{where}variants", variants, "must be tables such as [variants.NAME.policy]")
        parsed = {}
        for name, changes in variants.items():
            here = f"{where}variants.{name}."
            if not isinstance(changes, Mapping):
                raise InputError(here.rstrip("."), changes, f"must be a table: write [{here.rstrip('.')}.policy]")
            rest = dict(changes)
            own = rules.text(rest.pop("cost_group", group or name), f"{here}cost_group")
            parsed[name] = dataclasses.replace(base.changed(rest, here), cost_group=own)
        return dataclasses.replace(base, variants=parsed)

    def everywhere(self, changes: Mapping[str, Any]) -> Scenario:
        """The scenario with values replaced in itself and in every variant.

        >>> s = Scenario.parse({"variants": {"a": {"guest": {"vcpus": 2}}}})
        >>> s.everywhere({"guest": {"memory": "1G"}}).variants["a"].guest.vcpus
        2
        """
        variants = {name: variant.changed(changes) for name, variant in self.variants.items()}
        return dataclasses.replace(self.changed(changes), variants=variants)

    def changed(self, changes: Mapping[str, Any], where: str = "") -> Scenario:
        """The scenario with some values replaced, given as the tables of a TOML file.

        >>> Scenario().changed({"guest": {"vcpus": 16}}).guest.vcpus
        16
        """
        if not isinstance(changes, Mapping):
            raise InputError(where.rstrip("."), changes, "must be a table")
        return dataclasses.replace(self, **sections(changes, where, self))

    def with_vcpus(self, vcpus: int) -> Scenario:
        """The same scenario with another number of vCPUs."""
        return dataclasses.replace(self, guest=dataclasses.replace(self.guest, vcpus=vcpus))

    def variant(self, name: str = "") -> Scenario:
        """One of its variants by name; without a name itself, if it has none.

        Raises `InputError` if it has variants and no such one.

        >>> Scenario.parse({"variants": {"a": {"guest": {"vcpus": 2}}}}).variant("a").guest.vcpus
        2
        """
        if not name and not self.variants:
            return self
        if name not in self.variants:
            rule = "the scenario has variants; name one" if self.variants else "the scenario has no variants"
            raise InputError("variant", name or "none", rule, nearest(name, self.variants) if self.variants else "")
        return self.variants[name]

    def with_costs(self, **costs: float | str) -> Scenario:
        """The same scenario with some costs replaced: picoseconds, or a duration as a file has it.

        >>> Scenario().with_costs(fault_hold="1us", reacquire=60_000).costs.given()
        {'fault_hold': 1000000, 'reacquire': 60000}
        """
        values = {}
        for name, value in costs.items():
            if name not in _COSTS:
                raise InputError(f"costs.{name}", value, "unknown cost", nearest(name, _COSTS))
            if isinstance(value, str):
                values[name] = _COSTS[name](value, f"costs.{name}")
            else:
                values[name] = value if name == "fault_jitter" else round(value)
        return dataclasses.replace(self, costs=dataclasses.replace(self.costs, **values))

    def __repr__(self) -> str:
        guest = self.guest
        memory = say_size(guest.pages * guest.page_size)
        variants = f", variants {', '.join(self.variants)}" if self.variants else ""
        return (
            f"<Scenario {self.workload.kind} on {self.host.name}: {guest.vcpus} vCPUs, {memory}, "
            f"{self.policy.architecture}, {len(self.costs.given())} costs given{variants}>"
        )

    def _repr_html_(self) -> str:
        return Markup("<pre>{}</pre>").format(self.summary())

    def summary(self) -> str:
        """What it is, in a line, and what differs from the defaults, as its file has it."""
        return f"{self!r}\n{self.to_toml()}".strip()

    def to_toml(self) -> str:
        """The scenario as a TOML file that reads back equal; only what differs from the defaults.

        >>> print(Scenario(guest=Guest(vcpus=4)).to_toml())
        [guest]
        vcpus = 4
        """
        tables: dict[str, Any] = {"cost_group": self.cost_group} if self.cost_group else {}
        tables |= differences(self, Scenario())
        variants = {}
        for name, variant in self.variants.items():
            own: dict[str, Any] = (
                {"cost_group": variant.cost_group} if variant.cost_group != (self.cost_group or name) else {}
            )
            variants[name] = own | differences(variant, self)
        return tomli_w.dumps(tables | ({"variants": variants} if variants else {})).strip()


SECTIONS: dict[str, type] = {
    "host": Host, "guest": Guest, "policy": Policy, "workload": Workload, "costs": Costs,
    "calibration": Calibration,
}  # fmt: skip
"""The tables of a scenario file."""


def sections(tables: Mapping[str, Any], where: str = "", base: Any = None) -> dict[str, Any]:
    """The sections that some tables of a scenario file describe, by name.

    Raises `InputError`.

    - `where`: what stands before a key's name in an error.
    - `base`: its attributes are the sections that are changed, such as a `Scenario`; without it they begin from the
      defaults.

    >>> sections({"guest": {"vcpus": 8}})["guest"].vcpus
    8
    """
    out: dict[str, Any] = {}
    for name, table in tables.items():
        if name not in SECTIONS:
            raise InputError(f"{where}{name}", "…", "unknown table", nearest(name, (*SECTIONS, "variants")))
        if not isinstance(table, Mapping):
            raise InputError(f"{where}{name}", table, f"must be a table: write [{name}]")
        kind = SECTIONS[name]
        rows = table
        if name == "policy":
            rows = renamed(table, f"{where}{name}")
        elif name == "costs":
            rows = named(table, f"{where}{name}", _named_elsewhere(tables, where, base))
        values = parsed(kind, rows, f"{where}{name}")
        if name == "guest" and base is not None and len({"memory", "memory_per_vcpu"} & set(values)) == 1:
            values.setdefault("memory_per_vcpu", None)
            values.setdefault("memory", None)
        if name == "host" and values.get("name") in HOSTS:
            values = vars(HOSTS[values["name"]]) | values
        out[name] = dataclasses.replace(getattr(base, name), **values) if base is not None else kind(**values)
    return out


def _named_elsewhere(tables: Mapping[str, Any], where: str, base: Any) -> set[str]:
    """Costs that a [costs] table need not name: the base gives them, or they are to be calibrated."""
    sought = tables.get("calibration")
    asked = parsed(Calibration, sought, f"{where}calibration") if isinstance(sought, Mapping) else {}
    given = base.costs.given() if base is not None else {}
    return {*given, *asked.get("costs", ()), *asked.get("per_group_costs", ())}


def parsed(section: type, rows: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of a section's keys, each by its rule. Raises `InputError`."""
    parsers = {f.name: f.metadata["parse"] for f in dataclasses.fields(section)}
    values = {}
    for key, value in rows.items():
        if key not in parsers:
            raise InputError(f"{where}.{key}", value, "unknown key", nearest(key, parsers))
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{where}.{key}", value, "must be a finite number")
        values[key] = parsers[key](value, f"{where}.{key}")
    return values


def differences(scenario: Scenario, base: Scenario) -> dict[str, dict[str, Any]]:
    """What differs from the base, as the tables of a TOML file; of the memory, always the key that was given.

    A value that the scenario has not and the base has cannot be said so, and is left out.

    >>> differences(Scenario().with_vcpus(8).with_costs(fault_hold="1us"), Scenario())
    {'guest': {'vcpus': 8}, 'costs': {'fault_hold': '1us'}}
    """
    tables = {name: section_differences(getattr(scenario, name), getattr(base, name)) for name in SECTIONS}
    return {name: rows for name, rows in tables.items() if rows}


def section_differences(section: Any, default: Any) -> dict[str, Any]:
    """The same for one section: its keys.

    >>> section_differences(Guest(vcpus=8, backing="4k"), Guest())
    {'vcpus': 8, 'backing': '4k'}
    """
    rows: dict[str, Any] = {}
    if isinstance(section, Host) and section.name != default.name:
        rows["name"], default = section.name, HOSTS.get(section.name, default)
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        if value is not None and value != getattr(default, f.name):
            shown = f.metadata["show"]
            rows[f.name] = shown(value) if shown else value
    return rows


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Raises `InputError` if the file cannot be read, is not UTF-8 or TOML, or breaks a rule.

    - `path`: a TOML file; ``docs/scenario.md`` lists its keys.
    """
    return Scenario.parse(read_toml(path, FILE))


def as_scenario(given: Scenario | str | Path) -> Scenario:
    """A scenario itself, or the one that a file holds.

    Raises `InputError` if it is neither, or the file is bad.

    >>> as_scenario(Scenario()) == Scenario()
    True
    """
    if isinstance(given, Scenario):
        return given
    if isinstance(given, str | Path):
        return load_scenario(given)
    raise InputError("scenario", type(given).__name__, "must be a Scenario or the path of its file")
