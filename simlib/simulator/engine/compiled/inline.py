# SPDX-License-Identifier: BSD-3-Clause
"""How the functions of the compiled engine are compiled."""

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
"""Of functions that only compiled ones call: by what Python and C would call them is not compiled.

Without Numba's run-time (`_nrt`) arrays are not reference counted whenever a function gets them.
"""

inlined_at_caller = njit(inline="always", **_INNER)
"""For the few large functions that become part of their one caller: the whole run can be handed to them."""

always_inline = njit(forceinline=True, **_INNER)
"""For small functions of records, arrays and numbers, which are compiled once and then become part of their callers."""

outlined = njit(forceinline=False, **_INNER)
"""For rare paths: without it, Numba inlines what an `always_inline` function calls into its caller, too."""


@contextmanager
def loops_as_written() -> Iterator[None]:
    """What is compiled within has no vectorised loops: it is the rare ones that LLVM would turn into vectors.

    They become part of the engine's one large function, which is then half as long again, and slower by a fifteenth.
    """
    before = config.LOOP_VECTORIZE, config.SLP_VECTORIZE
    config.LOOP_VECTORIZE = config.SLP_VECTORIZE = 0
    try:
        yield
    finally:
        config.LOOP_VECTORIZE, config.SLP_VECTORIZE = before


@always_inline
def item(array, index):
    """An array's element; the index is known not to be negative, which Numba else asks and counts from the end."""
    return array[np.uint64(index)]


@intrinsic
def bit_length(typingctx: Any, value: Any) -> Any:
    """Bits that a non-negative int64 needs (`int.bit_length`)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 64), zeros)

    return types.int64(types.int64), codegen


@intrinsic
def noinline(typingctx: Any) -> Any:
    """The function that this stands in does not become part of its callers, however small it is.

    So the engine's loop has neither copies of a whole run nor addresses that only a seldom step needs.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def call_at(typingctx: Any, address: Any, run: Any, number: Any) -> Any:
    """Call a function of a run and a number, which returns an int64, by the address of its machine code.

    It has an error model without errors, so that no status is looked at.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = signature.args[1:]
        kind = context.call_conv.get_function_type(types.int64, given)
        function = builder.inttoptr(args[0], kind.as_pointer())
        _, found = context.call_conv.call_function(builder, function, types.int64, given, args[1:])
        return found

    return types.int64(types.int64, run, types.int64), codegen
