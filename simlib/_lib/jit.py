# SPDX-License-Identifier: BSD-3-Clause
"""Functions that Numba compiles when they are first called, and keeps where there is a place for that.

Numba is imported here and nowhere else: without the ``.numba_config.yaml`` of the current folder, which may be
anybody's and could name a cache of their code. ``NUMBA_…`` of the environment stand.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from simlib._lib.signals import writing

__all__ = ["address_of", "cached_njit", "compiled_elsewhere", "config", "intrinsic", "is_kept", "njit", "types"]


def _import_numba() -> Any:
    """Import it as if YAML, of which that file is made, could not be read; then let it look for no such file."""
    if "numba" in sys.modules:  # the caller's, with what the caller wants
        return sys.modules["numba"]
    before = {"yaml": sys.modules["yaml"]} if "yaml" in sys.modules else {}
    sys.modules["yaml"] = None  # type: ignore[assignment]  # makes its import fail (Python's reference, 5.3.1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "YAML parsing capabilities appear to be missing"
            numba = importlib.import_module("numba")
    finally:
        del sys.modules["yaml"]
        sys.modules.update(before)
    numba.config._config_fname = ""  # Numba has no public name for it; it looks again whenever it compiles
    return numba


_numba = _import_numba()
config, njit, types = _numba.config, _numba.njit, _numba.types
intrinsic: Callable[[Callable[..., Any]], Any] = _numba.extending.intrinsic


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's ``njit`` with its cache on disk; without one where the folder is read-only, the disk full, it is damaged.

    Then each process compiles anew, which takes seconds.

    - `**options`: of ``numba.njit``.

    >>> @cached_njit(nogil=True)
    ... def twice(x):
    ...     return 2 * x
    >>> twice(4)
    8
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            found = njit(cache=True, **options)(function)
        except RuntimeError:  # no folder that could be written: neither the package's nor the user's
            return njit(**options)(function)
        cache = found._cache  # Numba has no public name for it
        cache.save_overload = _whole(_or_nothing(cache.save_overload, OSError))
        cache.load_overload = _or_nothing(cache.load_overload, Exception)
        return found

    return compiled


def address_of(function: Any, arguments: tuple[Any, ...]) -> int:
    """Path of a `cached_njit` function for these arguments. It is loaded or compiled, but not called.

    >>> @cached_njit(nogil=True)
    ... def twice(x):
    ...     return 2 * x
    >>> address_of(twice, (4,)) > 0
    True
    """
    signature = tuple(_numba.typeof(argument) for argument in arguments)
    function.compile(signature)
    found = function.overloads[signature]
    return int(found.library.get_pointer_to_function(found.fndesc.llvm_func_name))


@contextmanager
def compiled_elsewhere(function: Any, arguments: tuple[Any, ...], *module: str) -> Iterator[None]:
    """While the block compiles something else, another process compiles this, if it is not kept yet and can be.

    Numba compiles under Python's global lock, so that threads would take turns. If the process fails, who needs the
    function compiles it.

    - `function`: a `cached_njit` one.
    - `module`: what ``python -m`` runs, with its arguments; it compiles the function.
    """
    if function._cache.cache_path is None or is_kept(function, arguments):
        yield
        return
    command, quiet = [sys.executable, "-P", "-m", *module], subprocess.DEVNULL  # -P: nothing of the current folder
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as helper:  # noqa: S603  # no shell: a module of ours
        try:
            yield
        except BaseException:
            helper.kill()
            raise


def is_kept(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether the cache of a `cached_njit` function has machine code for such arguments; none of it is loaded."""
    cache, signature = function._cache, tuple(_numba.typeof(argument) for argument in arguments)
    if cache.cache_path is None:
        return False
    return cache._index_key(signature, function.targetctx.codegen()) in cache._cache_file._load_index()


def _or_nothing(call: Callable[..., Any], fault: type[Exception]) -> Callable[..., Any]:
    """A call that gives None where it fails in such a way."""

    def tried(*given: Any) -> Any:
        with suppress(fault):
            return call(*given)
        return None

    return tried


def _whole(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that no end of the process cuts in two."""

    def held(*given: Any) -> Any:
        with writing:
            return call(*given)

    return held
