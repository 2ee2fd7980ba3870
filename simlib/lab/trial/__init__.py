# SPDX-License-Identifier: BSD-3-Clause
"""Try a patch series in the lab: compare a kernel without the series and one with it.

- `series`: reads the patches. `tree` and `accessors` stage their source with the lab's statistics.
- `kernels`: builds both kernels in several layouts. `cells`: the cells that are run on them.
- `mode_trial`: boots them in one MMU mode. `quantities`: the numbers of a boot. `differences`: their comparison.
- `result`: the trial as tables and text. `rule`: rules that fail a trial. `run` and `bisect`: the package's functions.
"""
