# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios, as frozen validated dataclasses that read and write TOML.

Every field has its rule as metadata, so that one function checks them all. An error names the key, the value, the rule
and a hint.
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
from simlib.model.costs import Calibration, Costs, expand_others
from simlib.model.host import HOSTS, Host
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.policy import Policy, expand_batch
from simlib.model.quantities import format_size, size_text
from simlib.model.topology import far_share
from simlib.model.workload import RING_RESERVE, Workload


@dataclass(frozen=True)
class Guest(rules.Checked):
    """The virtual machine.

    - `memory_per_vcpu`: bytes that each vCPU accesses; an alternative to `memory`.
    - `memory`: total bytes, divided evenly among the vCPUs unless each vCPU accesses all memory (`Workload.shared`).
    - `page_size`: base page, bytes.
    - `backing`: backing of the memory: ``4k``, ``thp``, ``hugetlb_2mb`` or ``hugetlb_1gb``.
    - `memslot_aligned`: guest-physical and host-virtual address are equal modulo the block size. If not, stage 2 maps
      the memory with base pages, whatever its backing (arch/arm64/kvm/mmu.c fault_supports_stage2_huge_mapping).
    """

    vcpus: int = rules.rule(rules.whole(1, 1023), 1)
    memory_per_vcpu: int | None = rules.size()
    memory: int | None = rules.size()
    page_size: int = rules.size(4096)
    backing: str = rules.rule(rules.choice("4k", "thp", "hugetlb_2mb", "hugetlb_1gb"), "hugetlb_2mb")
    memslot_aligned: bool = rules.rule(rules.flag, True)

    @property
    def pages(self) -> int:
        """Total number of base pages."""
        if self.memory is not None:
            return self.memory // self.page_size
        return self.pages_per_vcpu * self.vcpus

    @property
    def pages_per_vcpu(self) -> int:
        """Base pages of one vCPU; rounded down where shared memory does not divide evenly."""
        size = self.memory_per_vcpu if self.memory_per_vcpu is not None else (self.memory or 0) // self.vcpus
        return size // self.page_size

    @property
    def mapped_as_blocks(self) -> bool:
        """True if the memory is mapped with blocks before dirty logging splits them."""
        return self.backing != "4k" and self.memslot_aligned


FILE = "a scenario file (TOML)"
"""Name of the file format in errors."""

_VCPU_COSTS = ("fault_unlocked", "fault_hold", "split_hold", "guest_access")
"""Costs of actions of vCPUs."""

_WALK_COSTS = ("clear_page", "lockless_page", "clear_word", "clear_unsplit", "enable_page", "split_block", "zap_block",
              "unmap_entry", "clean_line", "walk_entry", "protect_entry", "table_entry")  # fmt: skip
"""Costs of the actions of a single thread that processes the whole page table, or KVM's metadata of the memory."""

_COST_PARSERS = {f.name: f.metadata["parse"] for f in dataclasses.fields(Costs)}

ENTRY_COSTS = ("fault_hold", "split_hold", "clear_page", "enable_page")
"""Costs of actions that change an entry that a TLB may hold."""

Section = TypeVar("Section", Host, Guest, Policy, Workload, Costs, Calibration)


@dataclass(frozen=True, repr=False)
class Scenario:
    """A host, a guest, a policy, a workload, and the costs of actions.

    - `variants`: the same scenario with some values changed (other kernels on the same host), by name.
    - `cost_group`: variants of one group share the costs in `Calibration.per_group_costs`. A variant without a group is
      in the scenario's group; if the scenario has no group either, the variant's name is its group.

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
        """Check the rules that involve more than one section."""
        guest = self.guest
        if guest.memory_per_vcpu is not None and guest.memory is not None:
            rule = "cannot be combined with memory_per_vcpu"
            raise InputError("guest.memory", format_size(guest.memory), rule, "give only one of them")
        if guest.memory_per_vcpu is None and guest.memory is None:
            object.__setattr__(self, "guest", dataclasses.replace(guest, memory_per_vcpu=2**30))
            guest = self.guest
        table = PageTable(guest.page_size)
        unit = table.pages_per_block() if guest.backing != "4k" else WORD_PAGES
        key = "memory_per_vcpu" if guest.memory_per_vcpu is not None else "memory"
        given = guest.memory_per_vcpu if guest.memory_per_vcpu is not None else guest.memory
        shares = self.workload.facts.shares
        divided = key == "memory" and not (shares and self.workload.shared)
        multiple = unit * guest.page_size * (guest.vcpus if divided else 1)
        if given is None or given % multiple:
            for_vcpus = f" for {guest.vcpus} vCPUs" if divided and guest.vcpus > 1 else ""
            rule = f"must be a multiple of {format_size(multiple)}{for_vcpus} with backing {guest.backing!r}"
            hint = "give such a size, or shared = true under [workload]: memory that all vCPUs access is not divided"
            raise InputError(f"guest.{key}", format_size(given or 0), rule, hint if divided and shares else "")
        memory = guest.pages * guest.page_size
        agreement.check(self.host, self.policy, self.workload, guest.vcpus, memory, guest.page_size)
        for name in ("sockets", "clusters"):
            if getattr(self.host, name) > self.host.cores:
                raise InputError(f"host.{name}", getattr(self.host, name), "must not exceed the number of cores")
        if self.host.clusters % self.host.sockets:
            rule, hint = "must be a multiple of the number of sockets", "every socket has the same number of clusters"
            raise InputError("host.clusters", self.host.clusters, rule, hint)

    @property
    def ring_full(self) -> int:
        """Number of entries at which a vCPU's dirty ring is full: a reserve and room for a log buffer stay free.

        Source: virt/kvm/dirty_ring.c kvm_dirty_ring_get_rsvd_entries (6.12).
        """
        return self.workload.ring_entries - RING_RESERVE - self.policy.buffer_entries

    @cached_property
    def host_costs(self) -> Costs:
        """Costs adjusted to this host and guest.

        Actions of vCPUs take longer while all are busy (`Host.slowdown`). A vCPU's memory and its page table are on the
        socket where it runs; a thread that walks all memory runs on the first socket, so its actions take longer for
        the share on other sockets (`Host.remote_ratio`). Where every vCPU must drop a changed entry from its TLB
        (`Costs.fence_vcpu`), changing an entry takes longer the more vCPUs there are.

        >>> host = {"cores": 4, "sockets": 2, "remote_ratio": 3}
        >>> costs = {"clear_page": "30ns", "fault_hold": "1us"}
        >>> two, four = (Scenario.parse({"host": host, "guest": {"vcpus": n}, "costs": costs}) for n in (2, 4))
        >>> two.host_costs.clear_page, four.host_costs.clear_page, four.host_costs.fault_hold
        (30000, 60000, 1000000)
        """
        vcpus, host = self.guest.vcpus, self.host
        far = 1 + (host.remote_ratio - 1) * far_share(host, vcpus)
        factors = dict.fromkeys(_VCPU_COSTS, host.slowed(vcpus)) | dict.fromkeys(_WALK_COSTS, far)
        given = self.costs.given()
        scaled = {name: factor for name, factor in factors.items() if factor != 1 and name in given}
        changed = {name: round(given[name] * factor) for name, factor in scaled.items()}
        if self.policy.facts.page_fence:
            fences = vcpus * (self.costs.fence_vcpu or 0)
            changed |= {name: changed.get(name, round(given[name])) + fences for name in ENTRY_COSTS if name in given}
        return dataclasses.replace(self.costs, **changed) if changed else self.costs

    @classmethod
    def parse(cls, tables: Mapping[str, Any], where: str = "") -> Scenario:
        """Create a scenario from the tables of a TOML file.

        Raises `InputError` on an unknown key (the hint names the most similar one), a value of the wrong type, or a
        broken rule.
        """
        tables = dict(tables)
        variants = tables.pop("variants", {})
        group = rules.text(tables.pop("cost_group"), f"{where}cost_group") if "cost_group" in tables else ""
        base = cls(**sections(tables, where), cost_group=group)
        if not isinstance(variants, Mapping):
            raise InputError(f"{where}variants", variants, "must be tables such as [variants.NAME.policy]")
        parsed = {}
        for name, changes in variants.items():
            prefix = f"{where}variants.{name}."
            if not isinstance(changes, Mapping):
                raise InputError(prefix.rstrip("."), changes, f"must be a table: write [{prefix.rstrip('.')}.policy]")
            changed_tables = dict(changes)
            variant_group = rules.text(changed_tables.pop("cost_group", group or name), f"{prefix}cost_group")
            parsed[name] = dataclasses.replace(base.changed(changed_tables, prefix), cost_group=variant_group)
        return dataclasses.replace(base, variants=parsed)

    def everywhere(self, changes: Mapping[str, Any]) -> Scenario:
        """Return the scenario with values replaced in the scenario itself and in every variant.

        >>> s = Scenario.parse({"variants": {"a": {"guest": {"vcpus": 2}}}})
        >>> s.everywhere({"guest": {"memory": "1G"}}).variants["a"].guest.vcpus
        2
        """
        variants = {name: variant.changed(changes) for name, variant in self.variants.items()}
        return dataclasses.replace(self.changed(changes), variants=variants)

    def changed(self, changes: Mapping[str, Any], where: str = "") -> Scenario:
        """Return the scenario with some values replaced, given as the tables of a TOML file.

        >>> Scenario().changed({"guest": {"vcpus": 16}}).guest.vcpus
        16
        """
        if not isinstance(changes, Mapping):
            raise InputError(where.rstrip("."), changes, "must be a table")
        return dataclasses.replace(self, **sections(changes, where, self))

    def with_vcpus(self, vcpus: int) -> Scenario:
        """Return the scenario with another number of vCPUs."""
        return dataclasses.replace(self, guest=dataclasses.replace(self.guest, vcpus=vcpus))

    def variant(self, name: str = "") -> Scenario:
        """Return a variant by name, or the scenario itself if no name is given and it has no variants.

        Raises `InputError` if there is no such variant, or if a name is needed.

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
        """Return the scenario with some costs replaced, as picoseconds or as a string such as ``"1us"``.

        >>> Scenario().with_costs(fault_hold="1us", reacquire=60_000).costs.given()
        {'fault_hold': 1000000, 'reacquire': 60000}
        """
        values = {}
        for name, value in costs.items():
            if name not in _COST_PARSERS:
                raise InputError(f"costs.{name}", value, "unknown cost", nearest(name, _COST_PARSERS))
            if isinstance(value, str):
                values[name] = _COST_PARSERS[name](value, f"costs.{name}")
            else:
                values[name] = value if name == "fault_jitter" else round(value)
        return dataclasses.replace(self, costs=dataclasses.replace(self.costs, **values))

    def __repr__(self) -> str:
        guest = self.guest
        memory = size_text(guest.pages * guest.page_size)
        variants = f", variants {', '.join(self.variants)}" if self.variants else ""
        return (
            f"<Scenario {self.workload.kind} on {self.host.name}: {guest.vcpus} vCPU{'s' * (guest.vcpus != 1)}, "
            f"{memory}, {self.policy.architecture}, costs given: {len(self.costs.given())}{variants}>"
        )

    def _repr_html_(self) -> str:
        return Markup("<pre>{}</pre>").format(self.summary())

    def summary(self) -> str:
        """One line about the scenario, then its differences from the defaults, as TOML."""
        return f"{self!r}\n{self.to_toml()}".strip()

    def to_toml(self) -> str:
        """TOML with only the differences from the defaults; `parse` converts it to an equal scenario.

        >>> print(Scenario(guest=Guest(vcpus=4)).to_toml())
        [guest]
        vcpus = 4
        """
        tables: dict[str, Any] = {"cost_group": self.cost_group} if self.cost_group else {}
        tables |= differences(self, Scenario())
        variants = {}
        for name, variant in self.variants.items():
            group = {} if variant.cost_group == (self.cost_group or name) else {"cost_group": variant.cost_group}
            variants[name] = group | differences(variant, self)
        return tomli_w.dumps(tables | ({"variants": variants} if variants else {})).strip()


SECTIONS: dict[str, type] = {
    "host": Host, "guest": Guest, "policy": Policy, "workload": Workload, "costs": Costs,
    "calibration": Calibration,
}  # fmt: skip
"""The tables of a scenario file."""


def sections(tables: Mapping[str, Any], where: str = "", base: Any = None) -> dict[str, Any]:
    """Create sections from the tables of a scenario file, by name. Raises `InputError`.

    - `where`: prefix of a key's name in an error.
    - `base`: object with the sections to change as attributes, such as a `Scenario`; None: start from the defaults.

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
            rows = expand_batch(table, f"{where}{name}")
        elif name == "costs":
            rows = expand_others(table, f"{where}{name}", _costs_named_elsewhere(tables, where, base))
        values = parsed(kind, rows, f"{where}{name}")
        if name == "guest" and base is not None and len({"memory", "memory_per_vcpu"} & set(values)) == 1:
            values.setdefault("memory_per_vcpu", None)
            values.setdefault("memory", None)
        if name == "host" and values.get("name") in HOSTS:
            values = vars(HOSTS[values["name"]]) | values
        out[name] = dataclasses.replace(getattr(base, name), **values) if base is not None else kind(**values)
    return out


def _costs_named_elsewhere(tables: Mapping[str, Any], where: str, base: Any) -> set[str]:
    """Costs that a [costs] table need not name: the base gives them, or they are to be calibrated."""
    table = tables.get("calibration")
    calibration = parsed(Calibration, table, f"{where}calibration") if isinstance(table, Mapping) else {}
    given = base.costs.given() if base is not None else {}
    return {*given, *calibration.get("costs", ()), *calibration.get("per_group_costs", ())}


def parsed(section: type, rows: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Parse the values of a section's keys by their rules. Raises `InputError`."""
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
    """Return the differences from the base, as the tables of a TOML file; a given memory key is always included.

    TOML cannot express that a value of the base is absent from the scenario; such a difference is omitted.

    >>> differences(Scenario().with_vcpus(8).with_costs(fault_hold="1us"), Scenario())
    {'guest': {'vcpus': 8}, 'costs': {'fault_hold': '1us'}}
    """
    tables = {name: section_differences(getattr(scenario, name), getattr(base, name)) for name in SECTIONS}
    return {name: rows for name, rows in tables.items() if rows}


def section_differences(section: Any, default: Any) -> dict[str, Any]:
    """Return the differences of one section, by key.

    >>> section_differences(Guest(vcpus=8, backing="4k"), Guest())
    {'vcpus': 8, 'backing': '4k'}
    """
    rows: dict[str, Any] = {}
    if isinstance(section, Host) and section.name != default.name:
        rows["name"], default = section.name, HOSTS.get(section.name, default)
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        if value is not None and value != getattr(default, f.name):
            show = f.metadata["show"]
            rows[f.name] = show(value) if show else value
    return rows


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Raises `InputError` if the file cannot be read, is not UTF-8 or TOML, or breaks a rule.

    - `path`: a TOML file; ``docs/scenario.md`` lists its keys.
    """
    return Scenario.parse(read_toml(path, FILE))


def as_scenario(given: Scenario | str | Path) -> Scenario:
    """Return a scenario itself, or read it from a file.

    Raises `InputError` if it is neither a scenario nor a path, or the file is invalid.

    >>> as_scenario(Scenario()) == Scenario()
    True
    """
    if isinstance(given, Scenario):
        return given
    if isinstance(given, str | Path):
        return load_scenario(given)
    raise InputError("scenario", type(given).__name__, "must be a Scenario or the path of a scenario file")
