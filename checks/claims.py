# SPDX-License-Identifier: BSD-3-Clause
"""Compare the numbers in the patches' messages with the collected data: ``python checks/claims.py``.

``kernel-patches/claims.toml`` has an entry for each sentence (or row of a table) in which a message states a
measurement: the patch, the text with names for the numbers, and for each name how to get it from ``data/collected``:

``data``    the table, without ``.csv``
``where``   rows to use, a pandas query; an entry's own and the claim's both hold
``column``  what to take; ``numerator`` and ``denominator`` for a share
``within``  how the rows of a group become one number (default: ``sum``)
``each``    the columns that make a group (default: ``seed``); ``over`` (default: ``median``) makes one of all groups
``as``      ``time`` (ns, shown in us or ms), ``percent``, or ``number`` (default), with ``digits`` after the point
``from``    instead of all these: an expression of other names, unrounded

Nothing here needs simlib.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "kernel-patches" / "claims.toml"
COLLECTED = ROOT / "data" / "collected"


@dataclass(frozen=True)
class Claim:
    """A sentence of a message.

    - `text`: as the message has it, with ``{name}`` for a number; line ends and runs of blanks count as one blank.
    - `expected`: the same with the numbers that the data give.
    - `stands`: whether the message has it.
    """

    patch: int
    text: str
    expected: str
    stands: bool


def claims(path: Path = CLAIMS, collected: Path = COLLECTED) -> Iterator[Claim]:
    """All claims, with what the data say now."""
    for item in tomllib.loads(path.read_text("utf-8"))["claim"]:
        numbers = dict[str, float]()
        shown = dict[str, str]()
        common = {key: value for key, value in item.items() if key not in ("patch", "text", "value")}
        for name, own in item["value"].items():
            how = {**common, **own}
            how["where"] = " and ".join(f"({part['where']})" for part in (common, own) if "where" in part)
            numbers[name] = evaluate(how, numbers, collected)
            shown[name] = show(numbers[name], how)
        expected = " ".join(item["text"].format(**shown).split())
        yield Claim(item["patch"], item["text"], expected, expected in message(path.parent, item["patch"]))


def evaluate(how: Mapping[str, Any], known: Mapping[str, float], collected: Path) -> float:
    """The number that a query gives."""
    if "from" in how:
        return float(pd.eval(how["from"], local_dict=dict(known)))
    rows = table(collected / f"{how['data']}.csv").query(how["where"])
    if rows.empty:
        raise ValueError(f"{how['data']}: no row has {how['where']}")
    groups = rows.groupby(how.get("each", "seed"))
    within = how.get("within", "sum")
    if "numerator" in how:
        values = groups[how["numerator"]].agg(within) / groups[how["denominator"]].agg(within)
    else:
        values = groups[how["column"]].agg(within)
    return float(values.agg(how.get("over", "median")))


@cache
def table(path: Path) -> pd.DataFrame:
    """A table of the collected data."""
    return pd.read_csv(path)


def show(value: float, how: Mapping[str, Any]) -> str:
    """A number as a message has it."""
    digits = int(how.get("digits", 0))
    match how.get("as", "number"):
        case "time":
            return f"{value / 1e3:.0f} us" if value < 999.5e3 else f"{value / 1e6:.1f} ms"
        case "percent":
            return f"{100 * value:.{digits}f} %"
        case _:
            return f"{value:.{digits}f}"


def message(folder: Path, patch: int) -> str:
    """A patch's message on one line."""
    text = next(folder.glob(f"{patch:04d}-*.patch")).read_text("utf-8")
    return " ".join(re.split(r"^---$", text, maxsplit=1, flags=re.MULTILINE)[0].split())


def main() -> int:
    """Print each claim that does not stand, as it should read; 1 if there is one."""
    wrong = 0
    for claim in claims():
        if not claim.stands:
            wrong += 1
            print(f"{claim.patch:04d}: should read: {claim.expected}")
    print(f"{wrong} of the claims differ from the data" if wrong else "every claim stands in its message")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
