# SPDX-License-Identifier: BSD-3-Clause
"""From the lab to hardware: the lab's machines as scenarios, costs in instructions, and trials predicted on hosts."""
