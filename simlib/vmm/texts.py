# SPDX-License-Identifier: BSD-3-Clause
"""What a user writes of a migration: wishes and settings, as the options of `simlib migrate` have them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from simlib._lib.errors import InputError
from simlib.model.quantities import PS_PER_S, parse_duration
from simlib.vmm.guest import Targets
from simlib.vmm.settings import Settings, read_named

_MINUTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*min", re.ASCII)
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", re.ASCII)


def parse_time(text: str, flag: str) -> float | None:
    """Seconds of ``300ms`` or ``15min``; None of an empty text.

    Raises `InputError` if it is no time.

    - `flag`: the option that an error names.

    >>> parse_time("15min", "--within"), parse_time("", "--within")
    (900.0, None)
    """
    if not text:
        return None
    if minutes := _MINUTES.fullmatch(text):
        return float(minutes[1]) * 60
    try:
        return parse_duration(text, flag) / PS_PER_S
    except InputError as error:
        raise InputError(flag, text, error.rule, "write 300ms, 20s or 15min") from None


def parse_share(text: str, flag: str) -> float | None:
    """A share such as ``80%`` or ``0.8``; None of an empty text.

    Raises `InputError` if it is none.

    >>> parse_share("80%", "--guest-keeps")
    0.8
    """
    if not text:
        return None
    share = _SHARE.fullmatch(text)
    if share is None:
        raise InputError(flag, text, "is no share", "write 80%")
    return float(share[1]) / (100 if share[2] else 1)


def parse_wishes(*, downtime: str = "", within: str = "", guest_keeps: str = "", max_stall: str = "") -> Targets:
    """What is wished, each as the option of its name has it; an empty text is no wish.

    Raises `InputError` if one cannot be read, or nobody can wish it.

    >>> parse_wishes(downtime="300ms", guest_keeps="80%").said
    'downtime <= 300ms, guest keeps 80%'
    """
    return Targets(
        parse_time(downtime, "--downtime"), parse_time(within, "--within"), parse_share(guest_keeps, "--guest-keeps"),
        parse_time(max_stall, "--max-stall"),
    )  # fmt: skip


def parse_settings(texts: Iterable[str], stand: Settings | None = None) -> Settings:
    """QEMU's settings from texts such as ``downtime-limit=500``; the bandwidth is unlimited unless one says otherwise.

    Raises `InputError` if a text is no setting.

    - `stand`: those that no text changes.

    >>> parse_settings(["auto-converge=on"]).auto_converge
    True
    """
    others = {"max-bandwidth": 0} if stand is None else stand.beside(Settings())
    return Settings.of({**others, **read_named(texts)})
