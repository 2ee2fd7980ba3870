# SPDX-License-Identifier: BSD-3-Clause
"""The kernels of the explorer's server: the first page has the one that waits (`simlib.explorer.launch`)."""

from __future__ import annotations

import os
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

from simlib.explorer import launch

_OF_A_PAGE = "SERVER_SOFTWARE"
"""In the environment that Voilà gives a kernel, not in that of JupyterLab's."""


class PageKernel(ServerKernelManager):
    """A kernel that may have been started already."""

    async def _async_launch_kernel(self, kernel_cmd: list[str], **given: Any) -> None:
        """Start one, as jupyter_client has it for subclasses that do it in another way."""
        local, environment = self.provisioner, given.get("env") or {}
        waiting = launch.take() if _OF_A_PAGE in environment else None
        if waiting is None or not isinstance(local, LocalProvisioner):
            await super()._async_launch_kernel(kernel_cmd, **given)
            return
        folder = str(given.get("cwd") or os.getcwd())
        waiting.tell(self.connection_file, folder, environment | {"JPY_PARENT_PID": str(os.getpid())})
        local.process, local.cwd = waiting.process, folder
        local.pid = local.pgid = waiting.process.pid
        self._reconcile_connection_info(local.connection_info)
