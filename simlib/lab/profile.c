// SPDX-License-Identifier: BSD-3-Clause
/*
 * A plugin for QEMU's TCG that counts, for each translation block, the instructions that it executes and how often it
 * yields the rest of its turn (PAUSE on x86, YIELD and WFE on arm64; PAUSE on riscv does not yield, but is counted too).
 *
 * When QEMU ends, the plugin writes a line for each block: address, instructions and yields, summed over all CPUs.
 * Addresses of the host, the guest and programs are not distinguished.
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
	uint64_t address, instructions, yields, executions;
	struct block *next;
};

static struct block *blocks;
static const char *path;

static void executed(unsigned int cpu, void *data)
{
	(void)cpu;
	((struct block *)data)->executions++;
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
			block->yields += !strncmp(text, words[k], strlen(words[k]));
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
		if (block->executions)
			fprintf(out, "%llx %llu %llu\n", (unsigned long long)block->address,
				(unsigned long long)(block->executions * block->instructions),
				(unsigned long long)(block->executions * block->yields));
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
