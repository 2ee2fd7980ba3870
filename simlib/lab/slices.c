// SPDX-License-Identifier: BSD-3-Clause
/*
 * A plugin for QEMU's TCG that ends the turn of a virtual CPU after a random number of instructions.
 *
 * With one host thread for all virtual CPUs (thread=single) and a clock that counts instructions (icount), QEMU runs a
 * CPU until a timer is due, with uneven shares for the CPUs: a whole CLEAR_DIRTY_LOG fits into one turn, and no lock is
 * ever contended. With this plugin every turn has q/2 to 3q/2 instructions, drawn from a seeded generator: shares are
 * even on average, the same seed repeats the turns, and another seed gives another interleaving.
 *
 * The plugin ends a turn by requesting a clock update that changes nothing: QEMU performs it outside of the CPU's loop,
 * and therefore leaves that loop first.
 *
 * Short turns take three times as long to emulate. If functions are given, turns are 100 times as long from the boot on
 * until a CPU calls one of the `from` functions, and again after a CPU calls one of the `to` functions.
 *
 * Arguments: quantum=INSTRUCTIONS,seed=NUMBER and, optionally, from=ADDRESS and to=ADDRESS, each as often as there are
 * functions; addresses are hexadecimal. QEMU 9.1 or later.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The part of QEMU's plugin interface that is used here; its documentation: docs/devel/tcg-plugins.rst. */
struct qemu_plugin_tb;
int qemu_plugin_version = 4;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*translated)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, void (*executed)(unsigned int, void *),
					  int flags, void *data);
const void *qemu_plugin_request_time_control(void);
void qemu_plugin_update_ns(const void *handle, int64_t time);

static const void *clock_handle;
static uint64_t quantum = 2000;
static uint64_t state = 1;
static uint64_t left;
static uint64_t stretch = 1;

#define MOST 8
static uint64_t addresses[2][MOST];
static int known[2];

static uint64_t draw(void)
{
	/* Xorshift: Marsaglia 2003. */
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* One global counter is enough: with thread=single, calls from different CPUs never overlap. */
static void executed(unsigned int cpu, void *instructions)
{
	uint64_t ran = (uintptr_t)instructions;

	(void)cpu;
	if (ran < left) {
		left -= ran;
		return;
	}
	left = stretch * (quantum / 2 + draw() % quantum);
	qemu_plugin_update_ns(clock_handle, 0);
}

static void entered(unsigned int cpu, void *factor)
{
	(void)cpu;
	if (stretch == (uintptr_t)factor)
		return;
	stretch = (uintptr_t)factor;
	left = 0;
}

static void translated(uint64_t id, struct qemu_plugin_tb *block)
{
	(void)id;
	for (int kind = 0; kind < 2; kind++)
		for (int i = 0; i < known[kind]; i++)
			if (qemu_plugin_tb_vaddr(block) == addresses[kind][i])
				qemu_plugin_register_vcpu_tb_exec_cb(block, entered, 0, (void *)(uintptr_t)(kind ? 100 : 1));
	qemu_plugin_register_vcpu_tb_exec_cb(block, executed, 0, (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

int qemu_plugin_install(uint64_t id, const void *info, int count, char **arguments)
{
	(void)info;
	for (int i = 0; i < count; i++) {
		if (!strncmp(arguments[i], "quantum=", 8))
			quantum = strtoull(arguments[i] + 8, NULL, 10);
		else if (!strncmp(arguments[i], "seed=", 5))
			state = strtoull(arguments[i] + 5, NULL, 10) * 0x9e3779b97f4a7c15u + 1;
		else if (!strncmp(arguments[i], "from=", 5) && known[0] < MOST)
			addresses[0][known[0]++] = strtoull(arguments[i] + 5, NULL, 16);
		else if (!strncmp(arguments[i], "to=", 3) && known[1] < MOST)
			addresses[1][known[1]++] = strtoull(arguments[i] + 3, NULL, 16);
		else
			return -1;
	}
	if (known[0])
		stretch = 100;
	if (!quantum || !state)
		return -1;
	left = stretch * quantum;
	clock_handle = qemu_plugin_request_time_control();
	if (!clock_handle)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
