/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Closed lock loop in plain C, for comparison with simlib's compiled engine.
 *
 * N threads think (exponential), take a FIFO lock, hold it (exponential) and
 * drop it, until the given number of acquisitions. The program has an event
 * calendar (binary heap), a ring of waiters, and simlib's statistics of a lock:
 * acquisitions, contended acquisitions, wait and hold time (total, longest, and
 * histogram with a factor of two per bin), busy time, and the integral of the
 * queue length. Times are integers, in picoseconds. Random numbers are
 * SplitMix64 of a counter, with a stream per thread and a quantile table like
 * that of simlib.
 *
 * With -DWINNER_TREE the calendar is that of simlib, a winner tree over
 * threads. It is faster here because a thread has at most one pending event.
 *
 * usage: lock_loop THREADS ACQUISITIONS THINK_PS HOLD_PS
 */
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TABLE = 2048, MAX_THREADS = 1024 };

struct event {
	int64_t time;
	int32_t thread;
	int32_t arrives; /* 1: reaches the lock; 0: drops it */
};

struct stats {
	int64_t acquisitions, contended, wait, wait_max, hold, hold_max;
	int64_t wait_hist[65], hold_hist[65];
};

static int64_t table[TABLE];
static uint64_t key[MAX_THREADS], draws[MAX_THREADS];

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
	return z ^ (z >> 31);
}

static int64_t sample(int thread, int64_t mean)
{
	uint64_t z = mix(key[thread] + ++draws[thread] * 0x9E3779B97F4A7C15ULL);

	return (mean * table[z >> 53]) >> 16;
}

#ifdef WINNER_TREE

static int64_t tree[2 * MAX_THREADS];
static int arriving[MAX_THREADS];
static int leaves = 1;

static void set_key(int thread, int64_t key)
{
	unsigned int node = (unsigned int)(leaves + thread);

	tree[node] = key;
	while (node > 1) {
		int64_t rival = tree[node ^ 1];

		if (rival < key)
			key = rival;
		node >>= 1;
		tree[node] = key;
	}
}

static void prepare(int threads)
{
	while (leaves < threads)
		leaves *= 2;
	for (int i = 0; i < 2 * leaves; i++)
		tree[i] = INT64_MAX;
}

static void push(int64_t time, int thread, int arrives)
{
	arriving[thread] = arrives;
	set_key(thread, time << 10 | thread);
}

/* The event stays in the tree until its thread has another event, or waits. */
static struct event pop(void)
{
	int thread = (int)(tree[1] & (MAX_THREADS - 1));

	return (struct event){ tree[1] >> 10, thread, arriving[thread] };
}

static void waits(int thread)
{
	set_key(thread, INT64_MAX);
}

#else

static struct event heap[MAX_THREADS];
static int heap_size;

static int earlier(struct event a, struct event b)
{
	return a.time < b.time || (a.time == b.time && a.thread < b.thread);
}

static void push(int64_t time, int thread, int arrives)
{
	struct event e = { time, thread, arrives };
	int i = heap_size++;

	while (i > 0 && earlier(e, heap[(i - 1) / 2])) {
		heap[i] = heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	heap[i] = e;
}

static struct event pop(void)
{
	struct event top = heap[0], last = heap[--heap_size];
	int i = 0;

	for (;;) {
		int child = 2 * i + 1;

		if (child >= heap_size)
			break;
		if (child + 1 < heap_size && earlier(heap[child + 1], heap[child]))
			child++;
		if (!earlier(heap[child], last))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = last;
	return top;
}

static void prepare(int threads)
{
	(void)threads;
}

static void waits(int thread)
{
	(void)thread;
}

#endif

static int bits(int64_t value)
{
	return value ? 64 - __builtin_clzll((uint64_t)value) : 0;
}

int main(int argc, char **argv)
{
	static int64_t tried[MAX_THREADS], acquired[MAX_THREADS];
	static int waiting[MAX_THREADS];
	struct stats s = { 0 };
	struct timespec begin, end;
	int64_t think, hold, now = 0, busy = 0, queue_area = 0, changed = 0, target;
	int threads, owner = -1, head = 0, length = 0;

	if (argc != 5)
		return fprintf(stderr, "usage: lock_loop THREADS ACQUISITIONS THINK_PS HOLD_PS\n"), 2;
	threads = atoi(argv[1]);
	target = atoll(argv[2]);
	think = atoll(argv[3]);
	hold = atoll(argv[4]);
	if (threads < 1 || threads > MAX_THREADS || target < 1 || think < 0 || hold < 0)
		return fprintf(stderr, "lock_loop: 1 to %d threads, no negative times\n", MAX_THREADS), 2;

	for (int i = 0; i < TABLE; i++)
		table[i] = llround(-log1p(-(i + 0.5) / TABLE) * 65536.0);
	for (int i = 0; i < threads; i++)
		key[i] = mix(0x9E3779B97F4A7C15ULL * (uint64_t)(i + 1));

	prepare(threads);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int i = 0; i < threads; i++)
		push(sample(i, think), i, 1);
	while (s.acquisitions < target) {
		struct event e = pop();
		int i = e.thread, grant = -1;

		now = e.time;
		if (e.arrives) {
			tried[i] = now;
			if (owner < 0) {
				grant = i;
			} else {
				s.contended++;
				waiting[(head + length) % threads] = i;
				queue_area += length++ * (now - changed);
				changed = now;
				waits(i);
			}
		} else {
			int64_t held = now - acquired[i];

			s.hold += held;
			busy += held;
			if (held > s.hold_max)
				s.hold_max = held;
			s.hold_hist[bits(held)]++;
			owner = -1;
			if (length) {
				grant = waiting[head];
				head = (head + 1) % threads;
				queue_area += length-- * (now - changed);
				changed = now;
			}
			push(now + sample(i, think), i, 1);
		}
		if (grant >= 0) {
			int64_t wait = now - tried[grant];

			owner = grant;
			acquired[grant] = now;
			s.acquisitions++;
			s.wait += wait;
			if (wait > s.wait_max)
				s.wait_max = wait;
			s.wait_hist[bits(wait)]++;
			push(now + sample(grant, hold), grant, 0);
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("{\"seconds\": %.6f, \"acquisitions\": %" PRId64 ", \"contended\": %" PRId64
	       ", \"utilisation\": %.6f, \"mean_wait_ps\": %.1f, \"mean_queue\": %.4f}\n",
	       (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec), s.acquisitions,
	       s.contended, (double)busy / (double)now, (double)s.wait / (double)s.acquisitions,
	       (double)queue_area / (double)now);
	return 0;
}
