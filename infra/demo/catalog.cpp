// A service that prices a catalogue, with one mistake in it: `reprice` copies all of its items, because somebody wrote `auto`
// where `auto &` was meant. The items are plain data, so that the copy is the C library's memmove: a leaf without a frame
// pointer. A walk by frame pointers alone goes from there to the caller's caller, and the guilty function is the one that it loses.

#include "clock.h"

#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

// 4 MB of items: more than the caches of a core hold, so that the copy is what takes the time.
constexpr size_t ITEMS = 128 * 1024;
constexpr int64_t TURN_NS = 10'000'000;

volatile sig_atomic_t stopping = 0;

}  // namespace

struct Item {
	uint64_t number;
	uint64_t cents;
	uint64_t stock;
	uint64_t supplier;
};

class Catalog {
public:
	explicit Catalog(size_t count) : items_(count) {
		for (size_t at = 0; at < count; ++at)
			items_[at] = {at, 99 + at * 37 % 9'900, at % 41, at % 977};
	}
	const std::vector<Item> &items() const { return items_; }

private:
	std::vector<Item> items_;
};

// noipa: one symbol with the name it has here.
__attribute__((noipa)) uint64_t reprice(const Catalog &catalog, uint64_t turn) {
	auto items = catalog.items();
	return items[turn % items.size()].cents + items.back().stock;
}

__attribute__((noipa)) uint64_t serve(const Catalog &catalog, uint64_t turn) { return reprice(catalog, turn) + 1; }

int main(int argc, char **argv) {
	const double share = argc > 1 ? std::atof(argv[1]) : 0.1;
	if (!(share > 0 && share <= 1)) {
		fprintf(stderr, "catalog: the share of a core is \"%s\": it takes a number above 0 and up to 1\n", argv[1]);
		return 2;
	}
	struct sigaction action {};
	action.sa_handler = [](int) { stopping = 1; };
	sigaction(SIGTERM, &action, nullptr);
	sigaction(SIGINT, &action, nullptr);
	const Catalog catalog(ITEMS);
	Pace pace(share, 7);
	uint64_t result = 0;
	for (uint64_t turn = 0; !stopping;) {
		const int64_t began = thread_cpu_ns(), work = pace.vary(TURN_NS);
		while (thread_cpu_ns() - began < work)
			result += serve(catalog, turn++);
		pace.rest(thread_cpu_ns() - began);
	}
	return result == 0;
}
