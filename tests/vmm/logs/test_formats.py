# SPDX-License-Identifier: BSD-3-Clause
"""Each format of a log: whole, cut off at every line, between other lines, coloured, and wrapped by a terminal."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import (
    DOMMEMSTAT,
    OTHERS,
    PAGE,
    PARAMETERS,
    SERIES,
    SPEED,
    TOTAL,
    cloud_hypervisor,
    domjobinfo,
    domstats,
    kubevirt,
    old_monitor,
    proxmox,
)

from simlib._lib.errors import InputError
from simlib.vmm.read_guest import parse_guest

ALL = SERIES | OTHERS
NOISE = (
    "root@host:~# date", "Sun Nov 29 03:24:02 UTC 2026", "[  12.345678] kvm: vcpu0 ignored rdmsr: 0x1c9", "",
    '{"component":"virt-launcher","level":"warning","msg":"no agent"}', "INFO nova.compute [req-1] Took 3 secs",
)  # fmt: skip


@pytest.mark.parametrize("name", SERIES)
def test_a_series_gives_memory_link_and_the_rate_of_its_first_pass(name):
    guest = parse_guest(SERIES[name])
    assert guest.memory == pytest.approx(TOTAL, rel=6e-3 if name == "Proxmox VE 8" else 3e-5)
    assert guest.link == pytest.approx(SPEED * 8, rel=0.02)
    assert len(guest.running) >= 6
    (rate,) = guest.dirty
    factor = 1.28 if name == "Proxmox VE 8" else 1.0  # it prints only rates above the speed
    assert rate.pages * PAGE / rate.seconds == pytest.approx(24_000 * PAGE * factor, rel=0.03)
    assert rate.seconds == pytest.approx(100, rel=0.02)
    assert rate.between_s is None
    if guest.zeros is not None:
        assert guest.memory - guest.zeros == pytest.approx(3_000_000 * PAGE, rel=1e-4)
    assert (guest.zeros is not None) == (not name.startswith(("Proxmox", "Nova")))


@pytest.mark.parametrize("name", ALL)
def test_a_log_that_is_cut_off_is_read_or_refused(name):
    """Memory is known exactly or not at all, wherever the text ends."""
    lines = ALL[name].splitlines(keepends=True)
    whole = parse_guest(ALL[name])
    for end in range(1, len(lines), max(1, len(lines) // 40)):
        for text in ("".join(lines[:end]), "".join(lines[end:])):
            with contextlib.suppress(InputError):
                guest = parse_guest(text)
                assert guest.memory in (0, whole.memory)
                assert guest.vcpus in (0, whole.vcpus)


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("QMP", "guestperf")])
def test_other_lines_colours_and_line_ends_do_not_matter(name):
    whole = parse_guest(ALL[name])
    noisy = "".join(f"{line}\n{NOISE[at % len(NOISE)]}\n" for at, line in enumerate(ALL[name].splitlines()))
    coloured = "".join(f"\x1b[1;32m{line}\x1b[0m\r\n" for line in ALL[name].splitlines())
    for text in (noisy if "10." not in name else coloured, coloured):
        guest = parse_guest(text)
        assert (guest.memory, guest.link, guest.dirty, guest.settings) == (
            whole.memory, whole.link, whole.dirty, whole.settings)  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("text", [kubevirt(101) + kubevirt(120), cloud_hypervisor(), proxmox(range(1, 9))])
def test_records_that_a_terminal_wrapped_are_joined(text, width):
    wrapped = "\n".join(
        line[at : at + width] for line in text.splitlines() for at in range(0, max(1, len(line)), width)
    )
    assert parse_guest(wrapped).running == parse_guest(text).running


def test_settings_and_statistics():
    settings = parse_guest(PARAMETERS + OTHERS["capabilities"]).settings
    assert (settings.downtime_limit, settings.max_bandwidth, settings.max_cpu_throttle) == (500, 104857600, 80)
    assert settings.auto_converge
    guest = parse_guest(domstats() + DOMMEMSTAT)
    assert (guest.vcpus, guest.memory, guest.resident) == (4, 2**34, 12 * 2**30)
    assert (guest.dirty[0].pages, guest.dirty[0].seconds, guest.dirty[0].rounding) == (230400, 10, 2560)


@pytest.mark.parametrize("before", ["1767348000\n{}1767348010\n{}", "2026-01-02 10:00:00\n{}2026-01-02 10:00:10\n{}",
                                    "Fri Jan  2 10:00:00 UTC 2026\n{}Fri Jan  2 10:00:10 UTC 2026\n{}",
                                    "# virsh domstats guest; sleep 10; virsh domstats guest\n{}{}"])  # fmt: skip
def test_two_samples_of_vcpu_times_give_the_cpu_use(before):
    assert parse_guest(before.format(domstats(0), domstats(2_500_000_000))).cpu == pytest.approx(0.25)
    assert parse_guest(domstats(0) + domstats(2_500_000_000)).cpu == 0


def test_several_tools_are_merged_and_contradictions_are_refused():
    guest = parse_guest(domjobinfo(50) + domstats() + old_monitor(120) + PARAMETERS)
    assert (guest.vcpus, guest.memory, len(guest.running)) == (4, TOTAL, 2)
    with pytest.raises(InputError, match=r"memory = .*: the replies contradict each other; paste the replies of one"):
        parse_guest(domjobinfo(50) + old_monitor(50).replace("total ram: 1678", "total ram: 2678"))
    with pytest.raises(InputError, match="are several domains"):
        parse_guest(domstats() + domstats().replace("'guest'", "'other'"))
    with pytest.raises(InputError, match="several migrations"):
        parse_guest(kubevirt(20) + kubevirt(50).replace("3b7c-11", "3b7c-12"))


def test_only_the_last_of_several_migrations_is_used():
    guest = parse_guest(SERIES["info migrate, 10.0"] + old_monitor(20) + old_monitor(50))
    assert [sample.time_s for sample in guest.running] == [20, 50]
    assert any("2 migrations in info migrate: only the last" in note for note in guest.notes)


def test_a_long_log_is_read_fast():
    """100,000 lines take about a second; the bound only detects a quadratic search."""
    text = proxmox(range(1, 140)) + '2026-01-02 10:00:01 [pool-1] [a] drive-scsi0: {"x transferred 1.2 GiB\n' * 100_000
    start = time.process_time()
    assert parse_guest(text).memory
    assert time.process_time() - start < 20


PIECES = [line for text in ALL.values() for line in text.splitlines()[:60]]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=40), st.integers(0, 400), st.randoms())
def test_shuffled_pieces_are_read_or_refused(pieces, cut, random):
    lines = list(pieces)
    random.shuffle(lines)
    text = "\n".join(lines)
    with contextlib.suppress(InputError):
        guest = parse_guest(text[: len(text) - cut])
        assert guest.memory >= 0


@given(st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=3), st.integers(0, 10**6), st.integers(0, 10**6))
def test_joined_pastes_are_read_or_refused(names, first, last):
    text = "".join(ALL[name] for name in names)
    begin, end = sorted((first % len(text), last % len(text)))
    with contextlib.suppress(InputError):
        parse_guest(text[begin:end])
