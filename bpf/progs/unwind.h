/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The user stack, by frame pointers. Our own walk instead of bpf_get_stack(): the helper stops without saying why, and
 * takes longer. Over four runs on a busy two-CPU machine, mostly stacks of 40 frames (Linux 6.18; `examples/measure.rs`):
 * 2.2 to 3.1 us against 0.9 to 2.0 at 997 Hz, 4.6 to 8.4 against 2.1 to 3.5 at 101 Hz.
 *
 * Shape: `walk_user` repeats `step` on a `struct unwind`. `table_walk.h` takes other steps on the same state, and this one
 * where no table says otherwise.
 */
#ifndef STROBE_UNWIND_H
#define STROBE_UNWIND_H

#include "table_types.h"

#define HASH_MULTIPLIER 0x9e3779b97f4a7c15ULL

/* One round per word: an odd multiplier and a shift, both reversible, so one differing word can never cancel out. */
static __always_inline __u64 hash_word(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * HASH_MULTIPLIER;
	return hash ^ (hash >> 32);
}

struct unwind {
	__u64 ip;
	__u64 sp;
	__u64 fp;
	__u64 stack_top;	/* where the main thread's stack began; of other threads, an address above theirs */
	__u64 hash;
	__u32 depth;
	__u32 base;	/* kernel frames before the first user frame */
};

/* Registers by their DWARF numbers, on x86-64. */
#define DWARF_BX 3
#define DWARF_FP 6
#define DWARF_SP 7
#define DWARF_REGISTERS 16

/* `others_at`: where the registers are that calls do not preserve; any other value is a signal frame's address. */
#define OTHERS_LOST 0
#define OTHERS_HERE 1

/* What a walk by tables knows beyond `struct unwind`. Addresses of 0: the value itself is in `user.fp`, or in `general`. */
struct table_walk {
	__u64 general[DWARF_REGISTERS];
	__u64 fp_at;
	__u64 bx_at;
	__u64 others_at;
	__u32 mappings_at;
	__u32 mappings;
	__u32 exact;	/* the address is that of an interrupted instruction, not a return address */
	__u32 bx_lost;
	__u32 failed;	/* why a register could not be had: enum stack_end */
	__u32 early;	/* a frame was left without its table, which was not there yet */
	__u64 list;	/* number of the list of mappings */
	__u64 words[2];	/* the rule of the address that was searched last */
	struct mapping mapping;	/* of the address that was searched last */
	__u32 keep;	/* the rule that was searched last is that of the list, and holds as long as this */
};

/* What one tick works on. Per CPU, in a map: too big for the BPF stack. */
struct scratch {
	struct sample_record record;
	struct unwind user;
	struct table_walk table;
	__u64 compat32;	/* the registers are those of 32-bit code */
	__u64 amount;	/* what a tracepoint has counted since its last sample here */
};

/* No address below this is ever mapped, by default `vm.mmap_min_addr`. */
#define USER_ADDRESS_BEGIN 4096

static __always_inline bool is_user_address(__u64 address)
{
	return address - USER_ADDRESS_BEGIN < USER_ADDRESS_END - USER_ADDRESS_BEGIN;
}

/*
 * The C library's start-up code below `main` usually keeps no frame pointer, so the chain ends in whatever that register
 * held (glibc 2.36: argc). Its frames are the first on the stack: 256 bytes there. Within twice as much nothing but
 * start-up code has room, and the chain is whole. Other threads start with a frame pointer of 0.
 */
#define STARTUP_BYTES 512

static __always_inline enum stack_end broken_at(const struct unwind *state, enum stack_end why)
{
	return state->stack_top - state->sp < STARTUP_BYTES ? STACK_ROOT : why;
}

/* Moves `state` to its caller. Returns STACK_NOT_TAKEN while there is one. */
static __always_inline enum stack_end step(struct unwind *state)
{
	struct {
		__u64 fp;
		__u64 return_address;
	} saved;

	if (state->fp == 0)
		return STACK_ROOT;
	/* The stack grows down, so each caller's frame lies above; also what makes a loop in memory impossible. */
	if (state->fp < state->sp || (state->fp & 7) != 0)
		return broken_at(state, STACK_BAD_FRAME_POINTER);
	/* Above the top are the arguments: readable, and no frames. */
	if (state->sp < state->stack_top && state->fp >= state->stack_top)
		return broken_at(state, STACK_BAD_FRAME_POINTER);
	if (bpf_probe_read_user(&saved, sizeof(saved), (const void *)state->fp) != 0)
		return broken_at(state, STACK_UNREADABLE);
	if (saved.return_address == 0)
		return STACK_ROOT;
	if (!is_user_address(CODE_ADDRESS(saved.return_address)))
		return broken_at(state, STACK_BAD_RETURN_ADDRESS);
	state->ip = CODE_ADDRESS(saved.return_address);
	state->sp = state->fp + sizeof(saved);
	state->fp = saved.fp;
	return STACK_NOT_TAKEN;
}

/*
 * Appends the user frames after the kernel's and returns how the stack ended. A global function, as the verifier
 * checks those once and by themselves: inlined, each depth is followed through the rest of the program.
 */
__noinline int walk_user(struct scratch *scratch)
{
	struct unwind state;
	enum stack_end end = STACK_DEPTH;

	if (!scratch)
		return STACK_NO_USER;
	state = scratch->user;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < STACK_FRAMES_MAX; i++) {
		enum stack_end ended;

		scratch->record.frames[(state.base + i) & FRAMES_MASK] = state.ip;
		state.hash = hash_word(state.hash, state.ip);
		state.depth = i + 1;
		ended = step(&state);
		if (ended != STACK_NOT_TAKEN) {
			end = ended;
			break;
		}
	}
	scratch->user.hash = state.hash;
	scratch->user.depth = state.depth;
	return end;
}

/* Returns `hash` over the first `depth` frames as well. Global for the same reason. */
__noinline __u64 hash_kernel_frames(struct scratch *scratch, __u64 hash, __u32 depth)
{
	if (!scratch)
		return hash;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < STACK_FRAMES_MAX && i < depth; i++)
		hash = hash_word(hash, scratch->record.frames[i]);
	return hash;
}

#endif
