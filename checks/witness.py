# SPDX-License-Identifier: BSD-3-Clause
"""A witness: what KVM's dirty log and userspace's bitmap must hold, from who wrote and who walked, and nothing else.

It knows no steps, programs or engines. It is told, in order, which page the guest wrote, which word of 64 pages a
thread walked, and how many entries of a log buffer or a dirty ring were dealt with; by KVM's own rules it says how many
pages each walk must find, and it holds the run to what a migration owes its guest. The rules, for one memslot:

- Writing a write-protected page is a fault; handling it marks the page in the log and makes it writable. Writing a
  writable page leaves no mark: so while the log is on, every writable page must be in it.
- Enabling the log write-protects all pages; with KVM_DIRTY_LOG_INITIALLY_SET it marks all of them instead.
- KVM_GET_DIRTY_LOG gives the log. With manual protection it changes nothing; without, it also clears what it gives.
- KVM_CLEAR_DIRTY_LOG gets a bitmap from userspace: of the pages that are both in it and in the log, it takes the marks
  away and write-protects them.
- Where hardware sets dirty bits, writing a page whose bit is clear is no fault: the bit is set, and protecting a page
  is to clear it. Hardware with a log buffer writes the page down there; when the vCPU leaves the guest, at the latest
  when the buffer is full, its pages are marked in the log. Without a buffer, a walk marks what has its bit set.
- With dirty rings nothing is marked: the page goes into its vCPU's ring. Userspace harvests the rings in order into a
  log of its own; the reset protects what was harvested, run by run of entries within 64 pages.
- A VMM may judge what the guest dirtied since it last did beside what was sent, and throttle it: then its vCPUs sleep
  again and again, each before its next access. Or it limits each by its ring, and who fills that sleeps.
- A block (huge page) has one entry. Protecting any of its pages protects all; handling a write to it replaces the
  block by a table that maps the written page only, unless KVM has split it eagerly, which changes no permission.

Sources: Documentation/virt/kvm/api.rst, sections 4.8, 4.117, 7.18 and 8.29; virt/kvm/kvm_main.c
kvm_get_dirty_log_protect and kvm_clear_dirty_log_protect; virt/kvm/dirty_ring.c kvm_dirty_ring_reset;
arch/x86/kvm/vmx/vmx.c vmx_flush_pml_buffer; QEMU 10.0, migration/ram.c, migration/cpu-throttle.c, system/dirtylimit.c.

Sets of pages are kept by word, as integers of 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

WORD = 64
FULL = (1 << WORD) - 1


BESIDE_WALKS = ("write", "drain", "harvest", "reset", "pause", "judge", "throttle", "limit", "nap")
"""Kinds of entry that are no walk."""


class Violation(AssertionError):  # noqa: N818  # of a law; no error of the witness's
    """A law that the run broke."""


class Entry(NamedTuple):
    """One entry of a ledger."""

    time: int
    thread: int
    what: str
    """``write``, or a walk: ``set protect collect clear send all protect_run take sync``; or ``drain harvest
    reset``, or ``pause judge throttle limit nap``."""
    page: int
    """Of ``drain harvest reset limit nap`` the thread whose buffer, ring or sleep it was; of ``judge throttle`` the
    throttle; of ``pause`` what a kick takes before it."""
    count: int
    """Of a write, 1 if a fault was handled for it, 2 if hardware noticed it; of a walk, the pages that it found; of
    ``drain harvest reset`` how many entries; of ``judge`` 1 if it only begins; else for how long, ps or µs."""


class Mark(NamedTuple):
    """A moment that the main thread wrote down."""

    phase: str
    round: int
    time: int
    walks: int
    """Walks in the ledger before it."""
    bitmap: int
    """Pages that the engine says stood in userspace's bitmap."""


class Slow(NamedTuple):
    """By what a VMM throttles its guest: times in ps, shares in percent, `limit` in MiB/s."""

    trigger: int
    times: int
    initial: int
    increment: int
    most: int
    judge_every: int
    slice: int
    window: int
    limit: int
    ring: int
    """Entries of a dirty ring."""

    def asleep(self, percent: int) -> int:
        """For how long a vCPU sleeps at once."""
        return self.window * percent // 100 if self.window else self.slice * percent // (100 - percent)

    def nap(self, before: int, rate: int, fastest: int) -> int:
        """For how long one sleeps that filled its ring, µs, after a look at its rate."""
        gap, fills = abs(rate - self.limit), self.ring // 256 * 10**6 // max(1, fastest)
        if gap <= 25:
            return before
        if rate == 0:
            return 0
        part = 100 * gap // max(rate, self.limit)
        step = int(fills * part / (100 - part)) if part > 50 else fills // 10
        return min(max(before + (step if rate > self.limit else -step), 0), 99 * fills)


class Setting(NamedTuple):
    """What the witness must know of a scenario; times in ps."""

    kind: str
    pages: int
    pages_per_vcpu: int
    vcpus: int
    rounds: int
    """Passes of a migration at most; rounds of a selftest."""
    block_pages: int
    blocks: bool
    """Whether memory is mapped by blocks before it is split."""
    splits_first: bool
    """Whether KVM splits a block before the first of its pages is write-protected."""
    write_percent: int
    shared: bool
    initially_set: bool
    page_ps: int = 0
    """To send a page."""
    warm_up: int = 0
    downtime: int = 0
    timeout: int = 0
    helpers: int = 0
    dirty_bits: bool = False
    """Whether hardware sets them."""
    buffer: int = 0
    """Pages that a vCPU's log buffer takes."""
    rings: bool = False
    slow: Slow | None = None

    @property
    def few(self) -> int:
        """Pages that can be sent within the downtime."""
        return self.downtime // self.page_ps

    @property
    def migrates(self) -> bool:
        return self.kind == "migration"

    @property
    def sends_all_first(self) -> bool:
        """Without INITIALLY_SET the log says what changed, not what was never sent."""
        return self.migrates and not self.initially_set


@dataclass
class Account:
    """What a run came to, by the witness."""

    found: list[int] = field(default_factory=list)
    """Pages that each GET added to the bitmap."""
    cleared: list[int] = field(default_factory=list)
    """Pages that CLEAR found after each GET."""
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
    """Writes that hardware noticed."""
    full: int = 0
    """Times that a log buffer had no room left when it was emptied."""
    runs: int = 0
    """That were reset."""
    looks: int = 0
    """GETs within passes."""
    throttle: int = 0
    """At the end, percent; 1: vCPUs are limited."""
    sleeps: int = 0
    naps: int = 0

    @property
    def passes(self) -> int:
        return len(self.sent)


class Witness:
    """Replays a ledger."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.account = setting, Account()
        n = setting.pages // WORD
        self.log, self.bitmap = [0] * n, [0] * n
        self.writable = [FULL] * n  # a write is no fault; before the log is on, all memory is mapped so
        self.whole = [setting.blocks] * -(-setting.pages // setting.block_pages)
        self.logged = [0] * n  # enabling has been here
        self.logging = False
        self.stale = [FULL] * n  # written since it was sent last; nothing was sent yet
        self.written = [0] * n
        self.fresh = [0] * n  # put into the bitmap by GET, and no CLEAR has been there since
        self.cleared_in_pass, self.sent_in_pass = [0] * n, [0] * n
        self.dirtied = [0] * n  # written since the last mark
        self.gathered = [0] * n  # in the bitmap when GET had been done
        self.owed = [0] * n  # in the log when the last phase ended
        self.buffers: list[list[int]] = [[] for _ in range(setting.vcpus)]
        self.rings: list[list[int]] = [[] for _ in range(setting.vcpus)]
        self.harvested = [0] * setting.vcpus
        self.run: dict[int, list[int]] = {}
        self.more = [0] * n  # in the bitmap after a GET within the pass
        self.got, self.known = [0] * n, [0] * n  # given by GET since the guest was judged last; in the log then
        self.came = self.went = self.judged_at = self.high = self.fastest = 0
        self.told: list[set[int]] = [set() for _ in range(setting.vcpus)]  # for how long to sleep
        self.must_sleep = [0] * setting.vcpus  # 1: but for the fault that it may be in; 2: and that is over
        self.until, self.nap_us, self.pushed, self.seen = ([0] * setting.vcpus for _ in range(4))
        self.due = ("start", 0)
        self.entry: Entry | None = None

    # -- laws ------------------------------------------------------------------------------------------

    def require(self, law: bool, text: str) -> None:
        if not law:
            raise Violation(f"{text} ({self.entry})")

    def all_within(self, some: Sequence[int], *others: Sequence[int], but: str) -> None:
        """Every page of one set is in one of the others."""
        for word, pages in enumerate(some):
            rest = pages
            for other in others:
                rest &= ~other[word]
            if rest:
                page = WORD * word + (rest & -rest).bit_length() - 1
                raise Violation(f"page {page} {but} ({self.entry})")

    # -- the guest -------------------------------------------------------------------------------------

    def write(self, entry: Entry) -> None:
        setting, word, bit = self.setting, entry.page // WORD, 1 << entry.page % WORD
        mine = entry.page // setting.pages_per_vcpu == entry.thread
        self.require(entry.thread < setting.vcpus and (setting.shared or mine), "somebody else's page was written")
        self.require(entry.time >= self.until[entry.thread], "a vCPU wrote in its sleep")
        late = self.must_sleep[entry.thread]
        self.require(not late or (late == 1 and entry.count == 1), "a vCPU wrote before it slept")
        self.must_sleep[entry.thread] = 2 * (late > 0)
        self.account.writes += 1
        self.stale[word] |= bit
        self.written[word] |= bit
        self.dirtied[word] |= bit
        if not self.logging:
            return
        self.account.raced += bool(self.cleared_in_pass[word] & self.bitmap[word] & bit)
        if entry.count == 0:
            self.require(bool(self.writable[word] & bit), "a write-protected page was written without a fault")
            marked = (self.log[word] | ~self.logged[word]) & bit
            over = self.setting.rings and self.due == ("", 0)  # rings were taken, and the guest should stand still
            known = marked or self.found_later(entry.page) or over
            self.require(bool(known), "a page was written that is not in the log, and no fault marked it")
            return
        if entry.count == 2:
            self.notice(entry, word, bit)
            return
        self.account.faults += 1
        self.require(not self.buffers[entry.thread], "a fault was handled, and the log buffer was not emptied")
        if not setting.shared:  # nobody else could have made it writable since the fault began
            self.require(not self.writable[word] & bit, "a writable page faulted")
        block = entry.page // setting.block_pages
        if self.whole[block]:
            self.account.split += 1
            self.whole[block] = False
            self.protect_block(block)
        self.writable[word] |= bit
        self.mark_page(entry.thread, entry.page)

    def notice(self, entry: Entry, word: int, bit: int) -> None:
        """Hardware sets a dirty bit, and writes the page down if it can."""
        setting, buffer = self.setting, self.buffers[entry.thread]
        self.require(setting.dirty_bits, "there is no hardware that notices writes")
        self.require(not self.writable[word] & bit, "hardware noticed a write to a page whose bit was set")
        self.require(not self.whole[entry.page // setting.block_pages], "hardware noticed a write to a block")
        self.account.logged += 1
        self.writable[word] |= bit
        if setting.buffer:
            self.require(len(buffer) < setting.buffer, "a log buffer overflowed")
            buffer.append(entry.page)

    def mark_page(self, owner: int, page: int) -> None:
        """KVM learns of a write: by the log, or by the vCPU's ring."""
        if self.setting.rings:
            self.rings[owner].append(page)
            self.pushed[owner] += 1
        else:
            self.log[page // WORD] |= 1 << page % WORD

    def found_later(self, page: int) -> bool:
        """Whether a page is in a log buffer or a ring, or its entry itself will tell."""
        bare = self.setting.dirty_bits and not self.setting.buffer
        return bare or any(page in pages for pages in (*self.buffers, *self.rings))

    def pending(self) -> list[int]:
        """Pages of the log buffers and the rings, and those whose entries will tell, by word."""
        words = list(self.writable) if self.setting.dirty_bits and not self.setting.buffer else [0] * len(self.log)
        for pages in (*self.buffers, *self.rings):
            for page in pages:
                words[page // WORD] |= 1 << page % WORD
        return words

    # -- log buffers and rings -------------------------------------------------------------------------

    def drain(self, entry: Entry) -> None:
        """A vCPU's log buffer is emptied."""
        buffer = self.buffers[entry.page]
        self.require(entry.count == len(buffer), f"the log buffer has {len(buffer)} pages")
        self.account.full += len(buffer) == self.setting.buffer
        for page in buffer:
            self.mark_page(entry.page, page)
        buffer.clear()

    def harvest(self, entry: Entry) -> None:
        """Userspace takes over what is new in a ring."""
        new = self.rings[entry.page][self.harvested[entry.page] :]
        self.require(entry.count == len(new), f"the ring has {len(new)} new entries")
        self.harvested[entry.page] += len(new)
        for page in new:
            self.log[page // WORD] |= 1 << page % WORD

    def reset(self, entry: Entry) -> None:
        """The next entries of the first ring that has any harvested; as many as lie within 64 pages of each other."""
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
        """What a thread took out of a ring; returns how many pages that are."""
        pages = set(self.run.pop(thread))
        for page in pages:
            self.forbid(page // WORD, 1 << page % WORD, whole=False)
        return len(pages)

    def protect_block(self, block: int) -> None:
        first, last = (n * self.setting.block_pages // WORD for n in (block, block + 1))
        for word in range(first, min(last, len(self.writable))):
            self.writable[word] = 0

    # -- a guest that is slowed down -------------------------------------------------------------------

    def slow(self) -> Slow:
        slow = self.setting.slow
        if slow is None:
            raise Violation(f"nobody slows this guest down ({self.entry})")
        return slow

    def judge(self, entry: Entry) -> None:
        """The guest is judged, if that is due, by what GET has just given."""
        still = [known & log for known, log in zip(self.known, self.log, strict=True)]
        self.all_within(still, self.got, but="was in the log when the guest was last judged, and GET left it out")
        self.got, self.known = [0] * len(self.got), self.log.copy()
        slow, account = self.slow(), self.account
        if entry.count or entry.time - self.judged_at >= slow.judge_every:
            if not entry.count and self.came * 100 > self.went * slow.trigger:
                self.high += 1
            if self.high == slow.times:
                self.high = 0
                more = min(account.throttle + slow.increment, slow.most, 99) if account.throttle else slow.initial
                account.throttle = 1 if slow.limit else more
            self.judged_at, self.came, self.went = entry.time, 0, 0
        self.require(entry.page == account.throttle, f"the throttle is {account.throttle} %")

    def throttle(self, entry: Entry) -> None:
        """All vCPUs are told to sleep."""
        slow, time = self.slow(), self.slow().asleep(self.account.throttle)
        self.require(not slow.limit and entry.thread > self.setting.vcpus, "not who throttles vCPUs")
        self.require((entry.page, entry.count) == (self.account.throttle, time), f"vCPUs sleep for {time} ps")
        for vcpu, told in enumerate(self.told):
            told.add(time)
            if time and self.until[vcpu] <= entry.time:
                self.must_sleep[vcpu] = max(1, self.must_sleep[vcpu])

    def pause(self, entry: Entry) -> None:
        """A vCPU sleeps, after what a kick takes."""
        self.require(entry.count in self.told[entry.thread], "nobody told a vCPU to sleep so")
        self.told[entry.thread].clear()
        self.must_sleep[entry.thread] = 0
        self.until[entry.thread] = entry.time + entry.page + entry.count
        self.account.sleeps += 1

    def limit(self, entry: Entry) -> None:
        """A vCPU's rate is looked at: by 256 pages of 4 KiB, which are a MiB."""
        slow, vcpu = self.slow(), entry.page
        rate = (self.pushed[vcpu] - self.seen[vcpu]) // 256 * 10**12 // slow.slice
        self.seen[vcpu], self.fastest = self.pushed[vcpu], max(self.fastest, rate)
        if self.account.throttle:
            self.nap_us[vcpu] = slow.nap(self.nap_us[vcpu], rate, self.fastest)
        self.require(entry.count == self.nap_us[vcpu], f"it naps for {self.nap_us[vcpu]} us")

    def nap(self, entry: Entry) -> None:
        """A vCPU whose ring was full sleeps."""
        self.require(entry.page == entry.thread and entry.count == self.nap_us[entry.thread], "not its nap")
        self.until[entry.thread] = entry.time + entry.count * 10**6
        self.account.naps += entry.count > 0

    # -- walks -----------------------------------------------------------------------------------------

    def walk(self, entry: Entry) -> None:
        setting, word = self.setting, entry.page // WORD
        if entry.what == "protect_run":
            found = self.protect_run(entry.thread)
            self.require(entry.count == found, f"the run has {found} pages")
            return
        self.require(0 <= entry.page < setting.pages, "a walk left the memory")
        self.require(entry.page % WORD == 0, "a walk began within a word")
        clears = entry.what == "clear"
        self.require(
            setting.vcpus <= entry.thread <= setting.vcpus + setting.helpers * clears, "a stranger walked the log"
        )
        found = getattr(self, entry.what)(word, FULL)
        self.require(entry.count == found.bit_count(), f"the walk must find {found.bit_count()} pages")

    def set(self, word: int, pages: int) -> int:
        self.logging = True
        self.log[word] = self.logged[word] = FULL
        return 0

    def protect(self, word: int, pages: int) -> int:
        self.logging = True
        self.logged[word] = FULL
        return self.forbid(word, self.writable[word], whole=True)

    def forbid(self, word: int, pages: int, whole: bool) -> int:
        """Write-protect pages of a word; returns those that have an entry of their own."""
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
        found = self.log[word]
        self.fresh[word] |= found & ~self.bitmap[word]
        self.gets(word, found)
        return found

    def gets(self, word: int, found: int) -> None:
        """GET gave pages of a word, which may be cleared once more."""
        self.came += (found & ~self.bitmap[word]).bit_count()
        self.bitmap[word] |= found
        self.got[word] = FULL
        self.cleared_in_pass[word] = 0
        if self.due[0] == "sent":
            self.more[word] |= self.bitmap[word]
            self.account.looks += word == 0

    def take(self, word: int, pages: int) -> int:
        """Userspace's log becomes what it sends next."""
        found, self.log[word] = self.log[word], 0
        unseen = found & self.writable[word]
        for page in (WORD * word + i for i in range(WORD) if unseen >> i & 1):
            self.require(self.found_later(page), f"page {page} is taken out of the log, and can be written unseen")
        self.gets(word, found)
        return found

    def sync(self, word: int, pages: int) -> int:
        """What entries say of writes."""
        found = 0 if self.whole[word * WORD // self.setting.block_pages] else self.writable[word]
        self.log[word] |= found
        return found

    def clear(self, word: int, pages: int) -> int:
        self.require(not self.cleared_in_pass[word] & pages, "a word was cleared twice after one GET")
        self.cleared_in_pass[word] |= pages
        self.fresh[word] &= ~pages
        found = self.log[word] & self.bitmap[word] & pages
        self.log[word] &= ~found
        self.account.cleared[-1] += found.bit_count()
        self.forbid(word, found, whole=False)
        return found

    def send(self, word: int, pages: int) -> int:
        found, self.bitmap[word] = self.bitmap[word], 0
        self.went += found.bit_count()
        if self.setting.migrates:
            self.require(not self.fresh[word] & found, "a page was sent that GET gave and no CLEAR had seen since")
            self.require(not self.sent_in_pass[word] & found, "a page was sent twice in one pass")
            self.sent_in_pass[word] |= found
            self.stale[word] &= ~found
        return found

    def all(self, word: int, pages: int) -> int:
        self.bitmap[word] = FULL
        return 0

    # -- phases ----------------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        """A phase ends: right behind the last walk before."""
        self.require((mark.phase, mark.round) == self.due, f"{self.due} must follow, not {mark.phase, mark.round}")
        size = sum(word.bit_count() for word in self.bitmap)
        self.require(mark.bitmap == size, f"{mark.bitmap} pages in the bitmap at {mark}, not {size}")
        getattr(self, f"at_{mark.phase}", lambda _: None)(mark)
        self.due = self.after(mark, size)
        self.owed = [log | later for log, later in zip(self.log, self.pending(), strict=True)]
        self.dirtied = [0] * len(self.dirtied)

    def after(self, mark: Mark, size: int) -> tuple[str, int]:
        """Which phase must end next."""
        setting = self.setting
        follows = {"start": ("populated", 0), "populated": ("enabled", 0)}
        if setting.migrates:
            follows = {"start": ("undisturbed", 0), "undisturbed": ("enabled", 0), "enabled": ("collected", 1),
                       "switchover": ("left", 0), "left": ("", 0)}  # fmt: skip
        if mark.phase in follows:
            return follows[mark.phase]
        if mark.phase == "collected":
            much = setting.pages if mark.round == 1 and setting.sends_all_first else size
            return ("sent", mark.round) if much > setting.few else ("switchover", 0)
        if mark.phase == "sent":
            over = mark.round == setting.rounds or mark.time >= setting.timeout
            return ("switchover", 0) if over else ("collected", mark.round + 1)
        begun = {"dirty_log_perf_test": "dirtied", "clear_under_load": "rested"}[setting.kind]
        if mark.phase == begun:
            return "cleared", mark.round
        return (begun, mark.round + 1) if mark.round < setting.rounds else ("", 0)

    def at_enabled(self, mark: Mark) -> None:
        self.require(all(word == FULL for word in self.logged), "enabling left out a word")

    def at_collected(self, mark: Mark) -> None:
        self.all_within(self.owed, self.bitmap, but="was in the log when GET began, and GET did not give it")
        self.account.found.append(sum(word.bit_count() for word in self.bitmap))
        everything = self.setting.sends_all_first and mark.round == 1
        self.gathered = [FULL] * len(self.bitmap) if everything else self.bitmap.copy()
        self.sent_in_pass, self.more = [0] * len(self.bitmap), [0] * len(self.bitmap)

    def at_sent(self, mark: Mark) -> None:
        self.all_within(self.bitmap, self.more, but="was collected, and is unsent after the pass")
        self.all_within(self.gathered, self.sent_in_pass, but="was collected, and not sent")
        self.all_within(self.sent_in_pass, self.gathered, self.more, but="was sent, and not collected")
        self.all_within(self.more, self.sent_in_pass, self.bitmap, but="was collected within the pass, and is lost")
        self.account.sent.append(sum(word.bit_count() for word in self.sent_in_pass))
        known = self.log, self.bitmap, self.pending()
        self.all_within(self.stale, *known, but="was written since it was sent, and the log does not know")
        self.new_round()

    def at_left(self, mark: Mark) -> None:
        self.all_within(self.owed, self.bitmap, but="was in the log at the switchover, and is not in what is left")
        self.all_within(self.stale, self.bitmap, but="was written since it was sent, and is not in what is left")
        self.account.left = mark.bitmap

    def at_dirtied(self, mark: Mark) -> None:
        """All vCPUs touched all of their pages once, and are parked."""
        found = sum(word.bit_count() for word in self.dirtied)
        self.require(found == self.setting.pages * self.setting.write_percent // 100, "not every page was written")
        self.all_within(self.dirtied, self.log, self.pending(), but="was written, and the log does not know")
        self.require(not any(self.buffers), "a vCPU is parked, and its log buffer was not emptied")
        self.new_round()

    def at_rested(self, mark: Mark) -> None:
        """The guest goes on writing."""
        self.new_round()

    def at_cleared(self, mark: Mark) -> None:
        self.all_within(self.owed, self.bitmap, but="was in the log when GET began, and GET did not give it")
        self.all_within(self.bitmap, self.cleared_in_pass, but="was collected, and CLEAR did not come there")
        self.account.found.append(sum(word.bit_count() for word in self.bitmap))

    def new_round(self) -> None:
        self.cleared_in_pass = [0] * len(self.bitmap)
        self.account.cleared.append(0)

    # -- the whole -------------------------------------------------------------------------------------

    def replay(self, ledger: Iterable[Sequence[int | str]], marks: Sequence[Mark]) -> Account:
        """Hold a whole run to the laws.

        Marks are put right behind the walk before; those of the guest's own phases right before the next walk.
        """
        ahead, walks = list(marks), 0
        self.new_round()

        def pass_marks(early: bool) -> None:
            while ahead and ahead[0].walks == walks and (early <= (ahead[0].phase not in ("dirtied", "rested"))):
                self.mark(ahead.pop(0))

        pass_marks(early=True)
        for row in ledger:
            entry = Entry(*row)  # type: ignore[arg-type]
            if entry.what in BESIDE_WALKS:
                self.entry = entry
                getattr(self, entry.what)(entry)
            else:
                pass_marks(early=False)
                self.entry = entry
                self.walk(entry)
                walks += 1
                pass_marks(early=True)
        pass_marks(early=False)
        self.require(not ahead and self.due == ("", 0), f"the run ended where {self.due} was due")
        if self.setting.migrates:
            known = self.log, self.bitmap, self.pending()
            self.all_within(self.stale, *known, but="was written last, and is neither sent nor left")
        most = self.setting.pages * self.setting.write_percent // 100
        self.require(sum(word.bit_count() for word in self.written) <= most, "pages that it only reads were written")
        return self.account

    def times(self, spent: Sequence[Sequence[int]], ends: Sequence[int], idle: int, marks: Sequence[Mark]) -> None:
        """Time adds up: each thread's by activity, and the sender's by what it sent."""
        for thread, (parts, end) in enumerate(zip(spent, ends, strict=True)):
            self.require(sum(parts) == end and min(parts) >= 0, f"the time of thread {thread} does not add up to {end}")
        at = [mark.time for mark in marks]
        self.require(at == sorted(at), "a phase ended before the one before it")
        if self.setting.migrates:
            sending = [n * self.setting.page_ps for n in self.account.sent]
            slept = spent[self.setting.vcpus][idle]
            known = self.setting.warm_up + sum(sending)
            self.require(slept == known or (slept > known and self.setting.helpers > 0), "the link's time is not its")
            began = {mark.round: mark.time for mark in marks if mark.phase == "collected"}
            for mark in marks:
                if mark.phase == "sent":
                    taken = mark.time - began[mark.round]
                    self.require(taken >= sending[mark.round - 1], f"pass {mark.round} was faster than the link")
