# SPDX-License-Identifier: BSD-3-Clause
"""Options that belong together, declared once: a command takes a dataclass, the command line its fields."""

# No annotations from __future__: the example below would inherit it, and its types be looked up in this module.
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar, get_type_hints

Returned = TypeVar("Returned")


def grouped(command: Callable[..., Returned]) -> Callable[..., Returned]:
    """A command for Typer whose parameters that are dataclasses have become their fields, each where its group stood.

    A field is declared like a parameter of a command, by `Annotated` with `typer.Option` or `typer.Argument`, and may
    be a group itself. A field without a default is required. What a group's ``__post_init__`` raises is raised before
    the command runs.

    Returns: It takes the fields by name, builds the groups and calls the command. Raises `ValueError` Two parameters
    have the same name.

    A group has no default of its own, so that it stands after ``*`` where a parameter before it has one; Typer calls by
    name.

    >>> import inspect
    >>> from dataclasses import dataclass
    >>> from typing import Annotated
    >>> import typer
    >>> @dataclass(frozen=True)
    ... class Guest:
    ...     vcpus: Annotated[int, typer.Option(help="Number of vCPUs.")]
    ...     memory: Annotated[str, typer.Option(help="Memory in all.")] = "8G"
    >>> @grouped
    ... def show(name: str, guest: Guest, seed: int = 1) -> str:
    ...     return f"{name}: {guest}, seed {seed}"
    >>> list(inspect.signature(show).parameters)
    ['name', 'vcpus', 'memory', 'seed']
    >>> show(name="mine", vcpus=4, memory="1T", seed=7)
    "mine: Guest(vcpus=4, memory='1T'), seed 7"
    """

    @wraps(command)
    def run(**given: Any) -> Returned:
        return _call(command, given)

    parameters = list(_parameters(command))
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # where inspect looks for it, and so Typer
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(called: Callable[..., object]) -> Iterator[Parameter]:
    """What a function, or the constructor of a dataclass, takes: its parameters, with groups replaced by fields."""
    hints = get_type_hints(called, include_extras=True)
    for name, parameter in signature(called).parameters.items():
        if is_dataclass(hints[name]):
            yield from _parameters(hints[name])
        else:
            yield parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)


def _call(called: Callable[..., Returned], given: Mapping[str, Any]) -> Returned:
    """Call a function, or construct a dataclass, with its part of what was given."""
    hints = get_type_hints(called, include_extras=True)
    names = signature(called).parameters
    return called(**{name: _call(hints[name], given) if is_dataclass(hints[name]) else given[name] for name in names})
