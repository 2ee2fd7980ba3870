// SPDX-License-Identifier: BSD-3-Clause
/*
 * Measurement of the accessors of mmu_lock with and without the statistics, on two CPUs; see ../statistics_cost.py.
 *
 * The program prints a line for each case and repetition: case, "on" or "off", and the time per acquisition (lock and
 * unlock) of each thread, ns. The threads run at the same time. "on" and "off" alternate.
 */
#include <asm/prctl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "bench.h"

/* Per-CPU memory. */
PER_CPU_SECTION intptr_t shim_this_cpu_off;
PER_CPU_SECTION int shim_preempt_count = INT_MIN; /* never zero, as if no reschedule is needed */
PER_CPU_SECTION static struct { u64 offset; u32 mul, shift; } clock_data[2];
PER_CPU_SECTION static u32 clock_sequence;
PER_CPU_SECTION static char dynamic[PER_CPU_BYTES] __attribute__((aligned(64)));
static size_t dynamic_used;
extern char __start_percpu[], __stop_percpu[];
intptr_t shim_per_cpu_offset[MAX_CPUS];
static char *areas[MAX_CPUS];

void *shim_alloc_percpu(size_t size)
{
	void *p = dynamic + dynamic_used;

	dynamic_used += (size + 63) / 64 * 64;
	if (dynamic_used > sizeof(dynamic))
		abort();
	return p;
}

static u64 now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

#define CLOCK_SHIFT 31

/* Nanoseconds per tick of the TSC, scaled. */
static u32 clock_mul(void)
{
	u64 ns = now_ns(), tsc = __builtin_ia32_rdtsc();

	usleep(50000);
	tsc = __builtin_ia32_rdtsc() - tsc;
	ns = now_ns() - ns;
	return (u32)((double)ns / tsc * (1ULL << CLOCK_SHIFT));
}

static void setup_cpus(void)
{
	size_t size = (__stop_percpu - __start_percpu + 4095) / 4096 * 4096;
	u32 mul = clock_mul();
	int cpu;

	for (cpu = 0; cpu < MAX_CPUS; cpu++) {
		areas[cpu] = aligned_alloc(4096, size);
		if (!areas[cpu])
			abort();
		memcpy(areas[cpu], __start_percpu, __stop_percpu - __start_percpu);
		shim_per_cpu_offset[cpu] = areas[cpu] - __start_percpu;
		*per_cpu_ptr(&shim_this_cpu_off, cpu) = shim_per_cpu_offset[cpu];
		per_cpu_ptr(&clock_data[0], cpu)->mul = mul;
		per_cpu_ptr(&clock_data[0], cpu)->shift = CLOCK_SHIFT;
	}
}

static void become_cpu(int cpu, int pinned_to)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(pinned_to, &set);
	if (sched_setaffinity(0, sizeof(set), &set) || syscall(SYS_arch_prctl, ARCH_SET_GS, shim_per_cpu_offset[cpu]))
		abort();
}

void shim_resched(void)
{
	abort();
}

/* The clock. */
noinline u64 (local_clock)(void)
{
	u32 sequence, i;
	u64 tsc, ns;

	preempt_disable();
	NOP5();
	tsc = __builtin_ia32_rdtsc();
	do {
		sequence = this_cpu_read(clock_sequence);
		i = sequence & 1;
		ns = this_cpu_read(clock_data[i].offset) +
		     (u64)(((unsigned __int128)tsc * this_cpu_read(clock_data[i].mul)) >>
			   this_cpu_read(clock_data[i].shift));
	} while (unlikely(sequence != this_cpu_read(clock_sequence)));
	preempt_enable();
	return ns;
}

/* The lock. */
#define WRITER 0xffU
#define WAITER_MASK 0x1ffU
#define READER 0x200U

static _Atomic u32 *counts(rwlock_t *lock)
{
	return (_Atomic u32 *)&lock->cnts;
}

noinline int write_trylock(rwlock_t *lock)
{
	u32 expected;

	preempt_disable();
	expected = atomic_load_explicit(counts(lock), memory_order_relaxed);
	if (likely(!expected) && likely(atomic_compare_exchange_strong(counts(lock), &expected, WRITER)))
		return 1;
	preempt_enable();
	return 0;
}

noinline void write_lock(rwlock_t *lock)
{
	u32 expected = 0;

	preempt_disable();
	while (unlikely(!atomic_compare_exchange_strong(counts(lock), &expected, WRITER))) {
		expected = 0;
		cpu_relax();
	}
}

noinline void write_unlock(rwlock_t *lock)
{
	atomic_store_explicit((_Atomic u8 *)&lock->cnts, 0, memory_order_release);
	preempt_enable();
}

noinline int read_trylock(rwlock_t *lock)
{
	preempt_disable();
	if (likely(!(atomic_load_explicit(counts(lock), memory_order_relaxed) & WAITER_MASK))) {
		if (likely(!(atomic_fetch_add(counts(lock), READER) & WAITER_MASK)))
			return 1;
		atomic_fetch_sub(counts(lock), READER);
	}
	preempt_enable();
	return 0;
}

noinline void read_lock(rwlock_t *lock)
{
	preempt_disable();
	while (unlikely(atomic_fetch_add(counts(lock), READER) & WAITER_MASK)) {
		atomic_fetch_sub(counts(lock), READER);
		cpu_relax();
	}
}

noinline void read_unlock(rwlock_t *lock)
{
	atomic_fetch_sub(counts(lock), READER);
	preempt_enable();
}

/* The measurement. */
const struct kvm_stats_header kvm_vm_stats_header = { 0 };
static struct kvm vms[3];

struct thread {
	pthread_t id;
	int cpu, pinned_to;
	struct kvm *kvm;
	void (*pairs)(struct kvm *kvm, u64 n);
	u64 n;
	double ns;
};

static pthread_barrier_t barrier;

#ifdef CHECK_STORES
/* The accessors are compiled with -fsanitize=thread, which calls these functions with the address of every store. */
static __thread char *own_area, *own_stack;
static _Atomic u64 nr_own, nr_stack, nr_foreign;

static void check_store(const void *at, size_t size)
{
	const char *p = at;

	if (!own_area)
		return;
	if (p >= own_area && p + size <= own_area + (__stop_percpu - __start_percpu))
		nr_own++;
	else if (p <= own_stack && own_stack - p < 1 << 16)
		nr_stack++;
	else
		nr_foreign++;
}

void shim_this_cpu_store(const void *offset)
{
	check_store((const char *)offset + *this_cpu_ptr(&shim_this_cpu_off), 8);
}

#define STORES(size) \
	void __tsan_write##size(void *at) { check_store(at, size); } \
	void __tsan_unaligned_write##size(void *at) { check_store(at, size); } \
	void __tsan_read##size(void *at) { (void)at; } \
	void __tsan_unaligned_read##size(void *at) { (void)at; }
STORES(1) STORES(2) STORES(4) STORES(8) STORES(16)
void __tsan_write_range(void *at, long size) { check_store(at, size); }
void __tsan_read_range(void *at, long size) { (void)at; (void)size; }
void __tsan_init(void) { }
void __tsan_func_entry(void *at) { (void)at; }
void __tsan_func_exit(void) { }
void *__tsan_memcpy(void *to, const void *from, size_t n) { check_store(to, n); return memcpy(to, from, n); }
void *__tsan_memset(void *to, int c, size_t n) { check_store(to, n); return memset(to, c, n); }
#endif

static void *run_thread(void *arg)
{
	struct thread *t = arg;
	u64 start;

	become_cpu(t->cpu, t->pinned_to);
#ifdef CHECK_STORES
	own_stack = __builtin_frame_address(0);
	own_area = areas[t->cpu];
#endif
	t->pairs(t->kvm, t->n / 10);
	pthread_barrier_wait(&barrier);
	start = now_ns();
	t->pairs(t->kvm, t->n);
	t->ns = (double)(now_ns() - start) / t->n;
	/* Continue until the other thread is done, so that both are measured under the same load. */
	pthread_barrier_wait(&barrier);
	return NULL;
}

struct bench_case {
	const char *name;
	bool write;
	int nr_threads;
	int vm[MAX_CPUS];
};

/* VMs 0 and 1 share their counters, but not the lock; VM 2 has its own counters and lock. */
static const struct bench_case cases[] = {
	{ "write-alone", true, 1, { 0 } },
	{ "read-alone", false, 1, { 0 } },
	{ "write-own-lock", true, 2, { 0, 2 } },
	{ "read-own-lock", false, 2, { 0, 2 } },
	{ "write-own-lock-one-vm", true, 2, { 0, 1 } },
	{ "read-own-lock-one-vm", false, 2, { 0, 1 } },
	{ "read-shared-lock", false, 2, { 0, 0 } },
};

static void clock_reads(struct kvm *kvm, u64 n)
{
	u64 sum = 0;

	(void)kvm;
	while (n--)
		sum += (local_clock)();
	asm volatile("" : : "r" (sum));
}

static const struct bench_case clock_case[] = {
	{ "clock-alone", false, 1, { 0 } },
	{ "clock-two", false, 2, { 0, 0 } },
};

static void run(const char *label, void (*pairs)(struct kvm *kvm, u64 n), const struct bench_case *c, const int *cpus,
		u64 n)
{
	struct thread threads[MAX_CPUS];
	int i;

	pthread_barrier_init(&barrier, NULL, c->nr_threads);
	for (i = 0; i < c->nr_threads; i++) {
		threads[i] = (struct thread){ .cpu = i, .pinned_to = cpus[i], .kvm = &vms[c->vm[i]], .n = n,
					      .pairs = pairs };
		if (pthread_create(&threads[i].id, NULL, run_thread, &threads[i]))
			abort();
	}
	printf("%s", label);
	for (i = 0; i < c->nr_threads; i++) {
		pthread_join(threads[i].id, NULL);
		printf(" %.3f", threads[i].ns);
	}
	printf("\n");
	pthread_barrier_destroy(&barrier);
}

static void run_case(const struct bench_case *c, bool on, const int *cpus, u64 n)
{
	const struct loops *loops = on ? &loops_on : &loops_off;
	char label[64];

	snprintf(label, sizeof(label), "%s %s", c->name, on ? "on" : "off");
	run(label, c->write ? loops->write_pairs : loops->read_pairs, c, cpus, n);
}

/* Sums of a site and mode, as userspace reads them. */
static u64 acquired(struct kvm *kvm, int mode)
{
	loff_t at = sizeof(struct kvm_vm_stat) +
		    (KVM_MMU_LOCK_FAULT_SLOW * KVM_MMU_LOCK_NR_MODES + mode) * sizeof(struct kvm_mmu_lock_stat);
	u64 value = 0;

	if (kvm_mmu_lock_stats_read(kvm, (char *)&value, sizeof(value), &at) != sizeof(value))
		abort();
	return value;
}

int main(int argc, char *argv[])
{
	int repeats, r, cpus[MAX_CPUS], mode;
	u64 n, expected[2] = { 0 };
	size_t i;

	if (argc != 5) {
		fprintf(stderr, "usage: %s REPEATS ACQUISITIONS CPU CPU\n", argv[0]);
		return 2;
	}
	repeats = atoi(argv[1]);
	n = strtoull(argv[2], NULL, 10);
	cpus[0] = atoi(argv[3]);
	cpus[1] = atoi(argv[4]);
	for (i = 0; i < 3; i++) {
		if (i == 1)
			vms[1].mmu_lock_stats = vms[0].mmu_lock_stats;
		else if (kvm_mmu_lock_stats_init(&vms[i], "0"))
			abort();
	}
	setup_cpus();
#ifdef PERIOD
	shim_set_mmu_lock_stat_period(PERIOD);
#endif
	for (r = 0; r < repeats; r++) {
		run("clock-alone -", clock_reads, &clock_case[0], cpus, n);
		run("clock-two -", clock_reads, &clock_case[1], cpus, n);
		for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
			run_case(&cases[i], r % 2, cpus, n);
			run_case(&cases[i], !(r % 2), cpus, n);
			expected[cases[i].write] += cases[i].nr_threads * (n + n / 10);
		}
	}
	for (mode = 0; mode < 2; mode++) {
		u64 counted = acquired(&vms[0], mode) + acquired(&vms[2], mode);

		printf("counted %s %llu %llu\n", mode ? "write" : "read", (unsigned long long)counted,
		       (unsigned long long)expected[mode]);
	}
#ifdef CHECK_STORES
	printf("stores - %llu %llu %llu\n", (unsigned long long)nr_own, (unsigned long long)nr_stack,
	       (unsigned long long)nr_foreign);
#endif
	return 0;
}
