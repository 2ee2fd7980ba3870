# SPDX-License-Identifier: BSD-3-Clause
"""Compilation options of the functions of the compiled engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir

from simlib._lib.jit import config, intrinsic, njit, types

_INNER: dict[str, Any] = {
    "_nrt": False, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}  # fmt: skip
"""Options of functions that only compiled functions call: Numba emits no wrappers for callers in Python and C.

Without Numba's runtime (`_nrt`), arrays are not reference-counted when they are passed to a function.
"""

inlined_at_caller = njit(inline="always", **_INNER)
"""For the few large functions that are inlined into their only caller, so that the whole run can be passed to them."""

always_inline = njit(forceinline=True, **_INNER)
"""For small functions of records, arrays and numbers: compiled once and inlined into their callers."""

outlined = njit(forceinline=False, **_INNER)
"""For rare paths; without this, Numba also inlines the callees of an `always_inline` function into its callers."""


@contextmanager
def loops_as_written() -> Iterator[None]:
    """Compile without loop vectorisation in this block: LLVM would vectorise the rare loops.

    These loops are inlined into the engine's one large function, which vectorisation would lengthen by a half and slow
    down by a fifteenth.
    """
    previous = config.LOOP_VECTORIZE, config.SLP_VECTORIZE
    config.LOOP_VECTORIZE = config.SLP_VECTORIZE = 0
    try:
        yield
    finally:
        config.LOOP_VECTORIZE, config.SLP_VECTORIZE = previous


@always_inline
def item(array, index):
    """Element of an array at a non-negative index, without Numba's check whether the index counts from the end."""
    return array[np.uint64(index)]


@intrinsic
def bit_length(typingctx: Any, value: Any) -> Any:
    """Number of bits of a non-negative int64 (`int.bit_length`)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 64), zeros)

    return types.int64(types.int64), codegen


@intrinsic
def noinline(typingctx: Any) -> Any:
    """Prevent LLVM from inlining the calling function, however small it is.

    The engine's loop then contains neither copies of a whole run nor addresses that only rare steps need.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def call_at(typingctx: Any, address: Any, run: Any, number: Any) -> Any:
    """Call a compiled function through its address; it takes a run and a number, and returns an int64.

    The function is compiled with an error model that raises nothing, so the returned status is not checked.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        argument_types = signature.args[1:]
        function_type = context.call_conv.get_function_type(types.int64, argument_types)
        function = builder.inttoptr(args[0], function_type.as_pointer())
        _, value = context.call_conv.call_function(builder, function, types.int64, argument_types, args[1:])
        return value

    return types.int64(types.int64, run, types.int64), codegen
