# SPDX-License-Identifier: BSD-3-Clause
"""Brings the places where a kernel's source takes mmu_lock to the accessors of the series, which name each by a site.

That is what patches 0001 to 0004 of `kernel-patches/` do by hand. Done by rule it works on a source that somebody else
has changed, where those patches would not apply. A place keeps the site that the series gives its function; one in a
function that the series does not know gets a site of its own, named after that function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_LOCK = r"\s*&\s*(?P<kvm>[\w>\-.]+?)->mmu_lock"
_OF = rf"\({_LOCK}"


def _guards(lock: str, mode: str) -> Iterator[tuple[str, str]]:
    """A guard and a scoped one (``include/linux/cleanup.h``): the lock is let go where a variable goes out of scope."""
    begins = (
        f"struct kvm *kvm_{mode}_guard __cleanup(kvm_mmu_{mode}_unguard) = "
        f"({{{{ kvm_mmu_{mode}_lock({{kvm}}, {{site}}); {{kvm}}; }}}})"
    )
    yield rf"\bguard\((?:{lock})\){_OF}\)", begins
    yield rf"\bscoped_guard\((?:{lock}),{_LOCK}\)", f"for ({begins}, *kvm_once = NULL; !kvm_once; kvm_once = {{kvm}})"


_TAKES = (
    (r"\bKVM_MMU_LOCK\(\s*(?P<kvm>[\w>\-.]+)\s*\)", "kvm_mmu_write_lock({kvm}, {site})"),
    (rf"\b(?:write|spin)_lock{_OF}\)", "kvm_mmu_write_lock({kvm}, {site})"),
    (rf"\bread_lock{_OF}\)", "kvm_mmu_read_lock({kvm}, {site})"),
    (rf"\bwrite_lock_irqsave{_OF},\s*(?P<flags>\w+)\)", "kvm_mmu_write_lock_irqsave({kvm}, {site}, {flags})"),
    *_guards("write_lock|spinlock", "write"),
    *_guards("read_lock", "read"),
)
"""Calls that take the lock, and what they become."""

_UNGUARD = "static inline void kvm_mmu_{0}_unguard(struct kvm **kvm)\n{{\n\tkvm_mmu_{0}_unlock(*kvm);\n}}"
"""What ends a guard, by its mode."""

_OTHERS = (
    (r"\bKVM_MMU_UNLOCK\(\s*(?P<kvm>[\w>\-.]+)\s*\)", "kvm_mmu_write_unlock({kvm})"),
    (rf"\b(?:write|spin)_unlock{_OF}\)", "kvm_mmu_write_unlock({kvm})"),
    (rf"\bread_unlock{_OF}\)", "kvm_mmu_read_unlock({kvm})"),
    (rf"\bwrite_unlock_irqrestore{_OF},\s*(?P<flags>\w+)\)", "kvm_mmu_write_unlock_irqrestore({kvm}, {flags})"),
    (rf"\bcond_resched_rwlock_write{_OF}\)", "kvm_mmu_cond_resched_write({kvm})"),
    (rf"\bcond_resched_rwlock_read{_OF}\)", "kvm_mmu_cond_resched_read({kvm})"),
    (rf"\bcond_resched_lock{_OF}\)", "kvm_mmu_cond_resched_write({kvm})"),
)
"""Calls that let it go, or let go and take it again on behalf of whoever had it."""

_RULES = tuple((re.compile(pattern), text) for pattern, text in (*_TAKES, *_OTHERS))
_NAMED = re.compile(r"(?P<call>\w*)\)?\s*\(?\s*&\s*[\w>\-.]+->mmu_lock\b")
"""Any other mention of the lock, with what it is handed to."""

_HARMLESS = re.compile(r"lockdep_\w+|(?:rwlock|spin)_needbreak|rwlock_init|spin_lock_init|(?:write|read|spin)_can_lock")
"""What may be handed the lock and does not take it."""

_SITE = re.compile(
    r"\bkvm_mmu_(?:write|read)_lock(?:_irqsave)?\(\s*[^,;]+,\s*(KVM_MMU_LOCK_\w+|[^,;]*?\?[^,;]*?\w+)\s*[,)]"
)
_FUNCTION = re.compile(r"^(?![#\s}/*])[^;={}]*?\b(\w+)\s*\((?!\()", re.MULTILINE)
_INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
_SITE_CHARACTERS = 19
"""Of a function's name that its site has: the name of a statistic has at most 47 (KVM_STATS_NAME_SIZE)."""

HEADER = "#include <linux/kvm_mmu_lock.h>"


class Past(NamedTuple):
    """A line in which the lock is taken by a call that has no accessor."""

    number: int
    function: str
    text: str


@dataclass(frozen=True)
class Rewritten:
    """A source file with accessors.

    - `sites`: new sites that it needs, by the function that each is named after.
    - `past`: what could not be brought to an accessor, and so would not be counted.
    """

    text: str
    sites: Mapping[str, str]
    past: Sequence[Past]


def functions(text: str) -> Iterator[tuple[int, str]]:
    """Where each function of a C file begins, and its name; also declarations, which do no harm.

    >>> list(functions("static int one(void)\\n{\\n\\ttwo();\\n}\\n\\nvoid three(struct kvm *kvm)\\n{\\n}\\n"))
    [(0, 'one'), (34, 'three')]
    """
    for found in _FUNCTION.finditer(text):
        yield found.start(), found[1]


def sites_in(text: str) -> dict[str, list[str]]:
    """The sites that each function of a file with accessors names, in order.

    >>> sites_in("void f(struct kvm *kvm)\\n{\\n\\tkvm_mmu_write_lock(kvm, KVM_MMU_LOCK_ZAP);\\n}\\n")
    {'f': ['KVM_MMU_LOCK_ZAP']}
    """
    found: dict[str, list[str]] = {}
    at = list(functions(text))
    for site in _SITE.finditer(text):
        found.setdefault(_around(at, site.start()), []).append(" ".join(site[1].split()))
    return found


def site_named(function: str) -> str:
    """The site of a function that the series does not know.

    >>> site_named("kvm_tdp_mmu_age")
    'KVM_MMU_LOCK_IN_KVM_TDP_MMU_AGE'
    """
    return f"KVM_MMU_LOCK_IN_{function.upper()[:_SITE_CHARACTERS]}"


def to_accessors(text: str, known: Mapping[str, Sequence[str]]) -> Rewritten:
    """A source file in which mmu_lock is taken by accessors only.

    - `known`: the sites of functions, in order (`sites_in`): where a function takes the lock more often than that, the
      last one stands for the rest.

    >>> f = "void f(struct kvm *kvm)\\n{\\n\\twrite_lock(&kvm->mmu_lock);\\n}\\n"
    >>> one = to_accessors(f, {"f": ["KVM_MMU_LOCK_ZAP"]})
    >>> "kvm_mmu_write_lock(kvm, KVM_MMU_LOCK_ZAP);" in one.text, one.past
    (True, ())
    >>> to_accessors("void g(struct kvm *kvm)\\n{\\n\\tread_lock(&kvm->mmu_lock);\\n}\\n", {}).sites
    {'g': 'KVM_MMU_LOCK_IN_G'}
    """
    at, new, taken = list(functions(text)), dict[str, str](), dict[str, int]()
    found = [(match, becomes) for rule, becomes in _RULES for match in rule.finditer(text) if not _defines(text, match)]
    out, end = list[str](), 0
    for match, becomes in sorted(found, key=lambda one: one[0].start()):
        values = match.groupdict()
        if "{site}" in becomes:
            function = _around(at, match.start())
            own, before = known.get(function, ()), taken.get(function, 0)
            taken[function] = before + 1
            values["site"] = own[min(before, len(own) - 1)] if own else new.setdefault(function, site_named(function))
        out += [text[end : match.start()], becomes.format(**values)]
        end = match.end()
    changed = "".join([*out, text[end:]])
    lines = text.splitlines()
    past = tuple(
        Past(number, _around(at, named.start()), lines[number - 1].strip())
        for named in _NAMED.finditer(text)
        if not _HARMLESS.fullmatch(named["call"])
        and not any(match.start() <= named.start() < match.end() for match, _ in found)
        for number in [text.count("\n", 0, named.end()) + 1]
    )
    added = [HEADER] if found and HEADER not in changed else []
    ends = (_UNGUARD.format(mode) for mode in ("write", "read") if f"(kvm_mmu_{mode}_unguard)" in changed)
    if added := [*added, *(end for end in ends if end not in changed)]:
        includes = list(_INCLUDE.finditer(changed))
        place = includes[-1].end() if includes else 0
        changed = "\n".join([changed[:place], *added]) + changed[place:]
    return Rewritten(changed, new, past)


def _defines(text: str, match: re.Match[str]) -> bool:
    """Whether a match stands in the line of a macro, whose uses are looked at instead."""
    return text.startswith("#define", text.rfind("\n", 0, match.start()) + 1)


def _around(at: Sequence[tuple[int, str]], position: int) -> str:
    """The function around a position of a file."""
    name = ""
    for start, function in at:
        if start > position:
            break
        name = function
    return name
