# SPDX-License-Identifier: BSD-3-Clause
"""Functions that Numba compiles at their first call and caches on disk where possible.

Import Numba only through this module: it makes Numba ignore a ``.numba_config.yaml`` in the current folder, which
another user may have put there to name a cache of untrusted code. Environment variables ``NUMBA_…`` keep their effect.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from types import ModuleType
from typing import Any

from simlib._lib.signals import write_lock

__all__ = ["address_of", "cached_njit", "compiling_in_background", "config", "intrinsic", "is_cached", "njit", "types"]


def _import_numba() -> Any:
    """Import Numba while PyYAML is hidden, so that it cannot read its configuration file; then disable that file."""
    if "numba" in sys.modules:  # imported by the caller, with the caller's configuration
        return sys.modules["numba"]
    yaml = {"yaml": sys.modules["yaml"]} if "yaml" in sys.modules else {}
    sys.modules["yaml"] = None  # type: ignore[assignment]  # makes its import fail (Python's reference, 5.3.1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "YAML parsing capabilities appear to be missing"
            numba = importlib.import_module("numba")
    finally:
        del sys.modules["yaml"]
        sys.modules.update(yaml)
    numba.config._config_fname = ""  # Numba has no public name for it, and reads the file again at each compilation
    return numba


_numba = _import_numba()
config, njit, types = _numba.config, _numba.njit, _numba.types
intrinsic: Callable[[Callable[..., Any]], Any] = _numba.extending.intrinsic


@cache
def _sources(name: str) -> frozenset[str]:
    """Files of a module of simlib, and of those from which it imports functions, classes or modules, directly or not.

    Code and types from all of them may be compiled into a function; Numba compares only the function's own file.

    >>> import simlib.vmm.precopy
    >>> {"precopy.py", "memory.py"} <= {os.path.basename(path) for path in _sources("simlib.vmm.precopy")}
    True
    """
    module = sys.modules.get(name)
    files = {str(getattr(module, "__file__", ""))}
    for value in list(vars(module).values()) if module else ():
        other = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
        if str(other).startswith("simlib.") and other != name and other in sys.modules:
            files |= _sources(other)
    return frozenset(files)


@cache
def _stamp(path: str) -> tuple[str, int, int]:
    """Name, time of change and size of a file; zeros if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.basename(path), 0, 0
    return os.path.basename(path), status.st_mtime_ns, status.st_size


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return ``numba.njit`` with its cache on disk.

    If the folder is read-only, the disk full, or the cache damaged, each process compiles again, which takes seconds.

    - `**options`: options of ``numba.njit``.

    >>> @cached_njit(nogil=True)
    ... def twice(x):
    ...     return 2 * x
    >>> twice(4)
    8
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            dispatcher = njit(cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's is writable
            return njit(**options)(function)
        stored = dispatcher._cache  # Numba has no public name for it, nor for the version below
        # Numba compares a stamp of the file after it has read the index, which may need classes that are gone.
        stored._cache_file._version = [stored._cache_file._version, *sorted(map(_stamp, _sources(function.__module__)))]
        stored.save_overload = _none_on_error(stored.save_overload, OSError, write_lock)  # `force_exit` waits for it
        stored.load_overload = _none_on_error(stored.load_overload, Exception, nullcontext())
        return dispatcher

    return decorate


def address_of(function: Any, arguments: tuple[Any, ...]) -> int:
    """Address of the machine code of a `cached_njit` function for these arguments; it is compiled but not called.

    >>> @cached_njit(nogil=True)
    ... def twice(x):
    ...     return 2 * x
    >>> address_of(twice, (4,)) > 0
    True
    """
    signature = tuple(_numba.typeof(argument) for argument in arguments)
    function.compile(signature)
    overload = function.overloads[signature]
    return int(overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name))


@contextmanager
def compiling_in_background(function: Any, arguments: tuple[Any, ...], *module: str) -> Iterator[None]:
    """Compile a function in another process during the block, unless it is cached already or cannot be cached.

    Numba compiles under Python's global lock, so that threads would take turns. If the process fails, the function is
    compiled at its first call.

    - `function`: a `cached_njit` function.
    - `module`: module that ``python -m`` would run, and its arguments; it compiles the function.
    """
    if function._cache.cache_path is None or is_cached(function, arguments):
        yield
        return
    run, quiet = "from simlib._lib.signals import run_helper; run_helper()", subprocess.DEVNULL
    command = [sys.executable, "-P", "-c", run, *module]  # -P: import nothing from this folder
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as helper:  # noqa: S603  # no shell: code of ours
        try:
            yield
            helper.wait()
        except BaseException:
            helper.kill()
            raise


def is_cached(function: Any, arguments: tuple[Any, ...]) -> bool:
    """True if the cache of a `cached_njit` function has machine code for such arguments; none of it is loaded."""
    cache, signature = function._cache, tuple(_numba.typeof(argument) for argument in arguments)
    if cache.cache_path is None:
        return False
    return cache._index_key(signature, function.targetctx.codegen()) in cache._cache_file._load_index()


def _none_on_error(call: Callable[..., Any], error: type[Exception], lock: Any) -> Callable[..., Any]:
    """Wrap a call so that it holds a lock, and returns None if it raises this error."""

    def wrapper(*arguments: Any) -> Any:
        with lock, suppress(error):
            return call(*arguments)
        return None

    return wrapper
