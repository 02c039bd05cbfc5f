// A service with four named threads, each with work of its own and a set share of a core.

#include "clock.h"

#include <pthread.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <vector>

#define STEP __attribute__((noipa))

namespace {

// CPU time of one turn of a thread.
constexpr int64_t TURN_NS = 2'000'000;
constexpr size_t ACCOUNTS = 4'096;

std::atomic<bool> stopping{false};

struct Book {
	std::vector<uint64_t> balances = std::vector<uint64_t>(ACCOUNTS, 1'000'000);
	uint64_t seal = 1;
};

}  // namespace

// Moves money between pairs of accounts.
STEP void post_entries(Book &book) {
	uint64_t state = book.seal | 1;
	for (size_t i = 0; i < ACCOUNTS * 4; ++i) {
		state = state * UINT64_C(6364136223846793005) + 1;
		book.balances[(state >> 40) % ACCOUNTS] -= 7;
		book.balances[(state >> 20) % ACCOUNTS] += 7;
	}
	book.seal = state;
}

// Sums the book until it agrees with itself.
STEP void close_balances(Book &book) {
	uint64_t sum = 0;
	for (size_t pass = 0; pass < 8; ++pass)
		for (uint64_t balance : book.balances)
			sum = (sum << 1 | sum >> 63) + balance;
	book.seal ^= sum;
}

// Compounds every balance, in fixed point.
STEP void accrue_interest(Book &book) {
	for (uint64_t &balance : book.balances)
		for (int month = 0; month < 12; ++month)
			balance += balance / 4'801 % 13;
}

// Chains a hash over the book.
STEP void chain_audit(Book &book) {
	uint64_t hash = book.seal;
	for (uint64_t balance : book.balances)
		for (int byte = 0; byte < 8; ++byte)
			hash = (hash ^ (balance >> (8 * byte) & 0xff)) * UINT64_C(0x100000001b3);
	book.seal = hash;
}

struct Worker {
	const char *name;  // of the thread: at most 15 characters
	void (*step)(Book &);
	double share;
	pthread_t thread{};
	Book book{};
};

STEP void *run_worker(void *argument) {
	auto &worker = *static_cast<Worker *>(argument);
	pthread_setname_np(pthread_self(), worker.name);
	Pace pace(worker.share, static_cast<uint64_t>(worker.share * 1'000));
	while (!stopping) {
		const int64_t turn = pace.vary(TURN_NS), began = thread_cpu_ns();
		int64_t used = 0;
		while (used < turn) {
			worker.step(worker.book);
			used = thread_cpu_ns() - began;
		}
		pace.rest(used);
	}
	return nullptr;
}

int main() {
	// The workers inherit the blocked signals; only this thread waits for them.
	sigset_t stop;
	sigemptyset(&stop);
	sigaddset(&stop, SIGTERM);
	sigaddset(&stop, SIGINT);
	pthread_sigmask(SIG_BLOCK, &stop, nullptr);

	static std::array<Worker, 4> workers{{
		{"post-entries", post_entries, 0.12},
		{"close-balances", close_balances, 0.09},
		{"accrue-interest", accrue_interest, 0.06},
		{"chain-audit", chain_audit, 0.03},
	}};
	for (auto &worker : workers) {
		if (pthread_create(&worker.thread, nullptr, run_worker, &worker) != 0) {
			perror("ledger: thread");
			return 1;
		}
	}
	int signal = 0;
	sigwait(&stop, &signal);
	stopping = true;
	uint64_t result = 0;
	for (auto &worker : workers) {
		pthread_join(worker.thread, nullptr);
		result ^= worker.book.seal ^ worker.book.balances[0];
	}
	printf("ledger: done, result %llx\n", static_cast<unsigned long long>(result));
	return 0;
}
