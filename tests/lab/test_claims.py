# SPDX-License-Identifier: BSD-3-Clause
"""The measurements in the patches' messages agree with the collected data."""

from __future__ import annotations

import re
from pathlib import Path

import claims as module
import pytest

CLAIMS = list(module.claims())


@pytest.mark.parametrize("claim", CLAIMS, ids=[f"{claim.patch:04d}-{n}" for n, claim in enumerate(CLAIMS)])
def test_a_message_agrees_with_the_data(claim):
    assert claim.holds, f"should read: {claim.expected}"


def test_every_message_with_a_measurement_has_a_claim():
    """Each measurement begins with "Under QEMU's TCG", except the stress test's, whose runs are not in the data."""
    folder = module.CLAIMS.parent
    numbers = [int(path.name[:4]) for path in folder.glob("0*.patch")]
    stated = {number for number in numbers if "TCG with instructions" in module.message(folder, number)}
    assert stated <= {claim.patch for claim in CLAIMS}
    assert len(stated) >= 9


def small(tmp_path: Path, text: str, message: str) -> list[module.Claim]:
    """Claims about a table of four rows."""
    (tmp_path / "t.csv").write_text("seed,name,ns,part\n1,a,1000,1\n1,a,3000,2\n2,a,1500000,3\n2,b,7,4\n")
    (tmp_path / "0003-x.patch").write_text(f"Subject: x\n\n{message}\n---\n took 9 us\n")
    (tmp_path / "claims.toml").write_text(text)
    return list(module.claims(tmp_path / "claims.toml", tmp_path))


TIME = """
[[claim]]
patch = 3
data = "t"
column = "ns"
where = "name == 'a'"
text = "it took {first} and {longest}, {share}; {more}"
[claim.value]
first = { where = "seed == 1", as = "time" }
longest = { within = "max", over = "max", as = "time" }
share = { numerator = "part", denominator = "ns", where = "seed == 1", as = "percent", digits = 2 }
more = { from = "longest / first - 1" }
"""


def test_numbers_are_queried_grouped_and_formatted(tmp_path):
    (claim,) = small(tmp_path, TIME, "it took 4 us\nand 1.5 ms, 0.08 %;\n374")
    assert (claim.expected, claim.holds) == ("it took 4 us and 1.5 ms, 0.07 %; 374", False)
    (claim,) = small(tmp_path, TIME, "it took 4 us\nand 1.5 ms, 0.07 %; 374")
    assert claim.holds


def test_text_after_the_message_does_not_count(tmp_path):
    text = '[[claim]]\npatch = 3\ntext = "took {n} us"\n[claim.value]\nn = { from = "9" }\n'
    (claim,) = small(tmp_path, text, "nothing")
    assert not claim.holds


def test_a_query_without_rows_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=re.escape("t: no row has (name == 'a') and (seed == 3)")):
        small(tmp_path, TIME.replace('first = { where = "seed == 1"', 'first = { where = "seed == 3"'), "it")
