/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the program writes and user space reads: the one definition of a sample's bytes. `src/record.rs` holds the same
 * numbers; sizes and offsets are asserted on both sides, so that neither can change alone.
 */
#ifndef STROBE_RECORD_H
#define STROBE_RECORD_H

/* Frames kept of each side: the kernel's default `perf_event_max_stack`. Deeper stacks arrive cut, and say so. */
#define STACK_FRAMES_MAX 127
/* Two sides, rounded up to a power of two: an index masked with FRAMES_MASK is one the verifier believes. */
#define FRAMES_CAPACITY 256
#define FRAMES_MASK (FRAMES_CAPACITY - 1)
#define COMM_BYTES 16

/* How a stack ended. Only STACK_ROOT is complete; every other one says why it is not. */
enum stack_end {
	STACK_NOT_TAKEN = 0,	/* this side was not running: no kernel stack of a sample in user mode */
	STACK_ROOT = 1,		/* the outermost frame: saved frame pointer or return address 0, or start-up code */
	STACK_DEPTH = 2,	/* STACK_FRAMES_MAX frames, and more were there */
	STACK_UNREADABLE = 3,	/* the next frame's memory could not be read: not resident, or not mapped */
	STACK_BAD_FRAME_POINTER = 4,	/* not ascending or misaligned: code without frame pointers */
	STACK_BAD_RETURN_ADDRESS = 5,	/* the word above the saved frame pointer is no user address */
	STACK_NO_USER = 6,	/* a kernel thread, or a process whose memory is gone already */
	STACK_EXEC = 7,		/* withheld: inside execve registers and memory may belong to different images */
	STACK_COMPAT32 = 8,	/* 32-bit code: frames of another size; only the first address is kept */
	STACK_NO_MAPPING = 9,	/* the last frame's address lies in no code that the process is known to have mapped */
	STACK_UNSUPPORTED = 10,	/* the binary describes the last frame in a way that no rule expresses */
	STACK_NO_TABLE = 11,	/* no table says anything of the last frame, and its frame pointer leads nowhere */
	STACK_BEFORE_TABLES = 12,	/* walked by frame pointers, as tables were not there yet: callers may be missing */
	STACK_NO_ROOM = 13,	/* the same, as the memory of tables is full */
	STACK_ENDS
};

/* sample_header.flags */
#define SAMPLE_KERNEL_MODE 1	/* the tick interrupted the kernel */
#define SAMPLE_FRAMES_OMITTED 2	/* the same stack went out in this epoch already: look it up by `stack_hash` */
#define SAMPLE_GUEST 4		/* a vCPU thread running its guest: the time is the guest's */
#define SAMPLE_NO_TABLES 8	/* this image had no list of mappings of its own, or one that lacks what the stack runs through */
#define SAMPLE_GUESSED 16	/* a frame was left by a frame pointer for which no table vouches, or by a parent's table */

enum drop_reason {
	DROP_RING_FULL = 0,	/* no room, or the ring's lock was held too long */
	DROP_OUTPUT_FAILED = 1,	/* any other refusal */
	DROP_REASONS
};

struct sample_header {
	__u64 time_ns;		/* CLOCK_MONOTONIC */
	__u64 stack_hash;	/* over the image's identity and every frame, never over the time */
	__u64 start_time_ns;	/* the process's start, CLOCK_BOOTTIME: guards against a reused pid */
	__u64 cgroup_id;
	__u64 cpu_sequence;	/* this CPU's `taken` at this sample: a gap is a loss, seen exactly */
	__u32 tgid;
	__u32 tid;
	__u32 exec_id;		/* execs so far: the same pid and start time before and after are two images */
	__u32 epoch;		/* of the sent-stacks table when the tick began */
	__u16 cpu;
	__u8 kernel_depth;	/* true depths, also where the frames are omitted */
	__u8 user_depth;
	__u8 kernel_end;	/* enum stack_end */
	__u8 user_end;
	__u16 flags;
	char comm[COMM_BYTES];
	/* With SAMPLE_NO_TABLES: the process that this one was forked from and whose mappings it has, if it has no tables either. */
	__u64 parent_start_ns;
	__u32 parent_tgid;	/* 0: there is none */
	__u32 reserved;
	__u64 value;		/* what it stands for: nanoseconds of a clock, else what was counted since the last one */
};

/* Sent with its first `kernel_depth + user_depth` frames: the kernel's, then the user's, innermost first. */
struct sample_record {
	struct sample_header header;
	__u64 frames[FRAMES_CAPACITY];
};

/* One per CPU, only ever growing. Ticks = taken + idle + unwatched; taken = full + omitted + all of dropped. */
struct cpu_counters {
	__u64 taken;
	__u64 idle;
	__u64 unwatched;
	__u64 full;
	__u64 omitted;
	__u64 dropped[DROP_REASONS];
	__u64 user_ends[STACK_ENDS];
};

/* Written by user space while the program runs; one cache line of its own. */
struct control {
	__u32 epoch;
	__u32 omit_seen;	/* 0: send every stack whole */
	__u32 woken;		/* 1: user space was woken and has not read since */
	__u32 woken_for_image;	/* 1: it was woken for an image without tables, and has not allowed it again */
	__u32 no_room;		/* 1: what lacks tables lacks them because their memory is full */
	__u32 stopped;		/* 1: a tracepoint takes no more; other events are stopped by themselves */
	__u64 period;		/* what one sample stands for; of a tracepoint, how much must come together for one */
	__u64 from_ns;		/* CLOCK_MONOTONIC from which on ticks count, */
	__u64 until_ns;		/* and from which on they no longer do */
};

_Static_assert(sizeof(struct sample_header) == 104, "src/record.rs HEADER_BYTES");
_Static_assert(__builtin_offsetof(struct sample_header, cpu_sequence) == 32, "src/record.rs offsets");
_Static_assert(__builtin_offsetof(struct sample_header, tgid) == 40, "src/record.rs offsets");
_Static_assert(__builtin_offsetof(struct sample_header, epoch) == 52, "src/record.rs offsets");
_Static_assert(__builtin_offsetof(struct sample_header, cpu) == 56, "src/record.rs offsets");
_Static_assert(__builtin_offsetof(struct sample_header, flags) == 62, "src/record.rs offsets");
_Static_assert(__builtin_offsetof(struct sample_header, comm) == 64, "src/record.rs offsets");
_Static_assert(__builtin_offsetof(struct sample_header, parent_start_ns) == 80, "src/record.rs offsets");
_Static_assert(__builtin_offsetof(struct sample_header, value) == 96, "src/record.rs offsets");
_Static_assert(sizeof(struct sample_record) == 104 + 8 * FRAMES_CAPACITY, "src/record.rs RECORD_BYTES_MAX");
_Static_assert(2 * STACK_FRAMES_MAX < FRAMES_CAPACITY, "both sides fit, and the mask never folds an index");
_Static_assert(sizeof(struct cpu_counters) == 8 * (5 + DROP_REASONS + STACK_ENDS), "src/counters.rs COUNTER_WORDS");

#endif
