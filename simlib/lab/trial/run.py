# SPDX-License-Identifier: BSD-3-Clause
"""Try a series as a whole, or each of its patches, in the MMU modes that it can touch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simlib._lib.errors import InputError, nearest
from simlib._lib.parallel import Progress, subprogresses
from simlib.lab.build import check_kernel, require_compiler
from simlib.lab.cache import lab_lock
from simlib.lab.patches import read_series
from simlib.lab.process import silent
from simlib.lab.qemu import Qemu, find_qemu
from simlib.lab.source import Source
from simlib.lab.trial.cells import MMU_MODES, mmu_modes_for, target_of
from simlib.lab.trial.differences import assign_verdicts
from simlib.lab.trial.kernels import STATISTICS_KERNEL, Kernel, open_source, stage_kernels, stage_switches
from simlib.lab.trial.mode_trial import ModeTrial, TrialOptions, report_steps
from simlib.lab.trial.result import Trial
from simlib.lab.trial.series import Patch, base_commit, bundled_numbers, bundled_patches, read_patches, series_hash
from simlib.lab.trial.tree import is_applied


@dataclass(frozen=True)
class Request:
    """A series to try.

    - `series`: as the caller gave it.
    - `numbers`: of bundled patches; empty for the caller's own series.
    - `emulators`: by the MMU mode that is tried.
    """

    series: str
    options: TrialOptions
    numbers: tuple[int, ...]
    patches: tuple[Patch, ...]
    emulators: Mapping[str, Qemu]

    @classmethod
    def read(cls, series: str, options: TrialOptions, flag: str = "") -> Request:
        """Read a series, and check its tools before anything is built.

        Raises `InputError` for an unknown series, source or MMU mode, or if a compiler or an emulator is missing.

        - `flag`: option that tries parts of the series; it excludes bundled patches and parameters.
        """
        parameters = {**options.parameters, **options.shared_parameters}
        if flag and parameters:
            hint = "omit --each-patch and --bisect, or omit --set and --set-all"
            raise InputError("parameters", ", ".join(parameters), "apply only to a whole series", hint, flag="--set")
        check_kernel(options.kernel)
        numbers = bundled_numbers(series)
        if flag and numbers:
            rule = "names bundled patches, which are tried as a whole"
            raise InputError("SERIES", series, rule, f"omit {flag}")
        tree = None if options.source is None else Path(options.source)
        patches = bundled_patches(read_series(), numbers) if numbers else read_patches(series, tree)
        if tree is not None and not numbers and ".." not in series and is_applied(tree, patches):
            rule = f"is already in {tree}, so that both kernels would have it"
            raise InputError("SERIES", series, rule, "give its range of commits, such as HEAD~3..HEAD")
        modes = _selected_modes(options.mmu_modes, _touched_modes(patches))
        emulators = {mode: find_qemu(target_of(mode)) for mode in modes}
        for mode in modes:
            require_compiler(target_of(mode))
        return cls(series, options, numbers, patches, emulators)

    @property
    def tree(self) -> Path | None:
        """The caller's kernel tree."""
        return None if self.options.source is None else Path(self.options.source)

    def open(self, progress: Progress | None) -> Source:
        """Unpack the source that the series is for."""
        commit = base_commit(self.series, self.tree) if self.tree is not None and ".." in self.series else ""
        return open_source(self.tree, commit, report_steps(progress))

    def stage(self, source: Source, first: int, end: int) -> tuple[Kernel, Kernel]:
        """Stage two kernels: with the patches before index `first`, and with those before index `end` (from 0)."""
        if self.numbers:
            return stage_switches(source, self.numbers, self.options.kernel)
        return stage_kernels(source, self.patches[first:end], self.patches[:first], self.options.kernel)

    def trial(self, source: Source, part: tuple[int, int], flags: Sequence[str], progress: Progress | None) -> Trial:
        """Try a part of the series in every MMU mode that it touches; the verdicts are corrected for all comparisons.

        - `part`: number of the first patch, from 0, and end of the range.
        - `flags`: of the command that repeats the trial, such as ``--each-patch``.
        """
        patches, kernels = self.patches[slice(*part)], self.stage(source, *part)
        touched = set(_touched_modes(patches))
        emulators = {mode: qemu for mode, qemu in self.emulators.items() if mode in touched}
        trials = [ModeTrial(mode, source, qemu, self.options) for mode, qemu in emulators.items()]
        shares = subprogresses(progress, [1 / max(1, len(trials))] * len(trials))
        for trial, share in zip(trials, shares, strict=True):
            trial.run(kernels, share)
        about = {
            "command": self.command(flags),
            "patches": [patch.name for patch in patches],
            "series_sha256": series_hash(patches),
            "parameters": dict(self.options.parameters),
            "parameters_of_both": dict(self.options.shared_parameters),
            "kernel": self.options.kernel,
            "source": source.provenance(),
            "new_sites": dict(kernels[1].staged.sites),
            "images": {trial.mmu_mode: list(trial.images) for trial in trials},
            "kernels": {trial.mmu_mode: dict(trial.kernel) for trial in trials},
            "boots": sum(trial.boots for trial in trials),
        }
        same = tuple(trial.mmu_mode for trial in trials if not trial.boots)
        failures = {trial.mmu_mode: trial.failure for trial in trials if trial.failure}
        differences = assign_verdicts([difference for trial in trials for difference in trial.differences])
        return Trial(about, tuple(trial.mmu_mode for trial in trials), same, failures, tuple(differences))

    def command(self, flags: Sequence[str] = ()) -> str:
        """Command that repeats the trial, without this host's folders."""
        options = self.options
        words = ["simlib", "lab", "try", self.series if ".." in self.series else Path(self.series).name]
        words += ["--source", self.tree.absolute().name] if self.tree is not None else []
        words += [word for mode in options.mmu_modes for word in ("--arch", mode)]
        for flag, values in (("--set", options.parameters), ("--set-all", options.shared_parameters)):
            words += [word for name, value in values.items() for word in (flag, f"{name}={value}")]
        words += ["--kernel", options.kernel] if options.kernel != STATISTICS_KERNEL else []
        return shlex.join([*words, *["--quick"] * options.quick, *flags])


def _touched_modes(patches: Sequence[Patch]) -> tuple[str, ...]:
    return mmu_modes_for([name for patch in patches for name in patch.files], empty=not patches)


def _selected_modes(names: Sequence[str], touched: Sequence[str]) -> tuple[str, ...]:
    """MMU modes that the series touches and that `names`, modes or architectures, selects; empty names select all."""
    for name in names:
        if not any(mode == name or mode.startswith(f"{name}/") for mode in MMU_MODES):
            known = [*MMU_MODES, *dict.fromkeys(mode.partition("/")[0] for mode in MMU_MODES)]
            raise InputError("mmu_modes", name, "is not known", nearest(name, known), flag="--arch")
    return tuple(mode for mode in touched if not names or mode in names or mode.partition("/")[0] in names)


def try_series(series: str | Path, options: TrialOptions | None = None, *, progress: Progress = silent) -> Trial:
    """Build and boot a kernel without a patch series and one with it, and compare their numbers.

    Raises `InputError` for an unknown series, source or MMU mode. Raises `SimlibError` if a patch does not apply or
    compile, if it takes mmu_lock where the statistics do not count it, or if the kernel without the series does not
    run. A failure of the kernel with the series is part of the result.

    - `series`: a folder of patches, a mailbox, a patch, a range of commits of `options.source` such as
      ``HEAD~3..HEAD``, or patches of the bundled series by number (``7``, ``16-17``), on top of those before them.
    """
    request = Request.read(str(series), options or TrialOptions())
    [trial] = _try_parts(request, [(0, len(request.patches))], (), progress)
    return trial


def try_each_patch(
    series: str | Path, options: TrialOptions | None = None, *, progress: Progress = silent
) -> list[Trial]:
    """Try each patch of a series, compared with the kernel that has the patches before it.

    Returns: a trial for each patch. Raises as `try_series`, and `InputError` for bundled patches or parameters.
    """
    flag = "--each-patch"
    request = Request.read(str(series), options or TrialOptions(), flag)
    return _try_parts(request, [(number, number + 1) for number in range(len(request.patches))], [flag], progress)


def _try_parts(request: Request, parts: list[tuple[int, int]], flags: Sequence[str], progress: Progress) -> list[Trial]:
    """Try parts of a series, each given by its first patch and the end of its range."""
    opening, *shares = subprogresses(progress, [0.02, *[0.98 / max(1, len(parts))] * len(parts)])
    with lab_lock(exclusive=True):
        source = request.open(opening)
        request.stage(source, 0, len(request.patches))  # checks that all apply before the first trial takes minutes
        return [request.trial(source, part, flags, share) for part, share in zip(parts, shares, strict=True)]
