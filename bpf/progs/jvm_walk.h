/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Leaves code that a JVM generated, with or without frame pointers: by what HotSpot itself keeps of it. A heap of code is divided
 * into segments; a map of one byte each leads to the segment in which a block begins; and a block says how large its frames
 * are. Where these lie, user space has read from the tables that libjvm.so has for debuggers (`vmStructs`), once for a process.
 *
 * All of it is the process's own memory, which it may change at any time: what is read is masked or compared, loops have their
 * bounds, and a wrong answer gives a wrong frame and no more.
 */
#ifndef STROBE_JVM_WALK_H
#define STROBE_JVM_WALK_H

#include "unwind.h"

/* Leaps from a segment to where its block begins: each goes back up to 253 segments, the largest blocks have some 4,000. */
#define LEAPS_MAX 32
/* `HeapBlock::Header`, which stands before each block's content. */
#define BLOCK_HEADER_BYTES 16
/* In the map of segments: nothing is there. */
#define SEGMENT_FREE 0xff
/* Larger frames are none: methods have at most 65,535 locals, of 8 bytes each. */
#define FRAME_WORDS_MAX (1 << 17)
/* The first four letters of the names of blocks without a frame size. */
#define NAME_INTERPRETER 0x65746e49	/* Interpreter */
#define NAME_ADAPTER 0x2f433249		/* I2C/C2I adapters */
#define NAME_HANDLES 0x6874654d		/* MethodHandles adapters */
#define NAME_VTABLE 0x62617476		/* vtable chunks */

/* What a mapping says of a heap of code: see `MappingEntry::jvm_heap`. */
#define SEGMENTS_OF(mapping) ((mapping)->offset)
#define FRAME_SIZE_AT(mapping) ((mapping)->rows_at & 0xff)
#define FRAME_COMPLETE_AT(mapping) ((mapping)->rows_at >> 8 & 0xff)
#define CODE_BEGIN_AT(mapping) ((mapping)->rows_at >> 16 & 0xff)
#define NAME_AT(mapping) ((mapping)->rows_at >> 24)

/* How an interrupted instruction's frame stands. */
enum jvm_frame {
	JVM_WHOLE,	/* as its block says */
	JVM_NONE,	/* the return address lies at the stack pointer */
	JVM_PUSHED,	/* the frame pointer at the stack pointer, the return address above it */
	JVM_UNSAVED,	/* as its block says, but the frame pointer has not been saved yet */
};

static __always_inline int read_word(__u64 *word, __u64 address)
{
	return bpf_probe_read_user(word, sizeof(*word), (const void *)address);
}

/* Returns where the block of an address begins, or 0. */
static __always_inline __u64 jvm_block(const struct mapping *heap, __u64 address)
{
	__u32 shift = heap->page_shift & 31;
	__u64 segment = (address - heap->start) >> shift;

#pragma clang loop unroll(disable)
	for (int i = 0; i < LEAPS_MAX; i++) {
		__u8 back;

		if (bpf_probe_read_user(&back, sizeof(back), (const void *)(SEGMENTS_OF(heap) + segment)))
			return 0;
		if (back == SEGMENT_FREE || back > segment)
			return 0;
		if (back == 0)
			return heap->start + (segment << shift) + BLOCK_HEADER_BYTES;
		segment -= back;
	}
	return 0;
}

#define BEGINS(bytes, first, second) ((bytes)[0] == (first) && (bytes)[1] == (second))

/*
 * Tells how far the frame of an interrupted instruction is built, by the instruction and the one before it: compilers of HotSpot
 * write few forms. `begun` is false before the instruction from which on a method's frame is complete.
 */
static __always_inline enum jvm_frame jvm_phase(__u64 ip, bool begun)
{
	__u8 code[16];
	const __u8 *next = code + 8, *last = code + 7;

	if (bpf_probe_read_user(code, sizeof(code), (const void *)(ip - 8)))
		return JVM_WHOLE;
	if (next[0] == 0x55 || next[0] == 0xc3 || next[0] == 0xc2)	/* push %rbp; ret */
		return JVM_NONE;
	if (next[0] == 0x5d)	/* pop %rbp */
		return JVM_PUSHED;
	/* Behind push %rbp: mov %rsp, %rbp, in both encodings, and sub $frame, %rsp. */
	if (last[0] == 0x55 && next[0] == 0x48 &&
	    (next[1] == 0x8b || next[1] == 0x89 || next[1] == 0x83 || next[1] == 0x81))
		return JVM_PUSHED;
	/* Behind pop %rbp: cmp poll(%r15), %rsp, and then ja. */
	if (last[0] == 0x5d && BEGINS(next, 0x49, 0x3b))
		return JVM_NONE;
	if (BEGINS(next, 0x0f, 0x87) && (BEGINS(code + 1, 0x49, 0x3b) || BEGINS(code + 4, 0x49, 0x3b)))
		return JVM_NONE;
	if (begun)
		return JVM_WHOLE;
	/* mov %rbp, offset(%rsp), behind the subtraction; cmpl $guard, flag(%r15), behind all of it. */
	if (next[0] == 0x48 && next[1] == 0x89 && (next[2] == 0x6c || next[2] == 0xac) && next[3] == 0x24)
		return JVM_UNSAVED;
	if (next[0] == 0x41 && next[1] == 0x81 && next[2] == 0x7f)
		return JVM_WHOLE;
	return JVM_NONE;
}

static __always_inline int leave_jvm(struct scratch *scratch, __u64 return_address, __u64 fp, __u64 sp)
{
	scratch->user.fp = fp;
	scratch->table.fp_at = 0;
	scratch->table.bx_lost = 1;
	scratch->table.others_at = OTHERS_LOST;
	scratch->table.exact = 0;
	if (sp <= scratch->user.sp)
		return STACK_BAD_FRAME_POINTER;
	return go_to(scratch, return_address, sp);
}

/* Leaves a frame that keeps a frame pointer; the interpreter's also says where its caller's stack pointer was. */
static __always_inline int leave_jvm_by_frame_pointer(struct scratch *scratch, __u64 fp, bool interpreted)
{
	__u64 words[3], sp = fp + 16;

	if (fp < scratch->user.sp || (fp & 7) != 0)
		return STACK_NO_TABLE;
	if (bpf_probe_read_user(words, sizeof(words), (const void *)(fp - 8)))
		return STACK_UNREADABLE;
	if (interpreted && words[0] >= sp)
		sp = words[0];
	return leave_jvm(scratch, words[2], words[1], sp);
}

__noinline int step_by_jvm(struct scratch *scratch)
{
	const struct mapping *heap;
	__u64 address, block, code = 0, fp, name = 0, top[2], sp;
	__u32 words = 0, complete = 0, letters = 0;
	enum jvm_frame phase = JVM_WHOLE;

	if (!scratch)
		return STACK_NO_USER;
	heap = &scratch->table.mapping;
	address = lookup_address(scratch);
	if (!find_mapping(scratch, address) || heap->rows || heap->pages != PAGES_OF_JVM)
		return STACK_NO_TABLE;
	block = jvm_block(heap, address);
	if (!block || bpf_probe_read_user(&words, sizeof(words), (const void *)(block + FRAME_SIZE_AT(heap))))
		return STACK_NO_TABLE;
	if (words > FRAME_WORDS_MAX)
		return STACK_NO_TABLE;
	scratch->table.failed = STACK_NOT_TAKEN;
	fp = register_value(scratch, DWARF_FP);
	if (scratch->table.failed)
		return scratch->table.failed;
	if (words == 0) {
		if (read_word(&name, block + NAME_AT(heap)) ||
		    bpf_probe_read_user(&letters, sizeof(letters), (const void *)name))
			return STACK_NO_TABLE;
		if (letters == NAME_ADAPTER || letters == NAME_HANDLES || letters == NAME_VTABLE)
			phase = JVM_NONE;
	}
	sp = scratch->user.sp;
	if (scratch->table.exact && phase == JVM_WHOLE && letters != NAME_INTERPRETER) {
		bool begun = true;

		/* Where no frame is ever complete, -1 stands: stubs, whose first instructions tell. */
		if (words && !bpf_probe_read_user(&complete, sizeof(complete),
						  (const void *)(block + FRAME_COMPLETE_AT(heap))) &&
		    complete < (1U << 31) && !read_word(&code, block + CODE_BEGIN_AT(heap)))
			begun = scratch->user.ip >= code + complete;
		phase = jvm_phase(scratch->user.ip, begun);
	}
	switch (phase) {
	case JVM_NONE:
		if (read_word(top, sp))
			return STACK_UNREADABLE;
		return leave_jvm(scratch, top[0], fp, sp + 8);
	case JVM_PUSHED:
		if (bpf_probe_read_user(top, sizeof(top), (const void *)sp))
			return STACK_UNREADABLE;
		return leave_jvm(scratch, top[1], top[0], sp + 16);
	default:
		break;
	}
	if (words == 0)
		return leave_jvm_by_frame_pointer(scratch, fp, letters == NAME_INTERPRETER);
	sp += (__u64)words * 8;
	if (bpf_probe_read_user(top, sizeof(top), (const void *)(sp - 16)))
		return STACK_UNREADABLE;
	return leave_jvm(scratch, top[1], phase == JVM_UNSAVED ? fp : top[0], sp);
}

#endif
