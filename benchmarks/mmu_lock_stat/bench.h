/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_H
#define BENCH_H

struct loops {
	void (*write_pairs)(struct kvm *kvm, u64 n);
	void (*read_pairs)(struct kvm *kvm, u64 n);
};

extern const struct loops loops_on, loops_off;

int kvm_mmu_lock_stats_init(struct kvm *kvm, const char *fdname);
void shim_set_mmu_lock_stat_period(unsigned int period);
ssize_t kvm_mmu_lock_stats_read(struct kvm *kvm, char *user_buffer, size_t size, loff_t *offset);

#endif /* BENCH_H */
