# SPDX-License-Identifier: BSD-3-Clause
"""The explorer's pages with a button for each; the URL selects the page that is shown."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import ipywidgets as widgets

from simlib._lib.errors import InputError
from simlib.ui.explorer.base import ExplorerPage
from simlib.ui.explorer.migration_page import MigrationPage
from simlib.ui.explorer.page import Explorer
from simlib.ui.explorer.state import page_of

ASKED = "QUERY_STRING"  # environment variable in which Voilà passes the query of the URL
PAGES: dict[str, type[ExplorerPage[Any, Any]]] = {page.NAME: page for page in (Explorer, MigrationPage)}
"""Pages by their names in a URL, in the order of their buttons."""


class Tabs:
    """All pages of the explorer. Each is made when it is first shown, and keeps its state.

    - `query`: query of the URL, the first state.
    - `background`: False: simulate before returning, for tests.

    >>> tabs = Tabs("page=migration&memory=8G&working-set=1G", background=False)
    >>> tabs.page.state.guest.memory // 2**30, tabs.buttons.value
    (8, 'migration')
    """

    def __init__(self, query: str = "", *, background: bool = True) -> None:
        name = ""
        with contextlib.suppress(InputError):  # the default page reports the error
            name = page_of(query)
        self._background = background
        self._made = {name: PAGES[name](query, background=background)}
        self.buttons = widgets.ToggleButtons(
            options=[(page.TAB, name) for name, page in PAGES.items()], value=name,
            style={"button_width": "auto"}, tooltips=[page.TITLE for page in PAGES.values()],
        )  # fmt: skip
        self.buttons.add_class("simlib-tabs")
        self.buttons.observe(lambda _change: self._show(), names="value")
        self.widget = widgets.VBox()
        self._show()

    @classmethod
    def from_environment(cls) -> Tabs:
        """Return the pages for the URL under which Voilà shows them."""
        return cls(os.environ.get(ASKED, ""))

    @property
    def page(self) -> ExplorerPage[Any, Any]:
        """The page that is shown."""
        name = self.buttons.value
        if name not in self._made:
            self._made[name] = PAGES[name](background=self._background)
        return self._made[name]

    def _show(self) -> None:
        self.widget.children = [self.buttons, self.page.widget]

    def _repr_mimebundle_(self, **given: Any) -> Any:
        return self.widget._repr_mimebundle_(**given)
