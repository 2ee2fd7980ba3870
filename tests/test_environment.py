# SPDX-License-Identifier: BSD-3-Clause
"""One environment, described once: pyproject.toml, requirements/*.txt and environment.yml agree."""

import fnmatch
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from simlib._lib.extras import MODULES

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
PINS = {
    "run": [],
    "dev": ["all", "dev"],
    "bench": ["all", "bench"],
    "docs": ["all", "docs"],
    "audit": ["all", "audit"],
}  # file: the extras it holds

# Where the pins may be installed. 3.11.2 (Debian 12) stands for the older patch versions of 3.11.
PYTHONS = ["3.11.2", "3.11.9", "3.12.3", "3.13.1"]
SYSTEMS = {
    "linux-x86": {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "x86_64",
    },
    "linux-arm": {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "aarch64",
    },
    "mac": {
        "sys_platform": "darwin",
        "platform_system": "Darwin",
        "os_name": "posix",
        "platform_machine": "arm64",
    },
    "windows": {
        "sys_platform": "win32",
        "platform_system": "Windows",
        "os_name": "nt",
        "platform_machine": "AMD64",
    },
}

# Written so that this file does not match: an index option, an index page, and the hosts of the Python index.
INDEX_ADDRESS = re.compile(
    r"(?<!no-emit-)\bindex[-_]url|\bfind[-_]links|https?://[^\s\"'<>]*/(?:simple|packages|debian(?:-security)?)(?:[/\"'\s]|$)"
    r"|\bpy(?:pi|thonhosted)[.](?:org|io)|\banaconda[.](?:org|com)"
)


def pins(name: str) -> list[tuple[Requirement, list[str]]]:
    """Every pin of requirements/NAME.txt, with its hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [(Requirement(line.split("--hash=")[0]), line.split("--hash=")[1:]) for line in lines]


def versions(name: str, environment: dict[str, str]) -> dict[str, str]:
    """What requirements/NAME.txt installs there: package to version."""
    found: dict[str, str] = {}
    for pin, _ in pins(name):
        if pin.marker is None or pin.marker.evaluate(environment):
            package = canonicalize_name(pin.name)
            assert package not in found, f"{package} is pinned twice in {name}.txt for {environment}"
            found[package] = str(pin.specifier).removeprefix("==")
    return found


def direct(name: str, environment: dict[str, str]) -> list[Requirement]:
    """What pyproject.toml asks for there: the dependencies, and the extras of requirements/NAME.txt."""
    requirements = [Requirement(text) for text in PROJECT["dependencies"]]
    extras = list(PINS[name])
    for extra in extras:  # an extra that names others adds them
        found = [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]
        extras += [other for one in found if one.name == PROJECT["name"] for other in one.extras]
        requirements += [one for one in found if one.name != PROJECT["name"]]
    return [r for r in requirements if r.marker is None or r.marker.evaluate(environment)]


def tracked_files() -> Iterator[Path]:
    """The files of the checkout, without what .gitignore names (asks no git: an archive has none)."""
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.endswith("/")]
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f != ".git" and not any(fnmatch.fnmatch(f, i) for i in ignored)]
        yield from (Path(folder, file) for file in files)


@pytest.fixture(params=[(python, system) for python in PYTHONS for system in SYSTEMS], ids="-".join)
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    python, system = request.param
    return {
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        **SYSTEMS[system],
    }


@pytest.fixture(scope="module")
def conda() -> dict[str, list]:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


@pytest.mark.parametrize("name", PINS)
def test_pins_hold_each_direct_dependency_in_an_allowed_version(name, environment):
    pinned = versions(name, environment)
    for requirement in direct(name, environment):
        package = canonicalize_name(requirement.name)
        assert package in pinned, f"{package} is missing from {name}.txt: run `make pins`"
        assert requirement.specifier.contains(pinned[package], prereleases=True), (
            f"{package} {pinned[package]}: run `make pins`"
        )


@pytest.mark.parametrize("name", [n for n in PINS if n != "dev"])
def test_other_pins_agree_with_dev(name, environment):
    dev, other = versions("dev", environment), versions(name, environment)
    assert {p: v for p, v in other.items() if p in dev} == {p: dev[p] for p in other if p in dev}


def test_run_is_a_part_of_dev(environment):
    assert versions("run", environment).items() <= versions("dev", environment).items()


def test_each_package_of_an_extra_is_told_as_missing_by_that_extra():
    assert len(PROJECT["dependencies"]) <= 12
    for extra, modules in MODULES.items():
        found = [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]
        names = {one.name for one in found if one.name != PROJECT["name"]}
        assert names <= set(modules), extra
    assert not {Requirement(text).name.lower() for text in PROJECT["dependencies"]} & set(sum(MODULES.values(), ()))


def test_a_command_whose_extra_is_missing_says_which(tmp_path):
    """In a process of its own, as imports remain."""
    (tmp_path / "grid.toml").write_text("", encoding="utf-8")
    words = ["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")]
    code = f"import sys; sys.modules['pyarrow'] = None; from simlib.ui.cli import main; main({words})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    message = "simlib: pyarrow is not installed: install it with pip install 'simlib[sweep]'\n"
    assert (done.returncode, done.stderr) == (1, message)


def test_dev_holds_what_an_install_without_build_isolation_needs(environment):
    needed = {canonicalize_name(Requirement(text).name) for text in BUILD["requires"]} | {"editables"}
    assert needed <= versions("dev", environment).keys()


@pytest.mark.parametrize("name", PINS)
def test_every_pin_is_exact_and_has_hashes(name):
    for pin, hashes in pins(name):
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), f"{pin} is not one version"
        assert pin.url is None, f"{pin} has an address"
        assert hashes, f"{pin} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", h.strip()) for h in hashes), f"{pin} has a broken hash"


def test_conda_allows_the_same_pythons(conda):
    [python] = [d for d in conda["dependencies"] if isinstance(d, str) and d.startswith("python ")]
    assert SpecifierSet(python.removeprefix("python")) == SpecifierSet(PROJECT["requires-python"])


def test_conda_installs_exactly_the_dev_pins(conda):
    assert conda["name"] == PROJECT["name"]
    assert {d for d in conda["dependencies"] if isinstance(d, str) and not d.startswith("python ")} == {"pip"}
    [from_pip] = [d["pip"] for d in conda["dependencies"] if isinstance(d, dict)]
    assert from_pip == ["--require-hashes", "-r requirements/dev.txt"]


@pytest.mark.parametrize(
    "line",
    [
        "--extra-{index}-url X",
        "{index}_url = X",
        "https://example.invalid/{simple}/",
        'registry = "https://example.invalid/a/{simple}"',
    ],
)
def test_an_index_address_is_recognised(line):
    assert INDEX_ADDRESS.search(line.format(index="index", simple="simple"))


def test_no_file_names_a_package_index():
    named = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_files()
        for match in INDEX_ADDRESS.finditer(path.read_text(errors="ignore"))
    ]
    assert named == []
