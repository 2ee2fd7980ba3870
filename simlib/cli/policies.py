# SPDX-License-Identifier: BSD-3-Clause
"""``simlib policies``: the named ways of taking mmu_lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simlib.cli.output import Format, FormatOption, show

if TYPE_CHECKING:
    from simlib.model.policies import Tables


def policies(how: FormatOption = Format.TABLE) -> None:
    """List the named policies that --policy NAME and simlib compare apply, with what each changes and whose it is.

    Beside them, every-N lets go after every N pages, for any multiple of 64.
    """
    from simlib.model.policies import POLICIES

    rows = []
    for row in POLICIES.values():
        changes = changes_of(row.changes)
        if row.architectures:
            changes = f"{changes} on {', '.join(row.architectures)}; elsewhere {changes_of(row.elsewhere)}"
        rows.append({"name": row.name, "title": row.title, "exists": row.exists, "changes": changes,
                     "source": "; ".join(row.sources)})  # fmt: skip
    show(rows, how)


def changes_of(tables: Tables) -> str:
    """What a policy changes, in a line.

    >>> changes_of({"policy": {"eager_split": True}, "workload": {"clear_threads": 2}})
    'policy.eager_split = true, workload.clear_threads = 2'
    """
    values = ((f"{section}.{key}", value) for section, table in tables.items() for key, value in table.items())
    return ", ".join(f"{key} = {str(value).lower()}" for key, value in values)
