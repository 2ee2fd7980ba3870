# SPDX-License-Identifier: BSD-3-Clause
"""Compare the numbers in the patches' messages with the collected data: ``python checks/claims.py``.

``kernel-patches/claims.toml`` has an entry for each sentence (or row of a table) in which a message states a
measurement: the patch, the text with names for the numbers, and a query on ``data/collected`` for each name:

``data``    the table, without ``.csv``
``where``   rows to use, a pandas query; rows have to satisfy the entry's own query and the claim's
``column``  column to aggregate; ``numerator`` and ``denominator`` for a ratio
``within``  aggregation of the rows of a group (default: ``sum``)
``each``    columns that define a group (default: ``seed``)
``over``    aggregation over the groups (default: ``median``)
``as``      ``time`` (ns, formatted in us or ms), ``percent``, or ``number`` (default), with ``digits`` after the point
``from``    in place of all these: an expression of other names, unrounded

This program does not need simlib.
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

    - `text`: from the message, with ``{name}`` for a number; line ends and runs of blanks count as one blank.
    - `expected`: the same with the numbers from the data.
    - `holds`: True if the message contains `expected`.
    """

    patch: int
    text: str
    expected: str
    holds: bool


def claims(path: Path = CLAIMS, collected: Path = COLLECTED) -> Iterator[Claim]:
    """Iterate over all claims, with the current numbers of the data."""
    for item in tomllib.loads(path.read_text("utf-8"))["claim"]:
        numbers = dict[str, float]()
        texts = dict[str, str]()
        common = {key: value for key, value in item.items() if key not in ("patch", "text", "value")}
        for name, entry in item["value"].items():
            query = {**common, **entry}
            query["where"] = " and ".join(f"({part['where']})" for part in (common, entry) if "where" in part)
            numbers[name] = evaluate(query, numbers, collected)
            texts[name] = number_text(numbers[name], query)
        expected = " ".join(item["text"].format(**texts).split())
        yield Claim(item["patch"], item["text"], expected, expected in message(path.parent, item["patch"]))


def evaluate(query: Mapping[str, Any], known: Mapping[str, float], collected: Path) -> float:
    """Evaluate a query.

    Raises `ValueError` if no row matches.

    - `known`: numbers for ``from``, by name.
    """
    if "from" in query:
        return float(pd.eval(query["from"], local_dict=dict(known)))
    rows = table(collected / f"{query['data']}.csv").query(query["where"])
    if rows.empty:
        raise ValueError(f"{query['data']}: no row has {query['where']}")
    groups = rows.groupby(query.get("each", "seed"))
    within = query.get("within", "sum")
    if "numerator" in query:
        values = groups[query["numerator"]].agg(within) / groups[query["denominator"]].agg(within)
    else:
        values = groups[query["column"]].agg(within)
    return float(values.agg(query.get("over", "median")))


@cache
def table(path: Path) -> pd.DataFrame:
    """Read a table of the collected data."""
    return pd.read_csv(path)


def number_text(value: float, query: Mapping[str, Any]) -> str:
    """Format a number as in a message."""
    digits = int(query.get("digits", 0))
    match query.get("as", "number"):
        case "time":
            return f"{value / 1e3:.0f} us" if value < 999.5e3 else f"{value / 1e6:.1f} ms"
        case "percent":
            return f"{100 * value:.{digits}f} %"
        case _:
            return f"{value:.{digits}f}"


def message(folder: Path, patch: int) -> str:
    """Message of a patch, as a single line."""
    text = next(folder.glob(f"{patch:04d}-*.patch")).read_text("utf-8")
    return " ".join(re.split(r"^---$", text, maxsplit=1, flags=re.MULTILINE)[0].split())


def main() -> int:
    """Print the expected sentence of each claim that differs from its message; return 1 if a claim differs."""
    wrong = 0
    for claim in claims():
        if not claim.holds:
            wrong += 1
            print(f"{claim.patch:04d}: should read: {claim.expected}")
    print(f"{wrong} of the claims differ from the data" if wrong else "every claim agrees with the data")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
