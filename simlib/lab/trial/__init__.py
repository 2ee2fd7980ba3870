# SPDX-License-Identifier: BSD-3-Clause
"""Try a patch series in the lab: compare a kernel without the series and one with it.

- `series` reads the patches; `tree` and `accessors` stage the source of a kernel with the lab's statistics.
- `kernels` builds both kernels in several layouts; `cells` defines the cells that are run on them.
- `mode_trial` boots them in one MMU mode; `quantities` reads a boot's numbers; `differences` compares them.
- `result` formats the trial as tables and text; `rule` defines rules that fail a trial; `run` and `bisect` run trials.
"""
