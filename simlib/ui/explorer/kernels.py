# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of the explorer's pages, in the process of the server: a kernel ends when no browser shows its page.

Voilà starts a kernel for each visit. A page that is closed or reloaded asks the server to end its kernel
(`load_voila`). A browser that was killed, or that left before the page was loaded, does not ask: `PageKernelManager`.
"""
# mypy: disable-error-code="import-untyped, no-untyped-call"

from __future__ import annotations

from typing import Any

from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado.web import RequestHandler
from voila import server_extension
from voila.utils import ENV_VARIABLE


class PageKernelManager(AsyncMappingKernelManager):
    """Kernel manager that culls only the kernels of pages, as Jupyter culls idle kernels without connections.

    It keeps the kernels of notebooks in JupyterLab, which users leave and open again.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._of_pages: set[str] = set()

    async def start_kernel(self, **given: Any) -> str:  # type: ignore[override]  # upstream's is assigned, not defined
        """Start a kernel, and record whether Voilà starts it for a page."""
        kernel_id = await super().start_kernel(**given)
        if ENV_VARIABLE.VOILA_REQUEST_URL in (given.get("env") or {}):
            self._of_pages.add(kernel_id)
        return kernel_id

    async def cull_kernel_if_idle(self, kernel_id: str) -> None:
        """End a page's kernel that is idle for ``cull_idle_timeout`` and has no connection to a browser."""
        if kernel_id in self._of_pages and kernel_id in self:  # its page may have ended it since the server listed it
            await super().cull_kernel_if_idle(kernel_id)


def load_voila(server: ServerApp) -> None:
    """Load Voilà's extension, with pages that set the cookie ``_xsrf``.

    A page sends the cookie's value with its request to end its kernel. The server refuses this request (403) without
    it, and Voilà does not set it.
    """
    server.config.VoilaConfiguration.prelaunch_hook = _set_xsrf_cookie
    server_extension._load_jupyter_server_extension(server)


def _set_xsrf_cookie(handler: RequestHandler, **_voila: Any) -> None:
    _ = handler.xsrf_token  # Tornado sets the cookie when the token is read


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


_load_jupyter_server_extension = load_voila  # the name that Jupyter looks for
