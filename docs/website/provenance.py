# SPDX-License-Identifier: BSD-3-Clause
"""Provenance page: the source of each table of `data/`, and the files of the repository that use it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOT_STATED = ("not stated", "not applicable")
SOURCE_WORDS = {
    "message_id": "Message-ID", "commit": "commit", "cover": "cover letter", "base": "base", "base_commit": "base",
    "previous_version": "previous version", "in_reply_to": "in reply to", "reply": "reply", "merged": "merged as",
    "quoted_in": "quoted in", "archive": "archive", "read_at": "read at", "index_id": "index id", "posting": "posting",
}  # fmt: skip
"""Names for the keys of a descriptor's source, other than author, subject and date."""
KINDS = {
    "measured": "printed by a test or a tool",
    "stated": "a claim without a published table",
    "constant": "a number from source code",
}


def descriptors(folder: str) -> list[dict[str, Any]]:
    """Read the descriptors of a folder of `data/`, sorted by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "data" / folder).glob("*.json"))]


def users() -> dict[str, str]:
    """Read all texts that may name a table: modules, priors and notebooks, by path."""
    paths = [
        *(ROOT / "simlib").rglob("*.py"),
        *(ROOT / "studies").rglob("*.py"),
        *(ROOT / "data" / "priors").glob("*.toml"),
        *(ROOT / "notebooks").glob("*.ipynb"),
    ]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


def used_in(name: str, texts: dict[str, str]) -> list[str]:
    """List the texts that name a table as a whole word.

    >>> used_in("a-b", {"one.py": 'load("a-b")', "two.py": 'load("a-b-c")'})
    ['one.py']
    """
    whole = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    return [path for path, text in texts.items() if name in text and whole.search(text)]


def fitted() -> dict[str, list[str]]:
    """Return the shipped fits that were calibrated on each table."""
    fits: dict[str, list[str]] = {}
    for path in sorted((ROOT / "data" / "fits").rglob("*.json")):
        fit = json.loads(path.read_text(encoding="utf-8"))
        for name in re.split(r"[,\s]+", str(fit.get("dataset", ""))):
            fits.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    return fits


def escaped(text: object) -> str:
    """Escape Markdown in a string.

    >>> escaped("a_b <c@d> [e]")
    'a\\\\_b \\\\<c\\\\@d\\\\> \\\\[e\\\\]'
    """
    return re.sub(r"([\\`*_{}\[\]<>@#|$])", r"\\\1", str(text))


def code(text: object) -> str:
    """Format a string as inline code."""
    return f"`{text}`"


def column(field: dict[str, Any]) -> str:
    """Format a column with its unit, if any."""
    return code(field["name"]) + (f" ({field['unit']})" if field["unit"] != "none" else "")


def source_line(source: dict[str, Any]) -> str:
    """Format author, subject, date and the identifiers of a source, except for those that are not stated."""
    words = [f"{escaped(source['author'])}, *{escaped(source['subject'])}*"]
    words += [escaped(source["date"])] if source["date"] not in NOT_STATED else ["no date stated"]
    words += [
        f"{SOURCE_WORDS[key]} {code(value)}"
        for key, value in source.items()
        if key not in ("author", "subject", "date") and value not in NOT_STATED
    ]
    return "; ".join(words) + "."


def entry(table: dict[str, Any], texts: dict[str, str], fits: dict[str, list[str]]) -> str:
    """Write the section of one published table."""
    name, setup = table["name"], table.get("setup") or {}
    users_of_table = [*used_in(name, texts), *fits.get(name, [])]
    fields = {
        "Source": source_line(table["source"]),
        "Kind": f"{table['kind']}: {KINDS[table['kind']]}.",
        **{
            key.capitalize(): f"{escaped(table[key])}."
            for key in ("hardware", "command")
            if table[key] != NOT_STATED[1]
        },
        "Setup": "; ".join(f"{code(key)} {escaped(value)}" for key, value in setup.items()),
        "Columns": ", ".join(map(column, table["schema"]["fields"])),
        "Notes": " ".join(map(escaped, table["notes"])),
        "Caveats": " ".join(map(escaped, table["caveats"])),
        "Used in": ", ".join(map(code, users_of_table)) or "nothing yet",
        "File": code(f"data/published/{table['path']}"),
    }
    lines = (f"- **{word}.** {text}" for word, text in fields.items() if text)
    return "\n".join([f"### {name}", "", f"{escaped(table['title'])}.", "", *lines, ""])


def collected() -> str:
    """Write a list of the tables that this project collected."""
    lines = [
        f"| {code(table['name'])} | {escaped(table['title'])} | {escaped(table['hardware'])} |"
        for table in descriptors("collected")
    ]
    return "\n".join(["| table | what | where |", "|---|---|---|", *lines])


def page() -> str:
    """Write the page as Markdown."""
    texts, fits, tables = users(), fitted(), descriptors("published")
    rows = []
    for table in tables:
        name, source = table["name"], table["source"]
        rows.append(
            f"| [{name}](#{name}) | {table['kind']} | {escaped(source['author'])} | {escaped(source['date'])} |"
        )
    return "\n".join(
        [
            "<!-- SPDX-License-Identifier: BSD-3-Clause -->",
            "# Provenance",
            "",
            f"Generated from the descriptors of `data/`. {len(tables)} published tables; digits and units are those of",
            "the source ([rules](data.md#rules-for-published-tables)). *Not stated* marks what a source does not give.",
            "*Used in* lists the modules, priors, notebooks and shipped fits that name the table.",
            "",
            "| table | kind | author | date |",
            "|---|---|---|---|",
            *rows,
            "",
            "## Published tables",
            "",
            *(entry(table, texts, fits) for table in tables),
            "## Collected tables",
            "",
            "Measurements of [the lab](lab.md) and of [a real host](on-a-real-host.md). Their descriptors in "
            "`data/collected` have hashes, versions and commands.",
            "",
            collected(),
            "",
        ]
    )
