// SPDX-License-Identifier: BSD-3-Clause
/*
 * A plugin for QEMU's TCG that counts what every block of code executes: its instructions, and how often it gives the
 * rest of its turn away (x86's PAUSE, arm64's YIELD and WFE; riscv's PAUSE does not, and is counted all the same).
 *
 * When the machine ends, it writes a line for each block: address, instructions, times that it gave way; all of all CPUs
 * together. An address counts as it is, whoever runs there: host, guest or a program.
 *
 * Argument: out=FILE. QEMU 9.1 or later, with one host thread for all CPUs.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of QEMU's plugin interface that is used here; its documentation: docs/devel/tcg-plugins.rst. */
struct qemu_plugin_tb;
struct qemu_plugin_insn;
int qemu_plugin_version = 4;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
char *qemu_plugin_insn_disas(const struct qemu_plugin_insn *instruction);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*translated)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, void (*executed)(unsigned int, void *),
					  int flags, void *data);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*ended)(uint64_t, void *), void *data);

struct block {
	uint64_t address, instructions, gives_way, times;
	struct block *next;
};

static struct block *blocks;
static const char *path;

static void executed(unsigned int cpu, void *data)
{
	(void)cpu;
	((struct block *)data)->times++;
}

static void translated(uint64_t id, struct qemu_plugin_tb *code)
{
	static const char *const words[] = { "pause", "yield", "wfe" };
	struct block *block = calloc(1, sizeof(*block));

	(void)id;
	if (!block)
		abort();
	block->address = qemu_plugin_tb_vaddr(code);
	block->instructions = qemu_plugin_tb_n_insns(code);
	for (size_t i = 0; i < block->instructions; i++) {
		char *text = qemu_plugin_insn_disas(qemu_plugin_tb_get_insn(code, i));

		for (size_t k = 0; text && k < sizeof(words) / sizeof(*words); k++)
			block->gives_way += !strncmp(text, words[k], strlen(words[k]));
		free(text);
	}
	block->next = blocks;
	blocks = block;
	qemu_plugin_register_vcpu_tb_exec_cb(code, executed, 0, block);
}

static void ended(uint64_t id, void *data)
{
	FILE *out = fopen(path, "w");

	(void)id;
	(void)data;
	if (!out)
		return;
	for (struct block *block = blocks; block; block = block->next)
		if (block->times)
			fprintf(out, "%llx %llu %llu\n", (unsigned long long)block->address,
				(unsigned long long)(block->times * block->instructions),
				(unsigned long long)(block->times * block->gives_way));
	fclose(out);
}

int qemu_plugin_install(uint64_t id, const void *info, int count, char **arguments)
{
	(void)info;
	if (count != 1 || strncmp(arguments[0], "out=", 4))
		return -1;
	path = strdup(arguments[0] + 4);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, ended, NULL);
	return 0;
}
