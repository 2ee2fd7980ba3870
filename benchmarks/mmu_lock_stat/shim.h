/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Substitutes for the kernel primitives that virt/kvm/mmu_lock_stat.c of the patch series uses, for x86-64 userspace.
 *
 * They have the same cost as in the kernel:
 *  - per-CPU variables are addressed through GS, as in the kernel: this_cpu_add() is a single instruction with a GS
 *    prefix, and per-CPU pointers are offsets to which a CPU adds its base. A thread represents a CPU.
 *  - local_clock() is a call; it disables preemption, reads the TSC unordered, and scales it with three per-CPU values
 *    between two reads of a sequence count, as native_sched_clock() does.
 *  - the rwlock has the fast paths of kernel/locking/qrwlock.c: a compare-and-exchange for a writer, an addition for a
 *    reader, a read before either in a trylock. The functions are calls. A thread that waits spins, but no measured
 *    acquisition waits.
 *  - preempt_disable() and preempt_enable() are a per-CPU increment, and decrement with a branch.
 *  - disabled static branches and tracepoints are a five-byte NOP, as in the kernel.
 * Lock debugging is off, as in a kernel for production.
 */
#ifndef SHIM_H
#define SHIM_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef int64_t s64;
typedef uint16_t u16;
typedef uint8_t u8;

#define noinline __attribute__((noinline))
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define min(a, b) ((a) < (b) ? (a) : (b))
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))
#define IS_ENABLED(x) 0
#define EXPORT_SYMBOL_GPL(x)
#define __acquires(x)
#define __releases(x)
#define __percpu
#define __user
#define ____cacheline_aligned __attribute__((aligned(64)))
#define NOP5() asm volatile(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00")

static __always_inline int fls64(u64 x)
{
	return x ? 64 - __builtin_clzll(x) : 0;
}

/* Per-CPU variables: the section is a template, of which each CPU has a copy; GS holds the distance to the copy. */
#define PER_CPU_BYTES (1 << 16)
#define MAX_CPUS 2
#define PER_CPU_SECTION __attribute__((section("percpu")))
#define DECLARE_PER_CPU(type, name) extern __typeof__(type) name
#define DEFINE_PER_CPU(type, name) PER_CPU_SECTION __typeof__(type) name

extern intptr_t shim_per_cpu_offset[MAX_CPUS];
DECLARE_PER_CPU(intptr_t, shim_this_cpu_off);
DECLARE_PER_CPU(int, shim_preempt_count);
void *shim_alloc_percpu(size_t size);

#define alloc_percpu_gfp(type, gfp) ((type *)shim_alloc_percpu(sizeof(type)))
#define free_percpu(p) ((void)(p))
#define for_each_possible_cpu(cpu) for ((cpu) = 0; (cpu) < MAX_CPUS; (cpu)++)
#define per_cpu_ptr(p, cpu) ((__typeof__(p))((intptr_t)(p) + shim_per_cpu_offset[cpu]))

#ifdef CHECK_STORES
void shim_this_cpu_store(const void *offset);
#else
#define shim_this_cpu_store(offset) ((void)0)
#endif

#define this_cpu_read(x) ({							\
	__typeof__(x) value_;							\
	if (sizeof(x) == 8)							\
		asm volatile("movq %%gs:%1, %q0" : "=r" (value_) : "m" (x));	\
	else									\
		asm volatile("movl %%gs:%1, %k0" : "=r" (value_) : "m" (x));	\
	value_;									\
})
#define this_cpu_add(x, n) do {						\
	shim_this_cpu_store(&(x));						\
	asm volatile("addq %1, %%gs:%0" : "+m" (x) : "re" ((u64)(n)));		\
} while (0)
#define this_cpu_inc(x) do {							\
	shim_this_cpu_store(&(x));						\
	asm volatile("incq %%gs:%0" : "+m" (x));				\
} while (0)
#define this_cpu_write(x, n) do {						\
	shim_this_cpu_store(&(x));						\
	asm volatile("movq %1, %%gs:%0" : "=m" (x) : "re" ((u64)(n)));		\
} while (0)
#define this_cpu_ptr(p) ({							\
	intptr_t at_ = (intptr_t)(p);						\
	asm volatile("addq %%gs:%1, %0" : "+r" (at_) : "m" (shim_this_cpu_off));	\
	(__typeof__(p))at_;							\
})

void shim_resched(void);

static __always_inline void preempt_disable(void)
{
	asm volatile("incl %%gs:%0" : "+m" (shim_preempt_count) : : "memory");
}

static __always_inline void preempt_enable(void)
{
	bool zero;

	asm volatile("decl %%gs:%0" : "+m" (shim_preempt_count), "=@ccz" (zero) : : "memory");
	if (unlikely(zero))
		shim_resched();
}

#define cond_resched() 0
#define cpu_relax() __builtin_ia32_pause()
#define should_resched(offset) false
#define need_resched() false
#define PREEMPT_LOCK_OFFSET 0
#define PREEMPT_LOCK_RESCHED_OFFSETS 0
#define __might_resched(file, line, offsets) ((void)0)
#define might_lock(lock) ((void)0)
#define might_lock_read(lock) ((void)0)
#define lockdep_assert_held_write(lock) ((void)0)
#define lockdep_assert_held_read(lock) ((void)0)
#define local_irq_save(flags) ((void)(flags))
#define local_irq_restore(flags) ((void)(flags))

#ifdef WITHOUT_PREFETCH
#define prefetchw(p) ((void)(p))
#else
#define prefetchw(p) asm volatile("prefetchw %0" : : "m" (*(const char *)(p)))
#endif

u64 local_clock(void);
#ifdef WITHOUT_CLOCK
#define local_clock() 1ULL
#endif

struct static_key_false { int unused; };
#define DECLARE_STATIC_KEY_FALSE(name) extern struct static_key_false name
#define static_branch_unlikely(key) ({ NOP5(); false; })

/* linux/kvm_types.h needs only these names. */
struct mutex { long unused[4]; };
struct list_head { struct list_head *next, *prev; };
typedef struct { int unused; } spinlock_t;
#define BIT(n) (1UL << (n))

typedef struct { u32 cnts; } rwlock_t;

void write_lock(rwlock_t *lock);
int write_trylock(rwlock_t *lock);
void write_unlock(rwlock_t *lock);
void read_lock(rwlock_t *lock);
int read_trylock(rwlock_t *lock);
void read_unlock(rwlock_t *lock);
#define rwlock_needbreak(lock) ((void)(lock), false)
#define cond_resched_rwlock_write(lock) ((void)(lock), 0)
#define cond_resched_rwlock_read(lock) ((void)(lock), 0)

#define KVM_HAVE_MMU_RWLOCK
#define __KVM_MM_H__ 1 /* virt/kvm/kvm_mm.h is not needed */
#include <linux/kvm_types.h>

struct kvm_vm_stat {
	struct kvm_vm_stat_generic generic;
};

struct kvm_stats_header { u32 data_offset; };
extern const struct kvm_stats_header kvm_vm_stats_header;

struct kvm {
	rwlock_t mmu_lock ____cacheline_aligned;
	struct kvm_mmu_lock_stats *mmu_lock_stats ____cacheline_aligned;
	struct kvm_vm_stat stat;
	int userspace_pid, userspace_fd;
};

struct kernel_param_ops;
static __always_inline void trace_kvm_mmu_lock_acquired(struct kvm *kvm, unsigned int site, bool write, bool contended,
							u64 wait_ns)
{
	NOP5();
}

static __always_inline void trace_kvm_mmu_lock_released(struct kvm *kvm, unsigned int site, bool write, u64 hold_ns)
{
	NOP5();
}

static __always_inline bool trace_kvm_mmu_lock_released_enabled(void)
{
	NOP5();
	return false;
}

/* A parameter is read as in the kernel; the benchmark sets it with this function. */
#define module_param(name, type, perm)		\
	void shim_set_##name(type value);	\
	void shim_set_##name(type value) { name = value; }
typedef unsigned int uint;

#define GFP_KERNEL_ACCOUNT 0
#define copy_to_user(to, from, n) (memcpy(to, from, n), 0)
#define kstrtoint(text, base, to) (*(to) = 0, 0)
#define task_pid_nr(task) 0

#endif /* SHIM_H */
