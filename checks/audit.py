# SPDX-License-Identifier: BSD-3-Clause
"""Check the pinned packages for known vulnerabilities: ``make audit``. Exit status 3: service not reachable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run pip-audit on the pins of `requirements/dev.txt`.

    Return 0 if no vulnerability is known, 1 if some are, 3 if the service did not answer for all packages.
    """
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--disable-pip", "--require-hashes",
               "--timeout", "20", "--format", "json", "-r", str(ROOT / "requirements" / "dev.txt")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = [text for text in done.stderr.splitlines() if text.strip()][-1:] or ["pip-audit printed nothing"]
        return _not_audited(last[0][:300])
    for package in packages:
        for vulnerability in package.get("vulns", []):
            hint = ", ".join(vulnerability["fix_versions"]) or "no fixed version"
            print(f"{package['name']} {package['version']}: {vulnerability['id']}; {hint}")
    # pip-audit reports packages without an answer as "skipped", and exits with 0.
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if any(package.get("vulns") for package in packages):
        return 1
    if skipped or not packages:
        return _not_audited(f"no answer for {len(skipped)} of {len(packages)} packages: {', '.join(skipped[:5])} …")
    print(f"{len(packages)} packages: no known vulnerability")
    return 0


def _not_audited(reason: str) -> int:
    """Report that no statement about the packages is possible; return the exit status."""
    print(f"NOT AUDITED: the advisory service cannot be reached from this host ({reason}).", file=sys.stderr)
    print(
        "It is unknown whether these packages have vulnerabilities: run make audit on a host that reaches the service.",
        file=sys.stderr,
    )
    return 3


if __name__ == "__main__":
    sys.exit(main())
