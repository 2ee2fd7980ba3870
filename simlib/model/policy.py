# SPDX-License-Identifier: BSD-3-Clause
"""The kernel's use of mmu_lock: the [policy] table of a scenario."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simlib._lib.errors import InputError
from simlib.model import rules
from simlib.model.architectures import ARCHITECTURES, TRACKING, Architecture, architecture
from simlib.model.conditions import Condition
from simlib.model.locks import LOCKS
from simlib.model.pagetable import SPLIT_WALKS, WORD_PAGES
from simlib.model.steps import MOST_ENTRIES
from simlib.model.strategy import NeverDrop, as_strategy, every, strategy


@dataclass(frozen=True)
class Policy(rules.Checked):
    """The kernel's use of mmu_lock. ``"default"`` or None selects the architecture's value.

    - `architecture`: a name of `simlib.model.architectures.ARCHITECTURES`.
    - `lock`: a name in `simlib.model.locks.LOCKS`: ``spin`` (queued), ``ticket``, ``rwlock`` (queued), …
    - `write_protect_fault`, `translation_fault`, `split_fault`: ``lockless``, ``read`` or ``write``: the mode for a
      write to a write-protected page, for a missing entry, and for the first write to a write-protected block. A
      spinlock has only one mode, so that read means write.
    - `clear_lock`: mode in which CLEAR, GET without manual protection, and the dirty ring's reset write-protect:
      ``read``, ``write``, or ``lockless``: without mmu_lock, which only eager splitting then takes.
    - `get_flush`: when GET without manual protection flushes TLBs: ``after`` dropping the lock, or ``under_lock``.
    - `enable_blocks`: treatment of blocks when enabling the log write-protects: ``protect`` them as they are, or
      ``drop`` their mappings, so that the next read or write faults.
    - `clear_drop_when`: condition on which CLEAR drops the lock between two words (`simlib.model.strategy`), as a
      string: ``"never"``, or a condition such as ``"pages >= 512 or (held >= 50us and waiters >= 1)"``.
    - `get_drop_when`: the same for GET without manual protection.
    - `zap_drop_when`: the same for ``zap``, between two blocks.
    - `fault_lock_sections`: number of times that every fault takes the lock; the hold is divided over them. 0: the
      architecture's number, but once for the fault of a write-protected page.
    - `eager_split`: split the blocks of a range when it is cleared, or all blocks when enabling the log write-protects
      them, instead of leaving that to the guest's next write.
    - `split_alloc`: ``under_lock``: an eager split allocates the new table with the lock held; ``drop``: it drops the
      lock to allocate; ``under_read_lock``: it drops the lock unless it holds it for read.
    - `teardown_cache`: cache maintenance when arm64 unmaps: ``entry``, of every cache line of the memory that each
      entry maps; or ``elided``.
    - `teardown_tlb`: TLB invalidation when arm64 unmaps: ``entry``, of each entry; ``range``, of each table and of each
      range between two points where the lock may be dropped (FEAT_TLBIRANGE); ``vm``, once of the whole VM; or
      ``elided``.
    - `split_walk`: `eager_split`: the variant of arm64's walk, one of `simlib.model.pagetable.SPLIT_WALKS`.
    - `split_chunk`: `eager_split`: bytes that arm64 splits between two checks of the lock and of the cache of tables
      (KVM_CAP_ARM_EAGER_SPLIT_CHUNK_SIZE); None: the largest block that its stage 2 maps.
    - `dirty_tracking`: mechanism by which KVM learns of writes: a name of `simlib.model.architectures.TRACKING`.
    - `log_buffer`: size of a vCPU's log buffer, pages; 0: that of the hardware.
    - `lock_regions`: number of locks among which the memory is divided evenly; a what-if that no kernel has.
    """

    architecture: str = rules.rule(rules.choice(*ARCHITECTURES), "arm64")
    lock: str = rules.rule(rules.choice("default", *LOCKS), "default")
    write_protect_fault: str = rules.rule(rules.choice("default", "lockless", "read", "write"), "default")
    translation_fault: str = rules.rule(rules.choice("default", "lockless", "read", "write"), "default")
    split_fault: str = rules.rule(rules.choice("default", "read", "write"), "default")
    clear_lock: str = rules.rule(rules.choice("default", "lockless", "read", "write"), "default")
    get_flush: str = rules.rule(rules.choice("after", "under_lock"), "after")
    enable_blocks: str = rules.rule(rules.choice("protect", "drop"), "protect")
    clear_drop_when: Condition = rules.rule(as_strategy, NeverDrop(), str)  # noqa: RUF009  # a field
    get_drop_when: Condition = rules.rule(as_strategy, NeverDrop(), str)  # noqa: RUF009  # a field
    zap_drop_when: Condition = rules.rule(as_strategy, strategy("blocks >= 10 and waiters >= 1"), str)  # noqa: RUF009  # a field
    fault_lock_sections: int = rules.rule(rules.whole(0, 8), 0)
    eager_split: bool | None = rules.rule(rules.flag, None)
    split_alloc: str = rules.rule(rules.choice("default", "under_lock", "drop", "under_read_lock"), "default")
    teardown_cache: str = rules.rule(rules.choice("entry", "elided"), "elided")
    teardown_tlb: str = rules.rule(rules.choice("entry", "range", "vm", "elided"), "elided")
    split_walk: str = rules.rule(rules.choice(*SPLIT_WALKS), "all")
    split_chunk: int | None = rules.size()
    dirty_tracking: str = rules.rule(rules.choice("default", *TRACKING), "default")
    log_buffer: int = rules.rule(rules.whole(0, MOST_ENTRIES), 0)
    lock_regions: int = rules.rule(rules.whole(1, 1024), 1)

    def __post_init__(self) -> None:
        """Check each field, and parse each strategy that is a string."""
        super().__post_init__()
        for name in ("clear_drop_when", "get_drop_when", "zap_drop_when"):
            object.__setattr__(self, name, as_strategy(getattr(self, name), f"policy.{name}"))

    @property
    def facts(self) -> Architecture:
        """The architecture's facts."""
        return architecture(self.architecture)

    @property
    def buffer_entries(self) -> int:
        """Size of a vCPU's log buffer, pages; 0: there is no log buffer.

        >>> Policy(dirty_tracking="pml").buffer_entries, Policy(dirty_tracking="dbm", log_buffer=64).buffer_entries
        (512, 0)
        """
        entries = TRACKING[self.resolved().dirty_tracking].buffer_entries
        return entries and (self.log_buffer or entries)

    @functools.lru_cache(maxsize=256)  # noqa: B019  # instances are frozen and few
    def resolved(self) -> Policy:
        """Return the policy with every default replaced by the architecture's value.

        Raises `InputError` if the policy has a default for an action for which the architecture does not take mmu_lock.

        >>> p = Policy(architecture="loongarch").resolved()
        >>> p.lock, p.write_protect_fault, p.fault_lock_sections
        ('spin', 'write', 2)
        """
        values: dict[str, Any] = {}
        for name in ("lock", "write_protect_fault", "translation_fault", "split_fault", "clear_lock"):
            value = getattr(self, name)
            if value == "default":
                value = getattr(self.facts, name)
            if value == "none":
                rule = f"{self.facts.title} does not take mmu_lock in this case ({self.facts.sources[0]})"
                hint = f"give policy.{name} a value to simulate it as if it took mmu_lock"
                raise InputError(f"policy.{name}", "default", rule, hint)
            values[name] = value
        if self.dirty_tracking == "default":
            values["dirty_tracking"] = self.facts.dirty_tracking[0]
        values["fault_lock_sections"] = self.fault_lock_sections or self.facts.fault_lock_sections
        values["eager_split"] = self.facts.splits_at_clear if self.eager_split is None else self.eager_split
        values["split_alloc"] = self.facts.split_alloc if self.split_alloc == "default" else self.split_alloc
        return dataclasses.replace(self, **values)


def expand_batch(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Replace ``clear_batch_pages`` in a [policy] table by the equivalent ``clear_drop_when``.

    Raises `InputError` if it is not a multiple of 64, or the table has ``clear_drop_when`` too.

    >>> expand_batch({"clear_batch_pages": 512, "lock": "spin"}, "policy")
    {'clear_drop_when': 'pages >= 512', 'lock': 'spin'}
    """
    rows = dict(table)
    if "clear_batch_pages" not in rows:
        return rows
    key = f"{where}.clear_batch_pages"
    pages = rules.whole(0, 2**40)(rows.pop("clear_batch_pages"), key)
    if pages % WORD_PAGES:
        raise InputError(key, pages, "must be 0 or a multiple of 64", "the kernel clears whole bitmap words")
    if "clear_drop_when" in rows:
        given, rule = rows["clear_drop_when"], f"cannot be combined with {key} = {pages}"
        raise InputError(f"{where}.clear_drop_when", given, rule, "give only one of them")
    return {"clear_drop_when": every(pages)} | rows
