# SPDX-License-Identifier: BSD-3-Clause
"""arm64's rwlock (the January 2022 series): dirty memory time over vCPUs, from at most 8 to 64."""

from __future__ import annotations

from simlib._lib.parallel import Progress, run_two, subprogress
from simlib.analysis.predict import predict
from simlib.figures.style import plain_number
from studies.arm64 import altra, equal_costs
from studies.study import Answer, Found, Study


def compute(*, seed: int = 1, progress: Progress | None = None) -> Found:
    """Calibrate on few vCPUs, predict every published point, fit the laws, try other readings, split the time."""
    fit = altra.calibrated(seed, subprogress(progress, 0.0, 0.3))
    vcpus = sorted({int(n) for n in fit.observations["vcpus"]})
    prediction = predict(fit.scenario, vcpus, fit=fit.estimate, seed=seed, progress=subprogress(progress, 0.3, 0.35))
    numbers, curves = altra.published_numbers(fit.observations, prediction), altra.curves(fit, prediction)
    # Calibrations keep Python busy, runs of every page do not: together they end earlier.
    every_page, readings = run_two(
        lambda: altra.page_by_page(fit, numbers, seed),
        lambda: altra.readings(fit, seed, subprogress(progress, 0.35, 1.0)),
    )
    tables = {
        "curves": curves,
        "held-out": altra.held_out_times(numbers, curves),
        "costs": fit.parameters,
        "time-per-fault": altra.time_per_fault(fit, vcpus, seed),
        "predictions": prediction.frame,
        "readings": readings,
        "every-page": every_page,
        "equal-costs": equal_costs.compare(equal_costs.starting_point(fit.estimate), seed=seed),
    }
    return Found(numbers, tables, calibrated={"fit": fit})


def answer(found: Found) -> Answer:
    """Whether the curves could have been told from few vCPUs, and what helped."""
    errors = {"the model": "error_percent", "Amdahl's law": "amdahl_percent", "the USL": "usl_percent"}
    means = {name: float(found.tables["held-out"][column].abs().mean()) for name, column in errors.items()}
    each = ", ".join(f"{plain_number(float(f'{mean:.2g}'))} % by {name}" for name, mean in means.items())
    return Answer(
        "With the rwlock, faults work side by side. What stays serial limits them: the model reads it as the broadcast "
        f"TLB invalidation. From at most 8 vCPUs, 16 to 64 are predicted with a mean error of {each}."
    )


STUDY = Study("arm64", "arm64's rwlock", ("01-arm64-rwlock",), (altra.TABLE, "core-to-core-latency"), compute, answer,
              takes_s=205)  # fmt: skip
