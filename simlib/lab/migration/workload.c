/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Init of a Linux guest that is migrated: run one workload, and report its progress in a reserved range of memory.
 *
 * /workload holds the workload's name and numbers, one "key value" a line; simlib/lab/migration/linux.py writes it.
 * Writers (one thread a vCPU) write to their own part of the set. A program of the distribution runs as children:
 * "setup" lines run one after the other before it is steady, "run" lines run until the end.
 *
 * A timer thread of each vCPU runs every TICK_S with real-time priority, so that its delays are those of the vCPU.
 * All times are ticks of the time stamp counter, whose frequency the host measures and passes.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define PAGE 4096ul
#define MAX_VCPUS 4
#define GAPS 512		/* delays that are stored for each vCPU: a ring buffer */
#define SAMPLES 4096		/* samples of the progress: a ring buffer */
#define TICK_S 0.005		/* period of the timer threads, and shortest sleep of a writer */
#define SAMPLE_S 0.1		/* time between two samples */
#define CPU_USE_S 0.25		/* time between two readings of /proc/stat */
#define QUEUE_S 2.0		/* a writer that is later than this drops the older part of its demand */
#define STEADY_S 2.0		/* time from the start of a workload until it is reported as steady */
#define QUANTILES 4096

/* simlib/lab/migration/report.py reads these structures. */
struct pair { uint64_t first, second; };
struct vcpu {
	uint64_t operations;	/* of the vCPU's writer, or of the program */
	uint64_t last;		/* last run of the timer thread */
	uint64_t delays;	/* its delays of config.gap ticks or more */
	uint64_t unused[5];
};
struct report {
	char mark[8];
	uint64_t state, samples, busy, total, unused[3];
	struct vcpu vcpu[MAX_VCPUS];
	struct pair gaps[MAX_VCPUS][GAPS];	/* end and length */
	struct pair sample[SAMPLES];		/* time and operations of all vCPUs */
};
enum { STARTING, STEADY, FAILED };

static struct {
	uint64_t address, vcpus, ticks, gap;	/* of the report; threads; ticks/s; shortest delay that is stored */
	uint64_t set, rate, cpu_percent, fill, hot_set, hot_percent, skew_percent, period_ms, share_percent;
	char workload[64], counter[64], socket[64], request[64], field[64];
	char *setup[8], *run[8];
} config;

static const struct { const char *key; size_t offset; } NUMBERS[] = {
#define NUMBER(name) { #name, offsetof(typeof(config), name) }
	NUMBER(address), NUMBER(vcpus), NUMBER(ticks), NUMBER(gap), NUMBER(set), NUMBER(rate), NUMBER(cpu_percent),
	NUMBER(fill), NUMBER(hot_set), NUMBER(hot_percent), NUMBER(skew_percent), NUMBER(period_ms),
	NUMBER(share_percent),
}, TEXTS[] = {
	NUMBER(workload), NUMBER(counter), NUMBER(socket), NUMBER(request), NUMBER(field),
}, LISTS[] = {
	NUMBER(setup), NUMBER(run),
};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct report *report;
static uint64_t loops_per_s, quantiles[QUANTILES + 1];
static int ready;	/* threads that have prepared their memory */

struct writer {
	unsigned number;
	uint64_t pages, hot_pages, position, random, stamp;
	char *memory;
	int file;
};

static void fail(const char *what, const char *which)
{
	dprintf(2, "workload: %s %s: %s\n", what, which, errno ? strerror(errno) : "failed");
	if (report)
		report->state = FAILED;
	for (;;)
		pause();
}

static void sleep_ticks(uint64_t ticks)
{
	double s = (double)ticks / config.ticks;
	struct timespec span = { (time_t)s, (long)((s - (time_t)s) * 1e9) };

	nanosleep(&span, NULL);
}

static uint64_t ticks_of(double s)
{
	return (uint64_t)(s * config.ticks);
}

static void compute(uint64_t loops)
{
	while (loops--)
		__asm__ volatile("");
}

static void calibrate(void)
{
	const uint64_t loops = 1 << 22;
	uint64_t best = UINT64_MAX;

	for (int run = 0; run < 5; run++) {
		uint64_t start = __rdtsc();

		compute(loops);
		best = __rdtsc() - start < best ? __rdtsc() - start : best;
	}
	loops_per_s = loops * config.ticks / (best ? best : 1);
}

static uint64_t below(struct writer *writer, uint64_t count)
{
	uint64_t x = writer->random;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	writer->random = x;
	return (uint64_t)(((unsigned __int128)x * count) >> 64);
}

static void write_page(struct writer *writer, uint64_t page)
{
	*(volatile uint64_t *)(writer->memory + page * PAGE) = ++writer->stamp;
}

static void write_uniform(struct writer *writer)
{
	write_page(writer, below(writer, writer->pages));
}

static void write_hot_cold(struct writer *writer)
{
	uint64_t hot = writer->hot_pages;

	if (below(writer, 100) < config.hot_percent)
		write_page(writer, below(writer, hot));
	else
		write_page(writer, hot + below(writer, writer->pages - hot));
}

/* Ranks with a probability proportional to rank^-skew, from 4096 quantiles; the ranks are spread over the set. */
static void prepare_zipf(struct writer *writer)
{
	double e = 1 - config.skew_percent / 100.0 + 1e-9, scale = pow(writer->pages + 1.0, e) - 1;

	for (int i = 0; i <= QUANTILES; i++)
		quantiles[i] = (uint64_t)(pow(scale * i / QUANTILES + 1, 1 / e) - 0.999999);
}

static void write_zipf(struct writer *writer)
{
	uint64_t i = below(writer, QUANTILES), width = quantiles[i + 1] - quantiles[i];
	uint64_t rank = quantiles[i] + (width ? below(writer, width) : 0);

	write_page(writer, rank * 2654435761u % writer->pages);
}

static void write_sweep(struct writer *writer)
{
	memset(writer->memory + writer->position * PAGE, 1 + writer->stamp % 255, PAGE);
	if (++writer->position == writer->pages) {
		writer->position = 0;
		writer->stamp++;
	}
}

/* A file that grows to the size of the set, is truncated, and grows again. */
static void prepare_file(struct writer *writer)
{
	char name[] = "/cache/file0";

	name[11] += writer->number;
	writer->file = open(name, O_RDWR | O_CREAT, 0600);
	if (writer->file < 0)
		fail("open", name);
}

static void write_file(struct writer *writer)
{
	char page[PAGE];

	memset(page, 1 + writer->stamp++ % 255, PAGE);
	if (pwrite(writer->file, page, PAGE, (off_t)(writer->position * PAGE)) != (ssize_t)PAGE)
		fail("write", "/cache/file");
	if (++writer->position == writer->pages) {
		writer->position = 0;
		if (ftruncate(writer->file, 0))
			fail("truncate", "/cache/file");
	}
}

static void do_nothing(struct writer *writer)
{
	(void)writer;
}

static const struct kind {
	const char *name;
	void (*operate)(struct writer *writer);
	void (*prepare)(struct writer *writer);
	int first;	/* operations on each page before the workload is steady */
} KINDS[] = {
	{ "uniform", write_uniform, do_nothing, 0 },
	{ "hot-cold", write_hot_cold, do_nothing, 0 },
	{ "zipf", write_zipf, prepare_zipf, 0 },
	{ "bursts", write_uniform, do_nothing, 0 },
	{ "sweep", write_sweep, do_nothing, 0 },
	{ "page-cache", write_file, prepare_file, 1 },
	{ "idle-fresh", do_nothing, do_nothing, 0 },
	{ "filled", write_uniform, do_nothing, 0 },
};

static const struct kind *find_kind(void)
{
	for (size_t i = 0; i < COUNT(KINDS); i++)
		if (!strcmp(KINDS[i].name, config.workload))
			return &KINDS[i];
	return NULL;
}

/* Memory that holds the same non-zero byte in each page, different ones in neighbouring pages. */
static char *filled_memory(uint64_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap", "memory");
	for (uint64_t at = 0; at < bytes; at += PAGE)
		memset(memory + at, 1 + at / PAGE % 255, PAGE);
	return memory;
}

static void pin(unsigned cpu, int priority)
{
	struct sched_param parameters = { .sched_priority = priority };
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus))
		fail("affinity", "of a thread");
	if (priority && pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameters))
		fail("priority", "of a thread");
}

/*
 * Demand (cpu_percent < 100): one operation is due every interval; those that are due are done as soon as the vCPU
 * runs, then the thread sleeps. Each computes for cpu_percent of the interval. CPU-bound (100): the next operation
 * starts an interval after the last one, and the thread computes meanwhile. Bursts: share_percent of each period has
 * demand; the rest is a sleep, unless the burst's operations take longer.
 */
static void *write_forever(void *argument)
{
	struct writer *writer = argument;
	const struct kind *kind = find_kind();
	uint64_t *operations = &report->vcpu[writer->number].operations;
	uint64_t interval = config.rate ? config.ticks * config.vcpus / config.rate : 0;
	uint64_t loops = interval * config.cpu_percent / 100 * loops_per_s / config.ticks;
	uint64_t period = config.period_ms * config.ticks / 1000, next, begun;
	uint64_t burst = period && interval ? period * config.share_percent / 100 / interval : 0, left = burst;
	int bound = config.cpu_percent == 100 || !interval;

	pin(writer->number, 0);
	kind->prepare(writer);
	for (uint64_t i = 0; kind->first && i < writer->pages; i++)
		kind->operate(writer);
	__atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
	begun = next = __rdtsc();
	for (;;) {
		uint64_t now = __rdtsc();

		if (burst && !left) {
			if (now < begun + period)
				sleep_ticks(begun + period - now);
			begun = next = __rdtsc();
			left = burst;
			continue;
		}
		if (now < next) {
			if (!bound)
				sleep_ticks(next - now > ticks_of(TICK_S) ? next - now : ticks_of(TICK_S));
			continue;
		}
		if (now - next > ticks_of(QUEUE_S))
			next = now - ticks_of(QUEUE_S);
		if (bound)
			next = now;
		for (int i = 0; i < 16 && next <= now && (!burst || left); i++) {
			kind->operate(writer);
			++*operations;
			left -= burst > 0;
			next += interval;
			if (!bound)
				compute(loops);
		}
	}
	return NULL;
}

static uint64_t all_operations(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < config.vcpus; i++)
		sum += report->vcpu[i].operations;
	return sum;
}

static void *run_timer(void *argument)
{
	unsigned number = (unsigned)(uintptr_t)argument;
	struct vcpu *vcpu = &report->vcpu[number];
	uint64_t sampled = 0, tick = ticks_of(TICK_S);

	pin(number, 50);
	vcpu->last = __rdtsc();
	for (;;) {
		uint64_t now, delay;

		sleep_ticks(tick);
		now = __rdtsc();
		delay = now - vcpu->last > tick ? now - vcpu->last - tick : 0;
		if (delay >= config.gap)
			report->gaps[number][vcpu->delays++ % GAPS] = (struct pair){ now, delay };
		vcpu->last = now;
		if (number == 0 && now - sampled >= ticks_of(SAMPLE_S)) {
			report->sample[report->samples % SAMPLES] = (struct pair){ now, all_operations() };
			report->samples++;
			sampled = now;
		}
	}
	return NULL;
}

/* Busy and total jiffies of all CPUs: the first line of /proc/stat. */
static void read_cpu_use(void)
{
	unsigned long long value[8] = { 0 }, total = 0;
	FILE *file = fopen("/proc/stat", "r");

	if (!file || fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &value[0], &value[1], &value[2],
			    &value[3], &value[4], &value[5], &value[6], &value[7]) != 8)
		fail("read", "/proc/stat");
	fclose(file);
	for (int i = 0; i < 8; i++)
		total += value[i];
	report->busy = total - value[3] - value[4];
	report->total = total;
}

/* Counters of a program's operations: faults of all processes, a field of a server's answer, or bytes of its input. */

static uint64_t find_number(const char *text, const char *field)
{
	const char *at = strstr(text, field);

	return at && strchr(at, '\n') ? strtoull(at + strlen(field), NULL, 10) : 0;
}

static uint64_t count_faults(void)
{
	static char text[16384];
	int file = open("/proc/vmstat", O_RDONLY);
	ssize_t length = read(file, text, sizeof(text) - 1);

	close(file);
	text[length > 0 ? length : 0] = 0;
	return find_number(text, "pgfault ");
}

static uint64_t ask_server(void)
{
	static char text[16384];
	static int server = -1;
	size_t length = 0;
	uint64_t number = 0;

	if (server < 0) {
		struct sockaddr_un address = { .sun_family = AF_UNIX };

		server = socket(AF_UNIX, SOCK_STREAM, 0);
		strcpy(address.sun_path, config.socket);
		while (connect(server, (struct sockaddr *)&address, sizeof(address)))
			usleep(100000);
	}
	dprintf(server, "%s\r\n", config.request);
	while (!number && length < sizeof(text) - 1) {
		ssize_t more = read(server, text + length, sizeof(text) - 1 - length);

		if (more <= 0)
			fail("read", config.socket);
		length += more;
		text[length] = 0;
		number = find_number(text, config.field);
	}
	usleep(1000);
	recv(server, text, sizeof(text), MSG_DONTWAIT);	/* the rest of the answer */
	return number;
}

static int input[2] = { -1, -1 };
static uint64_t fed;

/* Text-like input: words from a list that changes slowly, so that a compressor finds some repetitions. */
static void *feed(void *argument)
{
	struct writer source = { .random = 88172645463325252ull };
	char block[PAGE];

	(void)argument;
	for (;; fed++) {
		for (size_t at = 0; at < PAGE; at += 8) {
			uint64_t word = (below(&source, 50000) + fed / 64) * 0x9e3779b97f4a7c15ull;

			memcpy(block + at, &word, 8);
		}
		for (size_t done = 0; done < PAGE;) {
			ssize_t more = write(input[1], block + done, PAGE - done);

			if (more < 0)
				fail("write", "input");
			done += more;
		}
	}
	return NULL;
}

static uint64_t count_input(void)
{
	return fed;
}

static const struct { const char *name; uint64_t (*count)(void); } COUNTERS[] = {
	{ "faults", count_faults }, { "server", ask_server }, { "input", count_input },
};

static void *count_forever(void *argument)
{
	uint64_t (*count)(void) = NULL, start;

	(void)argument;
	for (size_t i = 0; i < COUNT(COUNTERS); i++)
		if (!strcmp(COUNTERS[i].name, config.counter))
			count = COUNTERS[i].count;
	if (!count)
		fail("counter", config.counter);
	for (start = count();; sleep_ticks(ticks_of(SAMPLE_S / 2)))
		report->vcpu[0].operations = count() - start;
	return NULL;
}

static pid_t spawn(const char *command)
{
	pid_t child = fork();

	if (child < 0)
		fail("fork", command);
	if (!child) {
		if (input[0] >= 0) {
			dup2(input[0], 0);
			close(input[1]);
		}
		execl("/bin/busybox", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	return child;
}

static pthread_t start_thread(void *(*run)(void *), void *argument)
{
	pthread_t thread;

	errno = pthread_create(&thread, NULL, run, argument);
	if (errno)
		fail("start", "a thread");
	return thread;
}

static void start_writers(void)
{
	const struct kind *kind = find_kind();

	if (config.fill)
		filled_memory(config.fill);
	for (unsigned i = 0; i < config.vcpus; i++) {
		struct writer *writer = calloc(1, sizeof(*writer));

		writer->number = i;
		writer->random = 0x9e3779b97f4a7c15ull * (i + 1);
		writer->pages = config.set / PAGE / config.vcpus;
		writer->hot_pages = config.hot_set / PAGE / config.vcpus;
		if (config.set && !kind->first)
			writer->memory = filled_memory(writer->pages * PAGE);
		start_thread(write_forever, writer);
	}
	while (__atomic_load_n(&ready, __ATOMIC_SEQ_CST) < (int)config.vcpus)
		usleep(10000);
}

static void start_program(void)
{
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(config.counter, "input") && pipe2(input, 0))
		fail("pipe", "of the program");
	for (size_t i = 0; i < COUNT(config.run) && config.run[i]; i++) {
		int status = 0;
		pid_t child = spawn(config.run[i]);

		if (config.setup[i])
			waitpid(spawn(config.setup[i]), &status, 0);
		if (status)
			fail("setup", config.setup[i]);
		if (waitpid(child, &status, WNOHANG) == child)
			fail("run", config.run[i]);
	}
	if (input[1] >= 0)
		start_thread(feed, NULL);
	start_thread(count_forever, NULL);
	while (!report->vcpu[0].operations)
		usleep(10000);
}

static void read_config(void)
{
	FILE *file = fopen("/workload", "r");
	char line[1024];

	while (file && fgets(line, sizeof(line), file)) {
		char *value = line + strcspn(line, " \n");

		if (*value)
			*value++ = 0;
		value[strcspn(value, "\n")] = 0;
		for (size_t i = 0; i < COUNT(NUMBERS); i++)
			if (!strcmp(NUMBERS[i].key, line))
				*(uint64_t *)((char *)&config + NUMBERS[i].offset) = strtoull(value, NULL, 10);
		for (size_t i = 0; i < COUNT(TEXTS); i++)
			if (!strcmp(TEXTS[i].key, line))
				strncpy((char *)&config + TEXTS[i].offset, value, 63);
		for (size_t i = 0; i < COUNT(LISTS); i++) {
			char **list = (char **)((char *)&config + LISTS[i].offset);

			for (size_t j = 0; j < 8 && !strcmp(LISTS[i].key, line); j++)
				if (!list[j]) {
					list[j] = strdup(value);
					break;
				}
		}
	}
	if (!file || !config.vcpus || config.vcpus > MAX_VCPUS || !config.ticks)
		fail("read", "/workload");
}

int main(void)
{
	int memory;

	if (mount("proc", "/proc", "proc", 0, NULL) || mount("devtmpfs", "/dev", "devtmpfs", 0, NULL) ||
	    mount("tmpfs", "/cache", "tmpfs", 0, "size=100%"))
		fail("mount", "/proc, /dev or /cache");
	read_config();
	setenv("PATH", "/bin", 1);
	memory = open("/dev/mem", O_RDWR);
	report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED, memory, (off_t)config.address);
	if (report == MAP_FAILED) {
		report = NULL;
		fail("map", "the report");
	}
	memset(report, 0, sizeof(*report));
	memcpy(report->mark, "simlibLG", 8);
	calibrate();
	for (uintptr_t i = 0; i < config.vcpus; i++)
		start_thread(run_timer, (void *)i);
	if (find_kind())
		start_writers();
	else
		start_program();
	sleep_ticks(ticks_of(STEADY_S));
	report->state = STEADY;
	for (;; sleep_ticks(ticks_of(CPU_USE_S))) {
		read_cpu_use();
		if (waitpid(-1, NULL, WNOHANG) > 0)
			fail("exit", "of the program");
	}
}
