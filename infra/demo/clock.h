// Time and pacing shared by the C++ workloads: what a thread has used, and how to use a set share of a core.
#pragma once

#include <cerrno>
#include <cstdint>
#include <ctime>

inline int64_t nanoseconds(clockid_t clock) {
	timespec now{};
	clock_gettime(clock, &now);
	return now.tv_sec * INT64_C(1'000'000'000) + now.tv_nsec;
}

inline int64_t thread_cpu_ns() { return nanoseconds(CLOCK_THREAD_CPUTIME_ID); }

// Keeps a thread at a share of one core: after a piece of work it sleeps until the piece's CPU time is that share of the
// wall time. The length of each turn varies by a quarter, so that no sampling frequency can fall into step with it.
class Pace {
public:
	Pace(double share, uint64_t seed) : share_(share), state_(seed), due_(nanoseconds(CLOCK_MONOTONIC)) {}

	// The CPU time of the next piece of work, around `mean`.
	int64_t vary(int64_t mean) {
		state_ = state_ * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		return mean * 3 / 4 + static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(mean / 2));
	}

	// Sleeps after `used` ns of work; returns early on a signal.
	void rest(int64_t used) {
		if (share_ >= 1.0)
			return;
		due_ += static_cast<int64_t>(static_cast<double>(used) / share_);
		const int64_t now = nanoseconds(CLOCK_MONOTONIC);
		if (due_ < now) {
			due_ = now;  // the host was busy: what was missed is not caught up, or the share would be exceeded later
			return;
		}
		const timespec until{due_ / 1'000'000'000, due_ % 1'000'000'000};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
	}

private:
	double share_;
	uint64_t state_;
	int64_t due_;
};
