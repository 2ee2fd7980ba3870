# SPDX-License-Identifier: BSD-3-Clause
"""What a VMM makes of a migration, and what of the guest's writes decides it.

`settings` has what can be set, `rules` what is decided, `dirtying` which pages are written, `course` what comes of it
pass by pass, and `postcopy` what follows a switch to postcopy.
"""
