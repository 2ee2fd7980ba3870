# SPDX-License-Identifier: BSD-3-Clause
"""Replace the calls that take mmu_lock in a kernel's source by the series' accessors, which name each call site.

Patches 0001 to 0004 of `kernel-patches/` contain these replacements. The rules here also work on a changed source, to
which those patches would not apply. A call gets the site that the series assigns to its function; in a function
that the series does not know, it gets a new site, which is named after the function.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simlib.lab.build import function_at

_LOCK = r"\s*&\s*(?P<kvm>[\w>\-.]+?)->mmu_lock"
_ARGUMENT = rf"\({_LOCK}"


def _guards(lock: str, mode: str) -> Iterator[tuple[str, str]]:
    """Rules for a guard and a scoped guard (``include/linux/cleanup.h``), which drop the lock at the end of a scope."""
    variable = (
        f"struct kvm *kvm_{mode}_guard __cleanup(kvm_mmu_{mode}_unguard) = "
        f"({{{{ kvm_mmu_{mode}_lock({{kvm}}, {{site}}); {{kvm}}; }}}})"
    )
    yield rf"\bguard\((?:{lock})\){_ARGUMENT}\)", variable
    yield rf"\bscoped_guard\((?:{lock}),{_LOCK}\)", f"for ({variable}, *kvm_once = NULL; !kvm_once; kvm_once = {{kvm}})"


_TAKES = (
    (r"\bKVM_MMU_LOCK\(\s*(?P<kvm>[\w>\-.]+)\s*\)", "kvm_mmu_write_lock({kvm}, {site})"),
    (rf"\b(?:write|spin)_lock{_ARGUMENT}\)", "kvm_mmu_write_lock({kvm}, {site})"),
    (rf"\bread_lock{_ARGUMENT}\)", "kvm_mmu_read_lock({kvm}, {site})"),
    (rf"\bwrite_lock_irqsave{_ARGUMENT},\s*(?P<flags>\w+)\)", "kvm_mmu_write_lock_irqsave({kvm}, {site}, {flags})"),
    *_guards("write_lock|spinlock", "write"),
    *_guards("read_lock", "read"),
)
"""Calls that take the lock, and their replacements."""

_UNGUARD = "static inline void kvm_mmu_{0}_unguard(struct kvm **kvm)\n{{\n\tkvm_mmu_{0}_unlock(*kvm);\n}}"
"""C source of a guard's cleanup function; ``{0}`` is the lock mode, read or write."""

_RELEASES = (
    (r"\bKVM_MMU_UNLOCK\(\s*(?P<kvm>[\w>\-.]+)\s*\)", "kvm_mmu_write_unlock({kvm})"),
    (rf"\b(?:write|spin)_unlock{_ARGUMENT}\)", "kvm_mmu_write_unlock({kvm})"),
    (rf"\bread_unlock{_ARGUMENT}\)", "kvm_mmu_read_unlock({kvm})"),
    (rf"\bwrite_unlock_irqrestore{_ARGUMENT},\s*(?P<flags>\w+)\)", "kvm_mmu_write_unlock_irqrestore({kvm}, {flags})"),
    (rf"\bcond_resched_rwlock_write{_ARGUMENT}\)", "kvm_mmu_cond_resched_write({kvm})"),
    (rf"\bcond_resched_rwlock_read{_ARGUMENT}\)", "kvm_mmu_cond_resched_read({kvm})"),
    (rf"\bcond_resched_lock{_ARGUMENT}\)", "kvm_mmu_cond_resched_write({kvm})"),
)
"""Calls that drop the lock, or drop and reacquire it, and their replacements."""

_RULES = tuple((re.compile(pattern), text) for pattern, text in (*_TAKES, *_RELEASES))
_NAMED = re.compile(r"(?P<call>\w*)\)?\s*\(?\s*&\s*[\w>\-.]+->mmu_lock\b")
"""Any other use of the lock, with the function that it is passed to."""

_HARMLESS = re.compile(r"lockdep_\w+|(?:rwlock|spin)_needbreak|rwlock_init|spin_lock_init|(?:write|read|spin)_can_lock")
"""Functions that use the lock without taking it."""

_SITE = re.compile(
    r"\bkvm_mmu_(?:write|read)_lock(?:_irqsave)?\(\s*[^,;]+,\s*(KVM_MMU_LOCK_\w+|[^,;]*?\?[^,;]*?\w+)\s*[,)]"
)
_FUNCTION = re.compile(r"^(?![#\s}/*]|\w+:\s)[^;={}]*?\b(\w+)\s*\((?!\()", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#\s*(if|endif|include)\w*.*$", re.MULTILINE)
HEADER = "#include <linux/kvm_mmu_lock.h>"


class UncountedCall(NamedTuple):
    """Line that takes the lock directly, not through an accessor."""

    number: int
    function: str
    text: str


@dataclass(frozen=True)
class Rewritten:
    """A source file with accessors.

    - `sites`: the new sites that it needs, by function.
    - `uncounted`: calls that take the lock directly, which the statistics do not count.
    """

    text: str
    sites: Mapping[str, str]
    uncounted: Sequence[UncountedCall]


def function_starts(text: str) -> Iterator[tuple[int, str]]:
    """Iterate over the functions of a C file: start and name; declarations are included, without effect.

    >>> list(function_starts("static int one(void)\\n{\\n\\ttwo();\\n}\\n\\nvoid three(struct kvm *kvm)\\n{\\n}\\n"))
    [(0, 'one'), (34, 'three')]
    """
    return ((match.start(), match[1]) for match in _FUNCTION.finditer(text))


def sites_in(text: str) -> dict[str, list[str]]:
    """Call sites that each function of a file passes to the accessors, in order.

    >>> sites_in("void f(struct kvm *kvm)\\n{\\n\\tkvm_mmu_write_lock(kvm, KVM_MMU_LOCK_ZAP);\\n}\\n")
    {'f': ['KVM_MMU_LOCK_ZAP']}
    """
    sites: dict[str, list[str]] = {}
    starts = list(function_starts(text))
    for match in _SITE.finditer(text):
        sites.setdefault(function_at(starts, match.start()), []).append(" ".join(match[1].split()))
    return sites


def new_site(function: str) -> str:
    """Name the site of a function that the series does not know.

    >>> new_site("kvm_tdp_mmu_age")
    'KVM_MMU_LOCK_IN_KVM_TDP_MMU_AGE'
    """
    return f"KVM_MMU_LOCK_IN_{function.upper()[:19]}"  # a statistic's name has up to 47 bytes (KVM_STATS_NAME_SIZE)


def to_accessors(text: str, known: Mapping[str, Sequence[str]]) -> Rewritten:
    """Replace all calls in a source file that take, drop or reacquire mmu_lock by accessors.

    - `known`: the sites of functions, in order (`sites_in`); if a function takes the lock more often, its other calls
      get the last site.

    >>> f = "void f(struct kvm *kvm)\\n{\\n\\twrite_lock(&kvm->mmu_lock);\\n}\\n"
    >>> rewritten = to_accessors(f, {"f": ["KVM_MMU_LOCK_ZAP"]})
    >>> "kvm_mmu_write_lock(kvm, KVM_MMU_LOCK_ZAP);" in rewritten.text, rewritten.uncounted
    (True, ())
    >>> to_accessors("void g(struct kvm *kvm)\\n{\\n\\tread_lock(&kvm->mmu_lock);\\n}\\n", {}).sites
    {'g': 'KVM_MMU_LOCK_IN_G'}
    """
    starts, new_sites, counts = list(function_starts(text)), dict[str, str](), Counter[str]()
    matches = [(match, call) for rule, call in _RULES for match in rule.finditer(text) if not _in_macro(text, match)]
    parts, end = list[str](), 0
    for match, call in sorted(matches, key=lambda pair: pair[0].start()):
        values = match.groupdict()
        if "{site}" in call:
            function = function_at(starts, match.start())
            if sites := known.get(function, ()):
                values["site"] = sites[min(counts[function], len(sites) - 1)]
            else:
                values["site"] = new_sites.setdefault(function, new_site(function))
            counts[function] += 1
        parts += [text[end : match.start()], call.format(**values)]
        end = match.end()
    changed = "".join([*parts, text[end:]])
    lines = text.splitlines()
    uncounted = tuple(
        UncountedCall(number, function_at(starts, use.start()), lines[number - 1].strip())
        for use in _NAMED.finditer(text)
        if not _HARMLESS.fullmatch(use["call"])
        and not any(match.start() <= use.start() < match.end() for match, _ in matches)
        for number in [text.count("\n", 0, use.end()) + 1]
    )
    added = [HEADER] if matches and HEADER not in changed else []
    cleanups = (_UNGUARD.format(mode) for mode in ("write", "read") if f"(kvm_mmu_{mode}_unguard)" in changed)
    if added := [*added, *(cleanup for cleanup in cleanups if cleanup not in changed)]:
        position = _end_of_includes(changed, min((match.start() for match, _ in matches), default=0))
        changed = "\n".join([changed[:position], *added]) + changed[position:]
    return Rewritten(changed, new_sites, uncounted)


def _end_of_includes(text: str, before: int) -> int:
    """Position after the last ``#include`` before a position, of those in the fewest ``#if``.

    A file may include another one in its middle, as arch/x86/kvm/mmu/mmu.c does paging_tmpl.h.

    >>> _end_of_includes("#include <a.h>\\n#ifdef B\\n#include <b.h>\\n#endif\\nint c;\\n#include <d.h>\\n", 45)
    14
    """
    ends, depth = [(0, 0)], 0
    for line in _DIRECTIVE.finditer(text, 0, before):
        depth += {"if": 1, "endif": -1}.get(line[1], 0)
        if line[1] == "include":
            ends.append((depth, line.end()))
    fewest = min((depth for depth, _ in ends[1:]), default=0)
    return max(end for depth, end in ends if depth == fewest)


def _in_macro(text: str, match: re.Match[str]) -> bool:
    """True if a match is in the line of a macro's definition; the macro's uses are replaced instead."""
    return text.startswith("#define", text.rfind("\n", 0, match.start()) + 1)
