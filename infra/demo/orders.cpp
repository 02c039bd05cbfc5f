// A service that prices orders, with one mistake in it: `apply_discounts` copies every order's lines, because somebody
// wrote `auto` where `auto &` was meant.
//
// It knows the truth about itself. A round is a fixed amount of CPU time, divided among the phases by the shares below;
// a phase works in small units until its part is used, and its time is read from the thread's own CPU clock around each
// unit. So the shares are the same on every machine, and a profile can be checked against the report.

#include "clock.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

// noipa: no inlining, cloning or merging, so that the function is one symbol with the name it has here.
#define PHASE __attribute__((noipa))

namespace {

constexpr size_t ORDERS = 4;
// 48 KB of lines: large enough to hurt, and below the sizes at which malloc maps memory or gives it back (128 and 64 KiB):
// the copy is the cost here, not page faults.
constexpr size_t LINES_PER_ORDER = 2'000;
constexpr size_t PRODUCTS = 16'384;
// CPU time of one round: long against one unit of a phase (some 100 us), short against a second.
constexpr int64_t ROUND_NS = 10'000'000;

volatile sig_atomic_t stopping = 0;

}  // namespace

// One line of an order. Its copy keeps a trail, as classes that grew over years do: copying is code, not a memmove.
// Defined in the class, so that it is inlined into the copying loop: GCC gives a leaf that needs no stack no frame, even
// with -mno-omit-leaf-frame-pointer, and a frame-pointer walk from such a leaf skips whoever called it.
struct Line {
	uint32_t product = 0;
	uint32_t quantity = 0;
	uint64_t cents = 0;
	uint64_t trail = 0;

	Line() = default;
	Line(const Line &other) : product(other.product), quantity(other.quantity), cents(other.cents), trail(other.trail) {
		for (int round = 0; round < 8; ++round)
			trail = (trail ^ (trail >> 29)) * UINT64_C(0x9e3779b97f4a7c15) + product;
	}
	Line &operator=(const Line &) = default;
};

class Order {
public:
	explicit Order(uint32_t number) : lines_(LINES_PER_ORDER) {
		for (uint32_t i = 0; i < LINES_PER_ORDER; ++i) {
			lines_[i].product = (number * 7'919 + i * 104'729) % PRODUCTS;
			lines_[i].quantity = 1 + i % 9;
			lines_[i].cents = 99 + (i * 37) % 9'900;
		}
	}
	const std::vector<Line> &lines() const { return lines_; }

private:
	std::vector<Line> lines_;
};

struct Shop {
	std::vector<Order> orders;
	std::vector<uint32_t> shelf;  // product numbers, sorted
	std::array<char, 64 * 1024> page{};
	uint64_t result = 0;  // what the phases computed, so that none of it can be left out
};

// The mistake: `auto lines` is a copy of the whole vector, one copy constructor per line.
PHASE void apply_discounts(Shop &shop) {
	for (const auto &order : shop.orders) {
		auto lines = order.lines();
		uint64_t discount = 0;
		for (const auto &line : lines)
			discount += line.cents * line.quantity / 20;
		shop.result += discount + lines.back().trail;
	}
}

// Looks for every line's product on the shelf.
PHASE void match_inventory(Shop &shop) {
	uint64_t found = 0;
	for (const auto &order : shop.orders) {
		for (const auto &line : order.lines()) {
			size_t low = 0, high = shop.shelf.size();
			while (low < high) {
				const size_t middle = (low + high) / 2;
				if (shop.shelf[middle] < line.product)
					low = middle + 1;
				else
					high = middle;
			}
			found += low;
		}
	}
	shop.result += found;
}

// Writes every line's number and price as text.
PHASE void serialize_orders(Shop &shop) {
	char *out = shop.page.data();
	char *const end = out + shop.page.size() - 64;
	for (const auto &order : shop.orders) {
		for (const auto &line : order.lines()) {
			for (uint64_t number : {uint64_t{line.product}, line.cents * line.quantity}) {
				char digits[20];
				int count = 0;
				do {
					digits[count++] = static_cast<char>('0' + number % 10);
					number /= 10;
				} while (number != 0);
				while (count > 0)
					*out++ = digits[--count];
				*out++ = ',';
			}
			if (out > end)
				out = shop.page.data();
		}
	}
	shop.result += static_cast<uint64_t>(static_cast<unsigned char>(*shop.page.data()));
}

// Has no symbol of its own: only DWARF knows that this ran, and where.
__attribute__((always_inline)) inline uint64_t sign_lines(const std::vector<Line> &lines) {
	uint64_t signature = UINT64_C(0xcbf29ce484222325);
	for (const auto &line : lines) {
		for (uint64_t word : {uint64_t{line.product}, uint64_t{line.quantity}, line.cents}) {
			for (int byte = 0; byte < 4; ++byte) {
				signature = (signature ^ (word & 0xff)) * UINT64_C(0x100000001b3);
				word >>= 8;
			}
		}
	}
	return signature;
}

PHASE void sign_orders(Shop &shop) {
	for (const auto &order : shop.orders)
		shop.result ^= sign_lines(order.lines());
}

struct Phase {
	const char *name;  // the function that a profile should show, inclusive of what it calls
	void (*run)(Shop &);
	int percent;
	int64_t used_ns = 0;  // by the thread's CPU clock, since the start
	int64_t owed_ns = 0;  // its part of the rounds so far
};

// One JSON line, in one write: a reader never sees half of it.
void write_report(int file, const std::array<Phase, 4> &phases) {
	if (file < 0)
		return;
	char line[512];
	int length = snprintf(line, sizeof line, "{\"time_unix_ns\":%lld,\"thread_cpu_ns\":%lld,\"phases\":{",
			static_cast<long long>(nanoseconds(CLOCK_REALTIME)), static_cast<long long>(thread_cpu_ns()));
	for (const auto &phase : phases)
		length += snprintf(line + length, sizeof line - static_cast<size_t>(length), "%s\"%s\":%lld",
				&phase == &phases[0] ? "" : ",", phase.name, static_cast<long long>(phase.used_ns));
	length += snprintf(line + length, sizeof line - static_cast<size_t>(length), "}}\n");
	if (write(file, line, static_cast<size_t>(length)) != length)
		perror("orders: report");
}

// Runs one round: each phase until its part of all rounds so far is used. Its clock is read once per unit.
PHASE void price_orders(Shop &shop, std::array<Phase, 4> &phases, int64_t round_ns) {
	for (auto &phase : phases) {
		phase.owed_ns += round_ns * phase.percent / 100;
		while (phase.used_ns < phase.owed_ns) {
			const int64_t before = thread_cpu_ns();
			phase.run(shop);
			phase.used_ns += thread_cpu_ns() - before;
		}
	}
}

namespace {

[[noreturn]] void usage() {
	fputs("usage: orders [--seconds N] [--cpu-share P] [--report FILE]\n"
	      "  --seconds N     end after N seconds; 0, the default, runs until SIGTERM\n"
	      "  --cpu-share P   share of one core to use, above 0 and up to 1; default 0.5\n"
	      "  --report FILE   one JSON line per second: CPU nanoseconds of each phase since the start\n", stderr);
	exit(2);
}

}  // namespace

int main(int argc, char **argv) {
	double seconds = 0, share = 0.5;
	const char *report = nullptr;
	for (int i = 1; i < argc; i += 2) {
		if (i + 1 >= argc)
			usage();
		char *rest = nullptr;
		if (strcmp(argv[i], "--report") == 0) {
			report = argv[i + 1];
			continue;
		}
		const double number = strtod(argv[i + 1], &rest);
		if (*rest != '\0')
			usage();
		if (strcmp(argv[i], "--seconds") == 0 && number >= 0)
			seconds = number;
		else if (strcmp(argv[i], "--cpu-share") == 0 && number > 0 && number <= 1)
			share = number;
		else
			usage();
	}
	const int file = report ? open(report, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644) : -1;
	if (report && file < 0) {
		perror(report);
		return 1;
	}

	struct sigaction stop{};
	stop.sa_handler = [](int) { stopping = 1; };  // without SA_RESTART: the sleep ends at once
	sigaction(SIGTERM, &stop, nullptr);
	sigaction(SIGINT, &stop, nullptr);

	static Shop shop;
	for (uint32_t number = 0; number < ORDERS; ++number)
		shop.orders.emplace_back(number);
	for (uint32_t product = 0; product < PRODUCTS; ++product)
		shop.shelf.push_back(product);
	std::array<Phase, 4> phases{{
		{"apply_discounts", apply_discounts, 40},
		{"match_inventory", match_inventory, 25},
		{"serialize_orders", serialize_orders, 20},
		{"sign_lines", sign_orders, 15},
	}};

	Pace pace(share, 1);
	const int64_t began = nanoseconds(CLOCK_MONOTONIC);
	int64_t reported = began;
	write_report(file, phases);
	while (!stopping) {
		const int64_t round_ns = pace.vary(ROUND_NS);
		price_orders(shop, phases, round_ns);
		pace.rest(round_ns);
		const int64_t now = nanoseconds(CLOCK_MONOTONIC);
		if (now - reported >= 1'000'000'000) {
			write_report(file, phases);
			reported = now;
		}
		if (seconds > 0 && static_cast<double>(now - began) >= seconds * 1e9)
			break;
	}
	write_report(file, phases);
	// The result is printed so that it is used.
	printf("orders: done, result %llx\n", static_cast<unsigned long long>(shop.result));
	return 0;
}
