# SPDX-License-Identifier: BSD-3-Clause
"""Compile a part of the models, while another process compiles the rest: ``python -m simlib.vmm``."""

from simlib.vmm import postcopy, precopy

if __name__ == "__main__":
    precopy.compile_functions(precopy.COMPILED_BESIDE)
    postcopy.compile_ahead()
