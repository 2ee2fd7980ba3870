# SPDX-License-Identifier: BSD-3-Clause
"""arm64's rwlock (the January 2022 series): dirty memory time for up to 64 vCPUs, predicted from at most 8."""

from __future__ import annotations

from simlib._lib.parallel import Progress, run_two, subprogress
from simlib.analysis.predict import predict
from simlib.figures.results import Answer
from simlib.figures.style import plain_number
from studies.arm64 import altra, equal_costs
from studies.study import Study, StudyFindings


def compute(*, seed: int = 1, progress: Progress | None = None) -> StudyFindings:
    """Calibrate on at most 8 vCPUs, predict all published points, and compare scaling laws and other hypotheses."""
    fit = altra.calibrate_training_rows(seed, subprogress(progress, 0.0, 0.3))
    vcpus = sorted({int(n) for n in fit.observations["vcpus"]})
    prediction = predict(fit.scenario, vcpus, fit=fit.estimate, seed=seed, progress=subprogress(progress, 0.3, 0.35))
    numbers, curves = altra.published_numbers(fit.observations, prediction), altra.curves(fit, prediction)
    # Calibrations hold the GIL, simulations of every page release it: run both at once.
    every_page, hypotheses = run_two(
        lambda: altra.simulate_every_page(fit, numbers, seed),
        lambda: altra.hypotheses(fit, seed, subprogress(progress, 0.35, 1.0)),
    )
    tables = {
        "curves": curves,
        "held-out": altra.held_out_times(numbers, curves),
        "costs": fit.parameters,
        "time-per-fault": altra.time_per_fault(fit, vcpus, seed),
        "predictions": prediction.frame,
        "hypotheses": hypotheses,
        "every-page": every_page,
        "equal-costs": equal_costs.compare(equal_costs.calibrated_scenario(fit.estimate), seed=seed),
    }
    return StudyFindings(numbers, tables, calibrated={"fit": fit})


def answer(findings: StudyFindings) -> Answer:
    """Return the conclusion: the limit of the rwlock, and the errors of predictions from at most 8 vCPUs."""
    errors = {"the model": "error_percent", "Amdahl's law": "amdahl_percent", "the USL": "usl_percent"}
    means = {name: float(findings.tables["held-out"][column].abs().mean()) for name, column in errors.items()}
    errors_text = ", ".join(f"{plain_number(float(f'{mean:.2g}'))} % by {name}" for name, mean in means.items())
    return Answer(
        "With the rwlock, permission faults hold mmu_lock concurrently. A serial resource then limits them: in the "
        "model, the broadcast TLB invalidation. From data with at most 8 vCPUs, times with 16 to 64 vCPUs are "
        f"predicted with a mean error of {errors_text}."
    )


STUDY = Study("arm64", "arm64's rwlock", ("01-arm64-rwlock",), (altra.TABLE, "core-to-core-latency"), compute, answer,
              runtime_s=205)  # fmt: skip
