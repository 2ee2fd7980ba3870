# SPDX-License-Identifier: BSD-3-Clause
"""How the kernel takes mmu_lock: the [policy] table of a scenario."""

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
    """How the kernel takes the lock. A value of ``"default"`` or None stands for the architecture's own.

    - `architecture`: a name of `simlib.model.architectures.ARCHITECTURES`.
    - `lock`: a word of `simlib.model.locks.LOCKS`: ``spin`` (queued), ``ticket``, ``rwlock`` (queued), …
    - `write_protect_fault`, `translation_fault`, `split_fault`: ``lockless``, ``read`` or ``write``: the mode for a
      write to a write-protected page, for a missing entry, and for the first write to a write-protected block. A
      spinlock has one mode: read is write.
    - `clear_lock`: mode in which CLEAR, GET without manual protection, and the dirty ring's reset write-protect:
      ``read``, ``write``, or ``lockless``: without mmu_lock, which then only an eager split takes.
    - `get_flush`: when GET without manual protection flushes TLBs: ``after`` it let go of the lock, or ``under_lock``.
    - `enable_blocks`: what enabling the log does to blocks when it write-protects: ``protect`` them as they are, or
      ``drop`` them, so that the next access of either kind faults.
    - `clear_drop_when`: when CLEAR lets go of the lock between two words (`simlib.model.strategy`), which a text says:
      ``"never"``, or a condition such as ``"pages >= 512 or (held >= 50us and waiters >= 1)"``.
    - `get_drop_when`: the same for GET without manual protection.
    - `zap_drop_when`: the same for ``zap``, between two blocks.
    - `fault_lock_sections`: times that every fault takes the lock; the hold is divided over them. 0: as the
      architecture does, where the fault of a write-protected page takes it once, whatever the others do.
    - `eager_split`: whether the blocks of a range are split when it is cleared, or all when enabling the log
      write-protects them, rather than leave that to the guest's next write.
    - `split_alloc`: ``under_lock``: an eager split allocates the new table with the lock held; ``drop``: it lets go for
      that; ``under_read_lock``: it lets go unless it holds the lock for read.
    - `teardown_cache`: cache maintenance when arm64 unmaps: ``entry``, every line of what each entry mapped;
      ``elided``.
    - `teardown_tlb`: TLB invalidation when arm64 unmaps: ``entry``, of each; ``range``, of each table and of each
      stretch between two chances to let go (FEAT_TLBIRANGE); ``vm``, once of the whole VM; ``elided``.
    - `split_walk`: `eager_split`: which entries arm64's walk visits, one of `simlib.model.pagetable.SPLIT_WALKS`.
    - `split_chunk`: `eager_split`: bytes that arm64 splits between two looks at the lock and the stock of tables
      (KVM_CAP_ARM_EAGER_SPLIT_CHUNK_SIZE); None: the largest block that its stage 2 maps.
    - `dirty_tracking`: how KVM learns what the guest writes: a name of `simlib.model.architectures.TRACKING`.
    - `log_buffer`: pages that a vCPU's log buffer takes; 0: as many as the hardware's.
    - `lock_regions`: locks that share the memory evenly, in place of one for all of it; a what-if that no kernel has.
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
        """Check each field, and read each strategy that is a text."""
        super().__post_init__()
        for name in ("clear_drop_when", "get_drop_when", "zap_drop_when"):
            object.__setattr__(self, name, as_strategy(getattr(self, name), f"policy.{name}"))

    @property
    def facts(self) -> Architecture:
        """The architecture's facts."""
        return architecture(self.architecture)

    @property
    def buffer_entries(self) -> int:
        """Pages of a vCPU's log buffer; 0 without one.

        >>> Policy(dirty_tracking="pml").buffer_entries, Policy(dirty_tracking="dbm", log_buffer=64).buffer_entries
        (512, 0)
        """
        own = TRACKING[self.resolved().dirty_tracking].buffer_entries
        return own and (self.log_buffer or own)

    @functools.lru_cache(maxsize=256)  # noqa: B019  # frozen, and few
    def resolved(self) -> Policy:
        """The same policy with every default replaced by the architecture's fact.

        Raises `InputError` if the architecture does not take mmu_lock there and the policy does not say what to do.

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
                raise InputError(
                    f"policy.{name}", "default",
                    f"{self.facts.title} does not take mmu_lock here ({self.facts.sources[0]})",
                    f"give policy.{name} a value to ask what it would cost if it did",
                )  # fmt: skip
            values[name] = value
        if self.dirty_tracking == "default":
            values["dirty_tracking"] = self.facts.dirty_tracking[0]
        values["fault_lock_sections"] = self.fault_lock_sections or self.facts.fault_lock_sections
        values["eager_split"] = self.facts.splits_at_clear if self.eager_split is None else self.eager_split
        values["split_alloc"] = self.facts.split_alloc if self.split_alloc == "default" else self.split_alloc
        return dataclasses.replace(self, **values)


def renamed(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A [policy] table whose ``clear_batch_pages``, if it has any, is read as the strategy that it stands for.

    Raises `InputError` if that is no multiple of 64, or stands beside ``clear_drop_when``.

    >>> renamed({"clear_batch_pages": 512, "lock": "spin"}, "policy")
    {'clear_drop_when': 'pages >= 512', 'lock': 'spin'}
    """
    rows = dict(table)
    if "clear_batch_pages" not in rows:
        return rows
    key = f"{where}.clear_batch_pages"
    pages = rules.whole(0, 2**40)(rows.pop("clear_batch_pages"), key)
    if pages % WORD_PAGES:
        raise InputError(key, pages, "must be 0 or a multiple of 64",
                         "a bitmap word is the least the kernel can do at a time")  # fmt: skip
    if "clear_drop_when" in rows:
        raise InputError(
            f"{where}.clear_drop_when", rows["clear_drop_when"], f"stands beside {key} = {pages}", "give one of them"
        )
    return {"clear_drop_when": every(pages)} | rows
