# SPDX-License-Identifier: BSD-3-Clause
"""From the lab to hardware: the lab's machines as scenarios, instruction costs, and trials carried to hosts."""
