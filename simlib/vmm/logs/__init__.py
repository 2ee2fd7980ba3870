# SPDX-License-Identifier: BSD-3-Clause
"""Readers of the migration logs of QEMU's monitor, libvirt, Proxmox VE, Nova, KubeVirt and Cloud Hypervisor.

Each format has one module. Its function ``read`` returns a `simlib.vmm.logs.content.LogContent`, or None if the text
has no record of this format. `simlib.vmm.logs.readers` lists the formats, `series` derives measurements from samples,
and `merge` combines the contents to a guest.
"""
