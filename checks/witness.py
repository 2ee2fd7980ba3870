# SPDX-License-Identifier: BSD-3-Clause
"""Witness: an independent model of KVM's dirty log and of userspace's bitmap.

The witness replays a ledger: page writes, scans of words of 64 pages, and processed entries of log buffers and dirty
rings. It uses no steps, programs or engines. By KVM's rules it computes the pages that each scan must return, and it
checks that a migration loses no page. The rules for a memslot:

- Writing a write-protected page is a fault, whose handling marks the page in the log and makes it writable. Writing a
  writable page does not mark it. So while the log is enabled, every writable page must be in the log.
- Enabling the log write-protects all pages; with KVM_DIRTY_LOG_INITIALLY_SET it marks all of them instead.
- KVM_GET_DIRTY_LOG returns the log. With manual protection it changes nothing; without it, GET also clears the returned
  pages.
- KVM_CLEAR_DIRTY_LOG takes a bitmap from userspace. It removes the marks of the pages that are in both the bitmap and
  the log, and write-protects these pages.
- If hardware sets dirty bits, writing a page whose bit is clear causes no fault: hardware sets the bit. KVM protects a
  page by clearing the bit. Hardware with a log buffer logs the page in the buffer. When the vCPU leaves the guest, at
  the latest when the buffer is full, KVM marks the pages in the log. Without a buffer, a scan marks the pages whose bit
  is set.
- With dirty rings KVM marks no page, but pushes it to the vCPU's ring. Userspace harvests the rings in order into its
  own log; the reset protects the harvested pages by runs of entries within 64 pages.
- A VMM may compare the pages dirtied since its last check with the pages sent, and throttle the guest: then the vCPUs
  sleep repeatedly before their next accesses. Or the VMM limits each vCPU by its ring: if the ring is full, the vCPU
  sleeps.
- A vCPU may have idle time: each of its accesses is due at a time, one interval after the one before. It computes for
  some time before each access, and idles until that time begins. A vCPU that is late does not idle. It leaves the guest
  to idle, so that its log buffer is emptied, and if it must sleep then, it does so at once.
- A block (huge page) has a single entry. Protecting a page of the block protects all its pages. Handling a write to it
  replaces the block by a table that maps only the written page, unless KVM has split the block eagerly, which changes
  no permission.

Sources: Documentation/virt/kvm/api.rst, sections 4.8, 4.117, 7.18 and 8.29; virt/kvm/kvm_main.c
kvm_get_dirty_log_protect and kvm_clear_dirty_log_protect; virt/kvm/dirty_ring.c kvm_dirty_ring_reset;
arch/x86/kvm/vmx/vmx.c vmx_flush_pml_buffer; QEMU 10.0, migration/ram.c, migration/cpu-throttle.c, system/dirtylimit.c.

Sets of pages are stored by word, as integers of 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

WORD = 64
FULL = (1 << WORD) - 1


NON_SCANS = (
    "write",
    "drain",
    "harvest",
    "reset",
    "pause",
    "throttle_check",
    "throttle",
    "dirty_limit_update",
    "dirty_limit_sleep",
    "pace",
)
"""Kinds of entries that are not scans."""


class InvariantError(AssertionError):
    """The run violated an invariant."""


class Entry(NamedTuple):
    """Entry of a ledger."""

    time: int
    thread: int
    kind: str
    """``write``, or a scan: ``set protect collect clear send all protect_run take sync``; or ``drain harvest reset``,
    or ``pause throttle_check throttle dirty_limit_update dirty_limit_sleep pace``.
    """
    page: int
    """Page of a write or scan; thread of ``drain harvest reset dirty_limit_update dirty_limit_sleep pace``, by the
    buffer, ring or sleep; the throttle of ``throttle_check throttle``; the time of the kick before ``pause``.
    """
    count: int
    """Number: for a write, 1 after a fault, 2 if hardware logged it; for a scan, pages that match; for ``drain harvest
    reset``, entries; for ``throttle_check``, 1 at the start of the throttling; otherwise the duration, ps or µs.
    """


class Mark(NamedTuple):
    """Stamp of the main thread."""

    phase: str
    round: int
    time: int
    scans: int
    """Number of scans in the ledger before the stamp."""
    bitmap: int
    """Number of pages in userspace's bitmap according to the engine."""


class ThrottleRule(NamedTuple):
    """Parameters of a VMM's throttle: times in ps, shares in percent, `limit` in MiB/s."""

    trigger: int
    times: int
    initial: int
    increment: int
    most: int
    check_period: int
    slice: int
    window: int
    limit: int
    ring: int
    """Entries of a dirty ring."""

    def sleep_ps(self, percent: int) -> int:
        """Duration of a sleep of a vCPU."""
        return self.window * percent // 100 if self.window else self.slice * percent // (100 - percent)

    def next_sleep_us(self, before: int, rate: int, fastest: int) -> int:
        """Next sleep of a vCPU that fills its ring, µs, after its dirty rate was measured."""
        gap, fill_us = abs(rate - self.limit), self.ring // 256 * 10**6 // max(1, fastest)
        if gap <= 25:
            return before
        if rate == 0:
            return 0
        percent = 100 * gap // max(rate, self.limit)
        step = int(fill_us * percent / (100 - percent)) if percent > 50 else fill_us // 10
        return min(max(before + (step if rate > self.limit else -step), 0), 99 * fill_us)


class Setting(NamedTuple):
    """Properties of a scenario that the witness needs; times in ps."""

    kind: str
    pages: int
    pages_per_vcpu: int
    vcpus: int
    rounds: int
    """Limit of passes of a migration; rounds of a selftest."""
    block_pages: int
    blocks: bool
    """True if memory is mapped by blocks before it is split."""
    splits_first: bool
    """True if KVM splits a block before the first of its pages is write-protected."""
    write_percent: int
    shared: bool
    initially_set: bool
    page_ps: int = 0
    """Time to send a page."""
    warm_up: int = 0
    downtime: int = 0
    timeout: int = 0
    helpers: int = 0
    dirty_bits: bool = False
    """True if hardware sets dirty bits."""
    buffer: int = 0
    """Capacity of a vCPU's log buffer, pages."""
    rings: bool = False
    throttle_rule: ThrottleRule | None = None
    interval: int = 0
    """Time between two accesses of a vCPU that has idle time; 0: it has none."""
    work: int = 0
    """Part of this time that it computes."""

    @property
    def downtime_pages(self) -> int:
        """Pages that can be sent within the downtime limit."""
        return self.downtime // self.page_ps

    @property
    def migrates(self) -> bool:
        return self.kind == "migration"

    @property
    def sends_all_first(self) -> bool:
        """True without INITIALLY_SET: the log has the changes, not the pages that were never sent."""
        return self.migrates and not self.initially_set


@dataclass
class Account:
    """Counts of a run according to the witness."""

    collected: list[int] = field(default_factory=list)
    """Pages in the bitmap after each GET."""
    cleared: list[int] = field(default_factory=list)
    """Pages that CLEAR cleared after each GET."""
    sent: list[int] = field(default_factory=list)
    """Pages that each pass sent."""
    left: int = 0
    """Pages that were still to be sent at the switchover."""
    raced: int = 0
    """Writes to a page between its CLEAR and its SEND."""
    faults: int = 0
    writes: int = 0
    split: int = 0
    """Blocks that the guest's writes split."""
    logged: int = 0
    """Writes that hardware logged."""
    full: int = 0
    """Number of times that a log buffer was full when it was emptied."""
    runs: int = 0
    """Runs of entries that were reset."""
    gets_within_pass: int = 0
    """GETs within passes."""
    throttle: int = 0
    """Throttle at the end, percent; 1: vCPUs are limited."""
    sleeps: int = 0
    ring_sleeps: int = 0
    idles: int = 0
    late: int = 0
    """Accesses for which a vCPU idled, and accesses that were late."""
    idle_sleeps: int = 0
    """Sleeps that began while the vCPU was idle."""

    @property
    def passes(self) -> int:
        return len(self.sent)


class Witness:
    """Replay of a ledger."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.account = setting, Account()
        n = setting.pages // WORD
        self.log, self.bitmap = [0] * n, [0] * n
        self.writable = [FULL] * n  # writes do not fault; all memory is writable before the log is enabled
        self.whole = [setting.blocks] * -(-setting.pages // setting.block_pages)
        self.logged = [0] * n  # processed by enabling
        self.logging = False
        self.unsent = [FULL] * n  # written since the last transfer; initially all
        self.written = [0] * n
        self.uncleared = [0] * n  # put into the bitmap by GET, and not cleared since
        self.cleared_in_pass, self.sent_in_pass = [0] * n, [0] * n
        self.dirtied = [0] * n  # written since the last mark
        self.collected_at_get = [0] * n  # in the bitmap after GET
        self.must_collect = [0] * n  # in the log when the last phase ended
        self.buffers: list[list[int]] = [[] for _ in range(setting.vcpus)]
        self.rings: list[list[int]] = [[] for _ in range(setting.vcpus)]
        self.harvested = [0] * setting.vcpus
        self.run: dict[int, list[int]] = {}
        self.collected_within_pass = [0] * n  # in the bitmap after a GET within the pass
        self.returned = [0] * n  # by GET since the last throttle check
        self.log_at_check = [0] * n  # in the log at that check
        self.newly_dirty = self.pages_sent = self.checked_at = self.high_checks = self.fastest = 0
        self.expected_sleeps: list[set[int]] = [set() for _ in range(setting.vcpus)]  # durations of sleep
        self.must_sleep = [0] * setting.vcpus  # 1: after the fault that it may be in; 2: at once
        self.until, self.sleep_us, self.pushed, self.pushed_at_update = ([0] * setting.vcpus for _ in range(4))
        self.next_due, self.idle_until = [-1] * setting.vcpus, [0] * setting.vcpus
        self.due = ("start", 0)
        self.entry: Entry | None = None

    # -- invariants ------------------------------------------------------------------------------------

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            raise InvariantError(f"{text} ({self.entry})")

    def all_within(self, pages_by_word: Sequence[int], *others: Sequence[int], but: str) -> None:
        """Require that every page of one set is in one of the others."""
        for word, pages in enumerate(pages_by_word):
            missing = pages
            for other in others:
                missing &= ~other[word]
            if missing:
                page = WORD * word + (missing & -missing).bit_length() - 1
                raise InvariantError(f"page {page} {but} ({self.entry})")

    # -- the guest -------------------------------------------------------------------------------------

    def write(self, entry: Entry) -> None:
        setting, word, bit = self.setting, entry.page // WORD, 1 << entry.page % WORD
        own_page = entry.page // setting.pages_per_vcpu == entry.thread
        self.require(
            entry.thread < setting.vcpus and (setting.shared or own_page), "a page of another vCPU was written"
        )
        self.require(entry.time >= self.until[entry.thread], "a vCPU wrote in its sleep")
        ready = self.idle_until[entry.thread] + setting.work
        self.require(not setting.interval or entry.time >= ready, "a vCPU wrote before it had computed")
        late = self.must_sleep[entry.thread]
        self.require(not late or (late == 1 and entry.count == 1), "a vCPU wrote before it slept")
        self.must_sleep[entry.thread] = 2 * (late > 0)
        self.account.writes += 1
        self.unsent[word] |= bit
        self.written[word] |= bit
        self.dirtied[word] |= bit
        if not self.logging:
            return
        self.account.raced += bool(self.cleared_in_pass[word] & self.bitmap[word] & bit)
        if entry.count == 0:
            self.require(bool(self.writable[word] & bit), "a write-protected page was written without a fault")
            marked = (self.log[word] | ~self.logged[word]) & bit
            # The rings were harvested, and the guest should be stopped.
            guest_stopped = self.setting.rings and self.due == ("", 0)
            will_be_logged = marked or self.will_reach_log(entry.page) or guest_stopped
            self.require(bool(will_be_logged), "a page was written that is not in the log, and no fault marked it")
            return
        if entry.count == 2:
            self.hardware_write(entry, word, bit)
            return
        self.account.faults += 1
        self.require(not self.buffers[entry.thread], "a fault was handled before the log buffer was emptied")
        if not setting.shared:  # no other vCPU could have made it writable since the fault began
            self.require(not self.writable[word] & bit, "a writable page faulted")
        block = entry.page // setting.block_pages
        if self.whole[block]:
            self.account.split += 1
            self.whole[block] = False
            self.protect_block(block)
        self.writable[word] |= bit
        self.mark_page(entry.thread, entry.page)

    def hardware_write(self, entry: Entry, word: int, bit: int) -> None:
        """Set a dirty bit, and log the page if hardware has a log buffer."""
        setting, buffer = self.setting, self.buffers[entry.thread]
        self.require(setting.dirty_bits, "this hardware does not log writes")
        self.require(not self.writable[word] & bit, "hardware logged a write to a page whose bit was set")
        self.require(not self.whole[entry.page // setting.block_pages], "hardware logged a write to a block")
        self.account.logged += 1
        self.writable[word] |= bit
        if setting.buffer:
            self.require(len(buffer) < setting.buffer, "a log buffer overflowed")
            buffer.append(entry.page)

    def mark_page(self, owner: int, page: int) -> None:
        """Mark a written page in the log, or push it to the vCPU's ring."""
        if self.setting.rings:
            self.rings[owner].append(page)
            self.pushed[owner] += 1
        else:
            self.log[page // WORD] |= 1 << page % WORD

    def will_reach_log(self, page: int) -> bool:
        """True if a page is in a log buffer or a ring, or if a scan of its entry will mark it."""
        bare = self.setting.dirty_bits and not self.setting.buffer
        return bare or any(page in pages for pages in (*self.buffers, *self.rings))

    def pending(self) -> list[int]:
        """Pages of the log buffers and the rings, and pages that a scan of the entries will mark, by word."""
        words = list(self.writable) if self.setting.dirty_bits and not self.setting.buffer else [0] * len(self.log)
        for pages in (*self.buffers, *self.rings):
            for page in pages:
                words[page // WORD] |= 1 << page % WORD
        return words

    # -- log buffers and rings -------------------------------------------------------------------------

    def drain(self, entry: Entry) -> None:
        """Empty a vCPU's log buffer."""
        buffer = self.buffers[entry.page]
        self.require(entry.count == len(buffer), f"the log buffer has {len(buffer)} pages")
        self.account.full += len(buffer) == self.setting.buffer
        for page in buffer:
            self.mark_page(entry.page, page)
        buffer.clear()

    def harvest(self, entry: Entry) -> None:
        """Harvest the new entries of a ring."""
        new = self.rings[entry.page][self.harvested[entry.page] :]
        self.require(entry.count == len(new), f"the ring has {len(new)} new entries")
        self.harvested[entry.page] += len(new)
        for page in new:
            self.log[page // WORD] |= 1 << page % WORD

    def reset(self, entry: Entry) -> None:
        """Reset the next entries of the first harvested ring: as many as lie within 64 pages of each other."""
        owner = next((i for i, harvested in enumerate(self.harvested) if harvested), -1)
        self.require(entry.page == owner, f"the ring of {owner} is the next")
        ring, most = self.rings[owner], self.harvested[owner]
        n = 1
        while n < most and max(ring[: n + 1]) - min(ring[: n + 1]) < WORD:
            n += 1
        self.require(entry.count == n, f"a run of {n} entries is the next")
        self.run[entry.thread], self.rings[owner] = ring[:n], ring[n:]
        self.harvested[owner] -= n
        self.account.runs += 1

    def protect_run(self, thread: int) -> int:
        """Protect the run that a thread removed from a ring; return the number of its pages."""
        pages = set(self.run.pop(thread))
        for page in pages:
            self.forbid(page // WORD, 1 << page % WORD, whole=False)
        return len(pages)

    def protect_block(self, block: int) -> None:
        first, last = (n * self.setting.block_pages // WORD for n in (block, block + 1))
        for word in range(first, min(last, len(self.writable))):
            self.writable[word] = 0

    # -- a guest that is throttled ---------------------------------------------------------------------

    def rule(self) -> ThrottleRule:
        rule = self.setting.throttle_rule
        if rule is None:
            raise InvariantError(f"this guest is not throttled ({self.entry})")
        return rule

    def throttle_check(self, entry: Entry) -> None:
        """Check the guest by the pages that GET returned, if a check is due."""
        unreturned = [known & log for known, log in zip(self.log_at_check, self.log, strict=True)]
        self.all_within(
            unreturned, self.returned, but="was in the log at the last throttle check, and GET did not return it"
        )
        self.returned, self.log_at_check = [0] * len(self.returned), self.log.copy()
        rule, account = self.rule(), self.account
        if entry.count or entry.time - self.checked_at >= rule.check_period:
            if not entry.count and self.newly_dirty * 100 > self.pages_sent * rule.trigger:
                self.high_checks += 1
            if self.high_checks == rule.times:
                self.high_checks = 0
                raised = min(account.throttle + rule.increment, rule.most, 99) if account.throttle else rule.initial
                account.throttle = 1 if rule.limit else raised
            self.checked_at, self.newly_dirty, self.pages_sent = entry.time, 0, 0
        self.require(entry.page == account.throttle, f"the throttle is {account.throttle} %")

    def throttle(self, entry: Entry) -> None:
        """Expect a sleep of all vCPUs."""
        rule, time = self.rule(), self.rule().sleep_ps(self.account.throttle)
        self.require(not rule.limit and entry.thread > self.setting.vcpus, "not the thread that throttles vCPUs")
        self.require((entry.page, entry.count) == (self.account.throttle, time), f"vCPUs sleep for {time} ps")
        for vcpu, durations in enumerate(self.expected_sleeps):
            durations.add(time)
            if time and self.until[vcpu] <= entry.time:
                idle = self.idle_until[vcpu] > entry.time
                self.must_sleep[vcpu] = 2 if idle else max(1, self.must_sleep[vcpu])

    def pause(self, entry: Entry) -> None:
        """Let a vCPU sleep after the time of a kick."""
        self.require(entry.count in self.expected_sleeps[entry.thread], "no throttle requires this sleep")
        self.expected_sleeps[entry.thread].clear()
        self.must_sleep[entry.thread] = 0
        self.until[entry.thread] = entry.time + entry.page + entry.count
        self.account.sleeps += 1
        self.account.idle_sleeps += self.idle_until[entry.thread] > entry.time

    def pace(self, entry: Entry) -> None:
        """Let a vCPU idle until it must compute for its next access; one that is late continues at once."""
        vcpu, interval = entry.thread, self.setting.interval
        self.require(interval > 0 and entry.page == vcpu < self.setting.vcpus, "not a vCPU with idle time")
        self.require(entry.time >= max(self.until[vcpu], self.idle_until[vcpu]), "a vCPU went on in its sleep")
        due = self.next_due[vcpu] if self.next_due[vcpu] >= 0 else entry.time
        self.require(entry.count == max(0, due - entry.time), f"its next access is due at {due} ps")
        self.next_due[vcpu], self.idle_until[vcpu] = due + interval, entry.time + entry.count
        self.account.idles += entry.count > 0
        self.account.late += due < entry.time

    def dirty_limit_update(self, entry: Entry) -> None:
        """Measure a vCPU's dirty rate in MiB (256 pages of 4 KiB)."""
        rule, vcpu = self.rule(), entry.page
        rate = (self.pushed[vcpu] - self.pushed_at_update[vcpu]) // 256 * 10**12 // rule.slice
        self.pushed_at_update[vcpu], self.fastest = self.pushed[vcpu], max(self.fastest, rate)
        if self.account.throttle:
            self.sleep_us[vcpu] = rule.next_sleep_us(self.sleep_us[vcpu], rate, self.fastest)
        self.require(entry.count == self.sleep_us[vcpu], f"it sleeps for {self.sleep_us[vcpu]} us")

    def dirty_limit_sleep(self, entry: Entry) -> None:
        """Let a vCPU sleep whose ring was full."""
        self.require(entry.page == entry.thread and entry.count == self.sleep_us[entry.thread], "not its sleep")
        self.until[entry.thread] = entry.time + entry.count * 10**6
        self.account.ring_sleeps += entry.count > 0

    # -- scans -----------------------------------------------------------------------------------------

    def scan(self, entry: Entry) -> None:
        setting, word = self.setting, entry.page // WORD
        if entry.kind == "protect_run":
            pages = self.protect_run(entry.thread)
            self.require(entry.count == pages, f"the run has {pages} pages")
            return
        self.require(0 <= entry.page < setting.pages, "a scan left the memory")
        self.require(entry.page % WORD == 0, "a scan began within a word")
        clears = entry.kind == "clear"
        self.require(
            setting.vcpus <= entry.thread <= setting.vcpus + setting.helpers * clears,
            "a thread scanned the log that must not scan it",
        )
        pages = getattr(self, entry.kind)(word, FULL)
        self.require(entry.count == pages.bit_count(), f"the scan must find {pages.bit_count()} pages")

    def set(self, word: int, pages: int) -> int:
        self.logging = True
        self.log[word] = self.logged[word] = FULL
        return 0

    def protect(self, word: int, pages: int) -> int:
        self.logging = True
        self.logged[word] = FULL
        return self.forbid(word, self.writable[word], whole=True)

    def forbid(self, word: int, pages: int, whole: bool) -> int:
        """Write-protect pages of a word; return the pages that have a separate entry."""
        block = word * WORD // self.setting.block_pages
        if self.setting.splits_first:
            self.whole[block] = False
        if not self.whole[block]:
            self.writable[word] &= ~pages
            return pages
        if pages or whole:
            self.protect_block(block)
        return 0

    def collect(self, word: int, pages: int) -> int:
        dirty = self.log[word]
        self.uncleared[word] |= dirty & ~self.bitmap[word]
        self.add_to_bitmap(word, dirty)
        return dirty

    def add_to_bitmap(self, word: int, dirty: int) -> None:
        """Add the pages that GET returned to the bitmap; the word may be cleared once more."""
        self.newly_dirty += (dirty & ~self.bitmap[word]).bit_count()
        self.bitmap[word] |= dirty
        self.returned[word] = FULL
        self.cleared_in_pass[word] = 0
        if self.due[0] == "sent":
            self.collected_within_pass[word] |= self.bitmap[word]
            self.account.gets_within_pass += word == 0

    def take(self, word: int, pages: int) -> int:
        """Move userspace's log to the pages that it sends next."""
        dirty, self.log[word] = self.log[word], 0
        unprotected = dirty & self.writable[word]
        for page in (WORD * word + i for i in range(WORD) if unprotected >> i & 1):
            self.require(self.will_reach_log(page), f"page {page} left the log, and can be written without logging")
        self.add_to_bitmap(word, dirty)
        return dirty

    def sync(self, word: int, pages: int) -> int:
        """Mark the pages whose entries have the dirty bit."""
        dirty = 0 if self.whole[word * WORD // self.setting.block_pages] else self.writable[word]
        self.log[word] |= dirty
        return dirty

    def clear(self, word: int, pages: int) -> int:
        self.require(not self.cleared_in_pass[word] & pages, "a word was cleared twice after one GET")
        self.cleared_in_pass[word] |= pages
        self.uncleared[word] &= ~pages
        cleared = self.log[word] & self.bitmap[word] & pages
        self.log[word] &= ~cleared
        self.account.cleared[-1] += cleared.bit_count()
        self.forbid(word, cleared, whole=False)
        return cleared

    def send(self, word: int, pages: int) -> int:
        sent, self.bitmap[word] = self.bitmap[word], 0
        self.pages_sent += sent.bit_count()
        if self.setting.migrates:
            self.require(not self.uncleared[word] & sent, "a page was sent that was not cleared after GET")
            self.require(not self.sent_in_pass[word] & sent, "a page was sent twice in one pass")
            self.sent_in_pass[word] |= sent
            self.unsent[word] &= ~sent
        return sent

    def all(self, word: int, pages: int) -> int:
        self.bitmap[word] = FULL
        return 0

    # -- phases ----------------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        """End a phase after the last scan before its stamp."""
        self.require((mark.phase, mark.round) == self.due, f"{self.due} must follow, not {mark.phase, mark.round}")
        size = sum(word.bit_count() for word in self.bitmap)
        self.require(mark.bitmap == size, f"{mark.bitmap} pages in the bitmap at {mark}, not {size}")
        getattr(self, f"at_{mark.phase}", lambda _: None)(mark)
        self.due = self.after(mark, size)
        self.must_collect = [log | later for log, later in zip(self.log, self.pending(), strict=True)]
        self.dirtied = [0] * len(self.dirtied)

    def after(self, mark: Mark, size: int) -> tuple[str, int]:
        """Return the phase that must end next."""
        setting = self.setting
        follows = {"start": ("populated", 0), "populated": ("enabled", 0)}
        if setting.migrates:
            follows = {"start": ("undisturbed", 0), "undisturbed": ("enabled", 0), "enabled": ("collected", 1),
                       "switchover": ("left", 0), "left": ("", 0)}  # fmt: skip
        if mark.phase in follows:
            return follows[mark.phase]
        if mark.phase == "collected":
            to_send = setting.pages if mark.round == 1 and setting.sends_all_first else size
            return ("sent", mark.round) if to_send > setting.downtime_pages else ("switchover", 0)
        if mark.phase == "sent":
            ended = mark.round == setting.rounds or mark.time >= setting.timeout
            return ("switchover", 0) if ended else ("collected", mark.round + 1)
        first_phase = {"dirty_log_perf_test": "dirtied", "clear_under_load": "rested"}[setting.kind]
        if mark.phase == first_phase:
            return "cleared", mark.round
        return (first_phase, mark.round + 1) if mark.round < setting.rounds else ("", 0)

    def at_enabled(self, mark: Mark) -> None:
        self.require(all(word == FULL for word in self.logged), "enabling omitted a word")

    def at_collected(self, mark: Mark) -> None:
        self.all_within(self.must_collect, self.bitmap, but="was in the log when GET began, and GET did not return it")
        self.account.collected.append(sum(word.bit_count() for word in self.bitmap))
        everything = self.setting.sends_all_first and mark.round == 1
        self.collected_at_get = [FULL] * len(self.bitmap) if everything else self.bitmap.copy()
        self.sent_in_pass, self.collected_within_pass = [0] * len(self.bitmap), [0] * len(self.bitmap)

    def at_sent(self, mark: Mark) -> None:
        self.all_within(self.bitmap, self.collected_within_pass, but="was collected, and is unsent after the pass")
        self.all_within(self.collected_at_get, self.sent_in_pass, but="was collected, and not sent")
        self.all_within(
            self.sent_in_pass, self.collected_at_get, self.collected_within_pass, but="was sent, and not collected"
        )
        self.all_within(
            self.collected_within_pass, self.sent_in_pass, self.bitmap, but="was collected within the pass, and is lost"
        )
        self.account.sent.append(sum(word.bit_count() for word in self.sent_in_pass))
        known = self.log, self.bitmap, self.pending()
        self.all_within(self.unsent, *known, but="was written since it was sent, and is not in the log")
        self.new_round()

    def at_left(self, mark: Mark) -> None:
        self.all_within(
            self.must_collect, self.bitmap, but="was in the log at the switchover, and is not among the pages left"
        )
        self.all_within(self.unsent, self.bitmap, but="was written since it was sent, and is not among the pages left")
        self.account.left = mark.bitmap

    def at_dirtied(self, mark: Mark) -> None:
        """Check the log after all vCPUs have accessed all of their pages once, and are parked."""
        pages = sum(word.bit_count() for word in self.dirtied)
        self.require(pages == self.setting.pages * self.setting.write_percent // 100, "not every page was written")
        self.all_within(self.dirtied, self.log, self.pending(), but="was written, and is not in the log")
        self.require(not any(self.buffers), "a vCPU is parked, and its log buffer was not emptied")
        self.new_round()

    def at_rested(self, mark: Mark) -> None:
        """Begin a round; the guest continues to write."""
        self.new_round()

    def at_cleared(self, mark: Mark) -> None:
        self.all_within(self.must_collect, self.bitmap, but="was in the log when GET began, and GET did not return it")
        self.all_within(self.bitmap, self.cleared_in_pass, but="was collected, and not cleared")
        self.account.collected.append(sum(word.bit_count() for word in self.bitmap))

    def new_round(self) -> None:
        self.cleared_in_pass = [0] * len(self.bitmap)
        self.account.cleared.append(0)

    # -- a complete run --------------------------------------------------------------------------------

    def replay(self, ledger: Iterable[Sequence[int | str]], marks: Sequence[Mark]) -> Account:
        """Check the invariants of a complete run.

        A mark follows the scan before it immediately; a mark of the guest's phases immediately precedes the next scan.
        """
        pending, scans = list(marks), 0
        self.new_round()

        def pass_marks(early: bool) -> None:
            while pending and pending[0].scans == scans and (early <= (pending[0].phase not in ("dirtied", "rested"))):
                self.mark(pending.pop(0))

        pass_marks(early=True)
        for row in ledger:
            entry = Entry(*row)  # type: ignore[arg-type]
            if entry.kind in NON_SCANS:
                self.entry = entry
                getattr(self, entry.kind)(entry)
            else:
                pass_marks(early=False)
                self.entry = entry
                self.scan(entry)
                scans += 1
                pass_marks(early=True)
        pass_marks(early=False)
        self.require(not pending and self.due == ("", 0), f"the run ended when {self.due} was due")
        if self.setting.migrates:
            known = self.log, self.bitmap, self.pending()
            self.all_within(self.unsent, *known, but="was written last, and is neither sent nor left")
        writable_pages = self.setting.pages * self.setting.write_percent // 100
        self.require(sum(word.bit_count() for word in self.written) <= writable_pages, "read-only pages were written")
        return self.account

    def times(self, spent: Sequence[Sequence[int]], ends: Sequence[int], idle: int, marks: Sequence[Mark]) -> None:
        """Check the sums of times: of each thread by activity, and of the sender by the pages that it sent."""
        for thread, (parts, end) in enumerate(zip(spent, ends, strict=True)):
            self.require(sum(parts) == end and min(parts) >= 0, f"the time of thread {thread} does not add up to {end}")
        at = [mark.time for mark in marks]
        self.require(at == sorted(at), "a phase ended before the one before it")
        if self.setting.migrates:
            sending = [n * self.setting.page_ps for n in self.account.sent]
            slept = spent[self.setting.vcpus][idle]
            expected = self.setting.warm_up + sum(sending)
            self.require(
                slept == expected or (slept > expected and self.setting.helpers > 0),
                "the sender's idle time is not that of the link",
            )
            began = {mark.round: mark.time for mark in marks if mark.phase == "collected"}
            for mark in marks:
                if mark.phase == "sent":
                    duration = mark.time - began[mark.round]
                    self.require(duration >= sending[mark.round - 1], f"pass {mark.round} was faster than the link")
