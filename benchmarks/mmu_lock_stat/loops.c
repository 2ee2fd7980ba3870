/* SPDX-License-Identifier: BSD-3-Clause */
/* Measured loops: compiled with the statistics (LOOPS is loops_on), and without (loops_off). */
#include <linux/kvm_mmu_lock.h>
#include "bench.h"

static void write_pairs(struct kvm *kvm, u64 n)
{
	while (n--) {
		kvm_mmu_write_lock(kvm, KVM_MMU_LOCK_FAULT_SLOW);
		asm volatile("" : : : "memory");
		kvm_mmu_write_unlock(kvm);
	}
}

static void read_pairs(struct kvm *kvm, u64 n)
{
	while (n--) {
		kvm_mmu_read_lock(kvm, KVM_MMU_LOCK_FAULT_SLOW);
		asm volatile("" : : : "memory");
		kvm_mmu_read_unlock(kvm);
	}
}

const struct loops LOOPS = { write_pairs, read_pairs };
