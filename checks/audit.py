# SPDX-License-Identifier: BSD-3-Clause
"""Asks the advisory service about the pinned packages: ``make audit``. Exit code 3 where it cannot be reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run pip-audit on the pins of `requirements/dev.txt`; 0: none known, 1: some, 3: not all could be asked about."""
    line = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--disable-pip", "--require-hashes",
            "--timeout", "20", "--format", "json", "-r", str(ROOT / "requirements" / "dev.txt")]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = [text for text in done.stderr.splitlines() if text.strip()][-1:] or ["pip-audit said nothing"]
        return _not_audited(last[0][:300])
    for package in packages:
        for fault in package.get("vulns", []):
            cure = ", ".join(fault["fix_versions"]) or "no version without it"
            print(f"{package['name']} {package['version']}: {fault['id']}; {cure}")
    # It calls what it could not ask about "skipped", and ends well.
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if any(package.get("vulns") for package in packages):
        return 1
    if skipped or not packages:
        return _not_audited(f"no answer for {len(skipped)} of {len(packages)} packages: {', '.join(skipped[:5])} …")
    print(f"{len(packages)} packages: no known vulnerability")
    return 0


def _not_audited(why: str) -> int:
    """Say that nothing is known."""
    print(f"NOT AUDITED: the advisory service cannot be had from this machine ({why}).", file=sys.stderr)
    print("Nothing is known of these packages, good or bad: run make audit where it can be had.", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main())
