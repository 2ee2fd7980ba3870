// SPDX-License-Identifier: BSD-3-Clause
/*
 * The lab's init: reads /experiment, does what its lines say, and powers the machine off.
 *
 *   parameter NAME VALUE     write a parameter of the kvm module
 *   write PATH TEXT          write a file (of /proc or /sys)
 *   show PATH                print a file
 *   run PROGRAM ARGUMENT...  run a program and wait for it
 *
 * The console shows each line's output between "@simlib begin LINE" and "@simlib end LINE STATUS", so that the host can
 * assign the output to the line and detect truncation. A line that fails, with a status other than 0, ends the
 * experiment; later lines are not run.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORDS 64

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static void power_off(void)
{
	fflush(NULL);
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

static int write_file(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	ssize_t written;

	if (file < 0) {
		printf("%s: %s\n", path, strerror(errno));
		return errno;
	}
	written = write(file, text, strlen(text));
	if (written < 0) {
		int error = errno;

		printf("%s: %s refused: %s\n", path, text, strerror(error));
		close(file);
		return error;
	}
	close(file);
	return 0;
}

static int set_parameter(const char *name, const char *value)
{
	char path[256];

	snprintf(path, sizeof(path), "/sys/module/kvm/parameters/%s", name);
	if (access(path, W_OK))
		snprintf(path, sizeof(path), "/sys/module/kvm_amd/parameters/%s", name);
	return write_file(path, value);
}

static int show(const char *path)
{
	char buffer[4096];
	ssize_t got;
	int file = open(path, O_RDONLY);

	if (file < 0) {
		printf("%s: %s\n", path, strerror(errno));
		return errno;
	}
	fflush(stdout);
	while ((got = read(file, buffer, sizeof(buffer))) > 0)
		fwrite(buffer, 1, got, stdout);
	close(file);
	return 0;
}

static int run(char **words)
{
	int status;
	pid_t child;

	fflush(NULL);
	child = fork();
	if (child == 0) {
		execv(words[0], words);
		printf("%s: %s\n", words[0], strerror(errno));
		fflush(NULL);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0) {
		printf("fork: %s\n", strerror(errno));
		return errno;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int perform(char *line)
{
	char *words[MAX_WORDS + 1] = { NULL };
	int n = 0;
	char *rest = NULL;
	char *word;

	for (word = strtok_r(line, " \t", &rest); word && n < MAX_WORDS; word = strtok_r(NULL, " \t", &rest))
		words[n++] = word;
	if (n == 3 && !strcmp(words[0], "parameter"))
		return set_parameter(words[1], words[2]);
	if (n == 3 && !strcmp(words[0], "write"))
		return write_file(words[1], words[2]);
	if (n == 2 && !strcmp(words[0], "show"))
		return show(words[1]);
	if (n >= 2 && !strcmp(words[0], "run"))
		return run(words + 1);
	printf("no such line: %s (%d words)\n", n ? words[0] : "", n);
	return EINVAL;
}

int main(void)
{
	static char line[4096];
	FILE *experiment;
	int number = 0;

	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mkdir("/tmp", 0777);
	mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
	mkdir("/dev/shm", 0777);
	mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL);
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);

	experiment = fopen("/experiment", "r");
	printf("\n@simlib start %.9f\n", seconds());
	while (experiment && fgets(line, sizeof(line), experiment)) {
		int status;

		line[strcspn(line, "\n")] = '\0';
		if (!line[0] || line[0] == '#')
			continue;
		printf("@simlib begin %d\n", number);
		fflush(stdout);
		status = perform(line);
		printf("\n@simlib end %d %d\n", number, status);
		fflush(stdout);
		if (status)
			break;
		number++;
	}
	printf("@simlib stop %.9f\n", seconds());
	power_off();
	return 0;
}
