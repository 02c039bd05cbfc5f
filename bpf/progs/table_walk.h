/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The user stack, by tables where there are some and by frame pointers elsewhere. `walk.rs` of the crate that makes tables is the
 * same walk in Rust, and says why each step is as it is.
 *
 * Bounds: STACK_FRAMES_MAX frames; of each, at most one search of the mappings, one of a table's page, and four reads of memory.
 */
#ifndef STROBE_TABLE_WALK_H
#define STROBE_TABLE_WALK_H

#include "placed.h"
#include "tables.h"
#include "unwind.h"

/* The return address lies past its call; one byte back is inside it. Not so where a signal interrupted. */
static __always_inline __u64 lookup_address(const struct scratch *scratch)
{
	return scratch->user.ip - (scratch->table.exact ? 0 : 1);
}

/* A frame pointer that leads nowhere: misaligned. */
#define NOWHERE 1

/* The kernel's signal frame at the handler's return: where it holds registers, by DWARF number, from the stack pointer on. */
const __u8 signal_offsets[DWARF_REGISTERS] = { 144, 136, 152, 128, 112, 104, 120, 160,
						      40,  48,	56,  64,  72,  80,  88,  96 };
#define SIGNAL_CFA_OFFSET 160

/* Reads a word of the process into the state, and remembers a failure. */
static __always_inline __u64 read_user(struct scratch *scratch, __u64 address)
{
	__u64 word = 0;

	if (bpf_probe_read_user(&word, sizeof(word), (const void *)address) != 0)
		scratch->table.failed = STACK_UNREADABLE;
	return word;
}

/* Returns a register in the current frame, by its DWARF number; what cannot be had is remembered in `failed`. */
__noinline __u64 register_value(struct scratch *scratch, __u32 number)
{
	if (!scratch)
		return 0;
	switch (number) {
	case DWARF_SP:
		return scratch->user.sp;
	case DWARF_FP:
		if (!scratch->table.fp_at)
			return scratch->user.fp;
		return read_user(scratch, scratch->table.fp_at);
	case DWARF_BX:
		if (scratch->table.bx_lost) {
			scratch->table.failed = STACK_UNSUPPORTED;
			return 0;
		}
		if (!scratch->table.bx_at)
			return scratch->table.general[DWARF_BX];
		return read_user(scratch, scratch->table.bx_at);
	}
	number &= DWARF_REGISTERS - 1;
	if (scratch->table.others_at == OTHERS_HERE)
		return scratch->table.general[number];
	if (scratch->table.others_at)
		return read_user(scratch, scratch->table.others_at + signal_offsets[number]);
	scratch->table.failed = STACK_UNSUPPORTED;
	return 0;
}

static __always_inline __u64 saved_at(struct scratch *scratch, __u8 saved, __s16 offset, __u64 cfa)
{
	return (KIND(saved) == SAVED_AT_CFA ? cfa : register_value(scratch, REGISTER(saved))) + (__s64)offset;
}

static __always_inline __u64 frame_address(struct scratch *scratch, const struct rule *rule)
{
	if (KIND(rule->cfa) == CFA_PLT)
		return scratch->user.sp + (__s64)rule->cfa_offset + ((scratch->user.ip & 15) >= rule->extra ? 8 : 0);
	__u64 place = register_value(scratch, REGISTER(rule->cfa)) + (__s64)rule->cfa_offset;
	if (KIND(rule->cfa) == CFA_DEREF)
		return read_user(scratch, place) + (__s64)(__s8)rule->extra;
	return place;
}

static __always_inline enum stack_end go_to(struct scratch *scratch, __u64 return_address, __u64 sp)
{
	if (return_address == 0)
		return STACK_ROOT;
	if (!is_user_address(return_address))
		return STACK_BAD_RETURN_ADDRESS;
	scratch->user.ip = return_address;
	scratch->user.sp = sp;
	return STACK_NOT_TAKEN;
}

/* Where each register of the caller is found, once its frame is known. */
static __always_inline void keep_registers(struct scratch *scratch, const struct rule *rule, __u64 cfa)
{
	struct table_walk *table = &scratch->table;
	__u64 fp = scratch->user.fp, fp_at = table->fp_at, bx_at = table->bx_at;
	__u64 bx = table->general[DWARF_BX];
	bool bx_lost = table->bx_lost;

	switch (KIND(rule->rbp)) {
	case SAVED_SAME:
		break;
	case SAVED_AT_CFA:
	case SAVED_AT:
		fp_at = saved_at(scratch, rule->rbp, rule->rbp_offset, cfa);
		break;
	case SAVED_IN:
		fp = register_value(scratch, REGISTER(rule->rbp));
		fp_at = 0;
		break;
	default:
		fp = NOWHERE;
		fp_at = 0;
	}
	switch (KIND(rule->rbx)) {
	case SAVED_SAME:
		break;
	case SAVED_AT_CFA:
	case SAVED_AT:
		bx_at = saved_at(scratch, rule->rbx, rule->rbx_offset, cfa);
		bx_lost = 0;
		break;
	case SAVED_IN:
		bx = register_value(scratch, REGISTER(rule->rbx));
		bx_at = 0;
		bx_lost = 0;
		break;
	default:
		bx_lost = 1;
	}
	scratch->user.fp = fp;
	table->fp_at = fp_at;
	table->bx_at = bx_at;
	table->bx_lost = bx_lost;
	table->general[DWARF_BX] = bx;
}

/* Leaves a frame by a rule: the two words of it. */
__noinline int step_by_rule(struct scratch *scratch, __u64 first, __u64 second)
{
	union {
		__u64 words[2];
		struct rule rule;
	} found = { .words = { first, second } };
	const struct rule *rule = &found.rule;
	struct {
		__u64 fp;
		__u64 return_address;
	} saved;
	bool both;
	__u64 cfa;

	if (!scratch)
		return STACK_NO_USER;
	scratch->table.failed = STACK_NOT_TAKEN;
	cfa = frame_address(scratch, rule);
	if (scratch->table.failed)
		return scratch->table.failed;
	/* Go cleared the frame pointer: nobody waits for what this stack does. */
	if (KIND(rule->cfa) == CFA_SWITCHED && cfa == (__u64)(__s64)rule->cfa_offset)
		return STACK_ROOT;
	/*
	 * The stack grows down, so each caller's frame lies above, except where a signal came in on a stack of its own, and where code
	 * has switched stacks itself.
	 */
	if (cfa <= scratch->user.sp && KIND(rule->cfa) != CFA_DEREF && KIND(rule->cfa) != CFA_SWITCHED)
		return STACK_BAD_FRAME_POINTER;
	/* Pushed by a call and the `push %rbp` behind it, most often: one read for both. */
	both = KIND(rule->return_address) == SAVED_AT_CFA && KIND(rule->rbp) == SAVED_AT_CFA &&
	       rule->rbp_offset + 8 == rule->return_address_offset;
	switch (KIND(rule->return_address)) {
	case SAVED_AT_CFA:
	case SAVED_AT:
		if (both) {
			if (bpf_probe_read_user(&saved, sizeof(saved), (const void *)(cfa + (__s64)rule->rbp_offset)))
				return STACK_UNREADABLE;
		} else {
			saved.return_address = read_user(scratch, saved_at(scratch, rule->return_address,
									    rule->return_address_offset, cfa));
		}
		break;
	case SAVED_IN:
		saved.return_address = register_value(scratch, REGISTER(rule->return_address));
		break;
	default:
		return STACK_UNSUPPORTED;
	}
	keep_registers(scratch, rule, cfa);
	if (scratch->table.failed)
		return scratch->table.failed;
	if (both) {
		scratch->user.fp = saved.fp;
		scratch->table.fp_at = 0;
	}
	scratch->table.others_at = OTHERS_LOST;
	if (rule->cfa == (CFA_DEREF << 4 | DWARF_SP) && rule->cfa_offset == SIGNAL_CFA_OFFSET && rule->extra == 0)
		scratch->table.others_at = scratch->user.sp;
	scratch->table.exact = rule->flags & RULE_SIGNAL;
	return go_to(scratch, saved.return_address, cfa);
}

__noinline int step_by_frame_pointer(struct scratch *scratch)
{
	int end;

	if (!scratch)
		return STACK_NO_USER;
	scratch->table.failed = STACK_NOT_TAKEN;
	scratch->user.fp = register_value(scratch, DWARF_FP);
	if (scratch->table.failed)
		return scratch->table.failed;
	end = step(&scratch->user);
	if (end == STACK_NOT_TAKEN)
		scratch->record.header.flags |= SAMPLE_GUESSED;
	else if (end != STACK_ROOT)
		end = STACK_NO_TABLE;
	scratch->table.fp_at = 0;
	scratch->table.bx_lost = 1;
	scratch->table.others_at = OTHERS_LOST;
	scratch->table.exact = 0;
	return end;
}

/* Finds the mapping of an address and keeps it: neighbouring frames mostly lie in the same one. */
static __always_inline bool find_mapping(struct scratch *scratch, __u64 address)
{
	struct mapping *mapping = &scratch->table.mapping;
	__u32 at, before;

	if (address - mapping->start < mapping->end - mapping->start)
		return true;
	before = mappings_before(scratch->table.mappings_at, scratch->table.mappings, address);
	if (before) {
		at = scratch->table.mappings_at + (before - 1) * (__u32)sizeof(struct mapping);
		mapping->start = read_u64(at);
		mapping->end = read_u64(at + 8);
		mapping->offset = read_u64(at + 16);
		*(__u64 *)&mapping->rows_at = read_u64(at + 24);
		*(__u64 *)&mapping->directory_at = read_u64(at + 32);
		*(__u64 *)&mapping->rules_at = read_u64(at + 40);
		scratch->table.keep = 1;
		if (address - mapping->start < mapping->end - mapping->start)
			return true;
	}
	/* No list yet, or none that has what was loaded a moment ago. What is mapped there may change any time. */
	scratch->table.keep = 0;
	return find_placed(scratch, address);
}

#include "jvm_walk.h"

/*
 * Leaves code that is not known to be mapped: a library that was loaded a moment ago, or no code at all. The frame pointer is
 * believed only if it leads to code. Either way user space is told, as it is of an image without tables.
 */
__noinline int step_out_of_unmapped(struct scratch *scratch)
{
	if (!scratch)
		return STACK_NO_USER;
	scratch->record.header.flags |= SAMPLE_NO_TABLES;
	if (step_by_frame_pointer(scratch) == STACK_NOT_TAKEN && find_mapping(scratch, lookup_address(scratch)))
		return STACK_NOT_TAKEN;
	return STACK_NO_MAPPING;
}

/* Finds the rule of an address by the mappings and their tables, and leaves it in the scratch; false: no code is mapped there. */
__noinline int search_rule(struct scratch *scratch, __u64 address)
{
	struct table_walk *table;
	__u32 at;

	if (!scratch)
		return 0;
	table = &scratch->table;
	if (!find_mapping(scratch, address))
		return 0;
	/* The rule 0 of every table: nothing is known. */
	table->words[0] = table->mapping.pages == PAGES_NOT_YET ? CFA_NOT_YET << 4 :
			  table->mapping.pages == PAGES_OF_JVM	? CFA_JVM << 4 :
								  0;
	table->words[1] = 0;
	if (table->mapping.rows == 0)
		return 1;
	at = table->mapping.rules_at +
	     (__u32)sizeof(struct rule) * rule_number(&table->mapping, address - table->mapping.offset);
	table->words[0] = read_u64(at);
	table->words[1] = read_u64(at + 8);
	return 1;
}

/*
 * Nearly all rules: the frame begins at an offset from `rsp` or `rbp`, the return address and what else was saved lie at offsets
 * from there. One look at the first half tells: kinds and registers are its low bytes.
 */
#define PLAIN_MASK 0xdfdffffeULL
#define PLAIN_KINDS (SAVED_AT_CFA << 12 | CFA_REGISTER << 4 | DWARF_FP)
#define RBP_SAVED (SAVED_AT_CFA << 20)
#define RBX_SAVED (SAVED_AT_CFA << 28ULL)
#define FLAGS_SHIFT 56

static __always_inline bool is_plain(__u64 first, __u64 second)
{
	return (first & PLAIN_MASK) == PLAIN_KINDS && second >> FLAGS_SHIFT == 0;
}

/* `step_by_rule`, of a plain one: the same, in fewer instructions. */
static __always_inline enum stack_end step_by_plain_rule(struct scratch *scratch, __u64 first, __u64 second)
{
	struct table_walk *table = &scratch->table;
	__s64 return_address_offset = (__s16)second, rbp_offset = (__s16)(second >> 16);
	__u64 sp = scratch->user.sp, base = sp, cfa;
	struct {
		__u64 fp;
		__u64 return_address;
	} saved;

	if (!(first & 1)) {
		base = scratch->user.fp;
		if (table->fp_at && bpf_probe_read_user(&base, sizeof(base), (const void *)table->fp_at))
			return STACK_UNREADABLE;
	}
	cfa = base + ((__s64)first >> 32);
	if (cfa <= sp)
		return STACK_BAD_FRAME_POINTER;
	if (first & RBP_SAVED && rbp_offset + 8 == return_address_offset) {
		/* Pushed by a call and the `push %rbp` behind it: one read for both. */
		if (bpf_probe_read_user(&saved, sizeof(saved), (const void *)(cfa + rbp_offset)))
			return STACK_UNREADABLE;
		scratch->user.fp = saved.fp;
		table->fp_at = 0;
	} else {
		if (bpf_probe_read_user(&saved.return_address, sizeof(saved.return_address),
					(const void *)(cfa + return_address_offset)))
			return STACK_UNREADABLE;
		/* Read when somebody asks for it. */
		if (first & RBP_SAVED)
			table->fp_at = cfa + rbp_offset;
	}
	if (first & RBX_SAVED) {
		table->bx_at = cfa + (__s64)(__s16)(second >> 32);
		table->bx_lost = 0;
	}
	table->others_at = OTHERS_LOST;
	table->exact = 0;
	return go_to(scratch, saved.return_address, cfa);
}

/* Moves the state to the caller. Returns STACK_NOT_TAKEN while there is one. */
static __always_inline int step_by_table(struct scratch *scratch, struct rule_cache *cache)
{
	__u64 address = lookup_address(scratch), list = scratch->table.list, first, second;
	struct cached_rule *cached = place_in_cache(cache, address, list);

	if (cached->address != address || cached->list != list) {
		if (!search_rule(scratch, address))
			return step_out_of_unmapped(scratch);
		first = scratch->table.words[0];
		second = scratch->table.words[1];
		if (scratch->table.keep) {
			cached->address = address;
			cached->list = list;
			cached->words[0] = first;
			cached->words[1] = second;
		}
	} else {
		first = cached->words[0];
		second = cached->words[1];
	}
	if (is_plain(first, second))
		return step_by_plain_rule(scratch, first, second);
	switch (KIND(first & 0xff)) {
	case CFA_NOT_YET:
		scratch->table.early = 1;
		return step_by_frame_pointer(scratch);
	case CFA_UNKNOWN:
		return step_by_frame_pointer(scratch);
	case CFA_JVM:
		return step_by_jvm(scratch);
	case CFA_ROOT:
		return STACK_ROOT;
	case CFA_REGISTER:
	case CFA_DEREF:
	case CFA_PLT:
	case CFA_SWITCHED:
		return step_by_rule(scratch, first, second);
	default:
		return STACK_UNSUPPORTED;
	}
}

/* How a stack ended that was walked without its tables. */
static __always_inline enum stack_end without_tables(void)
{
	return control.no_room ? STACK_NO_ROOM : STACK_BEFORE_TABLES;
}

/* Appends the user frames after the kernel's and returns how the stack ended. */
__noinline int walk_by_tables(struct scratch *scratch, struct rule_cache *cache)
{
	int end = STACK_DEPTH;

	if (!scratch || !cache)
		return STACK_NO_USER;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < STACK_FRAMES_MAX; i++) {
		int ended;

		scratch->record.frames[(scratch->user.base + i) & FRAMES_MASK] = scratch->user.ip;
		scratch->user.hash = hash_word(scratch->user.hash, scratch->user.ip);
		scratch->user.depth = i + 1;
		ended = step_by_table(scratch, cache);
		if (ended != STACK_NOT_TAKEN) {
			end = ended;
			break;
		}
	}
	return scratch->table.early ? without_tables() : end;
}

#endif
