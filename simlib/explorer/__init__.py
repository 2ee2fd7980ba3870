# SPDX-License-Identifier: BSD-3-Clause
"""The interactive what-if: widgets over `simlib.prediction` and `simlib.figures`, nothing of its own to compute.

`strategies` compares lock policies at equal costs, `what_if` puts sliders on that
comparison, `server` opens the notebooks in JupyterLab.
"""

from simlib.explorer.strategies import STRATEGIES, compare, figure, published, shipped_fit, starting_point

__all__ = ["STRATEGIES", "compare", "figure", "published", "shipped_fit", "starting_point"]
