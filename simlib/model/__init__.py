# SPDX-License-Identifier: BSD-3-Clause
"""What is modelled: quantities, architectures, page tables, scenarios, steps. Nothing here computes."""
