/*
 * What the agent is measured on. Built by bench_agent.rs with frame pointers.
 *
 *   busy CPU   stacks of 40 frames on one CPU, for ever
 *   fork       fork and exec, one after the other, for ever
 *   exit       what the latter executes
 *
 * The first two print a line for each piece of some 25 ms: CLOCK_MONOTONIC in nanoseconds, how many iterations, and nanoseconds
 * of own CPU time for each of them. One process lasts through all turns: two runs of the same program differ by more than a
 * profiler costs.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* A chain of multiplications: as long as the CPU says, whatever else the machine does. */
__attribute__((noinline)) static uint64_t work(uint64_t value)
{
	for (int i = 0; i < 2000; i++)
		value = value * 6364136223846793005u + 1442695040888963407u;
	return value;
}

__attribute__((noinline)) static uint64_t dive(int depth, uint64_t value)
{
	uint64_t result = depth ? dive(depth - 1, value) : work(value);

	/* Behind the call, so that it is no tail call. */
	__asm__ volatile("" : "+r"(result));
	return result + 1;
}

static void print(uint64_t iterations, uint64_t cpu_ns)
{
	if (printf("%llu %llu %f\n", (unsigned long long)now(CLOCK_MONOTONIC), (unsigned long long)iterations,
		   (double)cpu_ns / (double)iterations) < 0 || fflush(stdout))
		exit(1);
}

static void busy(void)
{
	uint64_t value = 1;

	for (;;) {
		uint64_t before = now(CLOCK_PROCESS_CPUTIME_ID);

		/* dive 34 deep and itself, work, busy, main and two of the C library: 40 frames. */
		for (int i = 0; i < 8192; i++)
			value = dive(34, value);
		print(8192, now(CLOCK_PROCESS_CPUTIME_ID) - before);
	}
}

static uint64_t used(int who)
{
	struct rusage usage;

	getrusage(who, &usage);
	return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
	       (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
}

static void fork_and_exec(const char *self)
{
	for (;;) {
		uint64_t before = used(RUSAGE_SELF) + used(RUSAGE_CHILDREN);

		for (int i = 0; i < 32; i++) {
			pid_t child = fork();

			if (child == 0) {
				execl(self, self, "exit", (char *)0);
				_exit(1);
			}
			if (child < 0 || waitpid(child, 0, 0) < 0)
				exit(1);
		}
		print(32, used(RUSAGE_SELF) + used(RUSAGE_CHILDREN) - before);
	}
}

int main(int count, char **arguments)
{
	cpu_set_t set;

	/* Not one of them outlives the benchmark. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (count == 3 && !strcmp(arguments[1], "busy")) {
		CPU_ZERO(&set);
		CPU_SET(atoi(arguments[2]), &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			return 1;
		busy();
	}
	if (count == 2 && !strcmp(arguments[1], "fork"))
		fork_and_exec(arguments[0]);
	return count == 2 && !strcmp(arguments[1], "exit") ? 0 : 2;
}
