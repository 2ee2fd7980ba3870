# SPDX-License-Identifier: BSD-3-Clause
"""Somebody's patches tried in the lab: a kernel without them, one with them, and what differs."""
