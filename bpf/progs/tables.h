/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The memory in which user space puts unwind tables and lists of mappings, and what is looked up there. Plain arrays in an array
 * of maps, as 5.15 has them: user space adds a segment when it needs one, and an address counts bytes through all of them.
 *
 * User space writes only where nothing refers to yet, and frees a second after the last reference is gone. What is read
 * is not trusted all the same: every address is masked into its segment, every loop has its bound, a missing segment reads as zeros.
 */
#ifndef STROBE_TABLES_H
#define STROBE_TABLES_H

#include "table_types.h"

/* `src/tables.rs` holds the same numbers. */
#define SEGMENT_BYTES (1 << 20)
#define SEGMENT_SHIFT 20
#define SEGMENTS_MAX 1024
/* Processes with a list at one time; the map is allocated at once, 80 bytes each. */
#define PROCESSES_MAX 16384
/* Halvings of a list of mappings: 8,192 of them. */
#define MAPPING_STEPS 13
/* Halvings of a page of rows: 65,536 of them. */
#define ROW_STEPS 17

struct segment_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, SEGMENT_BYTES);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SEGMENTS_MAX);
	__type(key, __u32);
	__array(values, struct segment_map);
} segments SEC(".maps");

/*
 * One image of a process: any other with the same id is not meant. The kernel may give the memory of an entry that was replaced to
 * the next one while a program still reads it. It writes from the front to the back; so whoever reads the list's number at the
 * back first, and finds the same at the front last, has read one entry between.
 */
struct process {
	__u64 start_time_ns;
	__u32 exec_id;
	__u32 list_again;	/* the low half of `list` */
	__u32 mappings_at;	/* address of the list; 16-byte aligned */
	__u32 mappings;
	__u64 list;	/* the list's number: never another list's, also where a later one lies at the same address */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES_MAX);
	__type(key, __u32);
	__type(value, struct process);
} processes SEC(".maps");

_Static_assert(sizeof(struct process) == 32, "src/tables.rs PROCESS_BYTES");

/*
 * The rules of addresses that were looked up before: most stacks repeat, and a search costs several times as much as a step. A list
 * never changes, nor does a table that a list refers to, and the number of a list is never used again: so an entry is right for
 * ever, and is merely overwritten by another address that falls on the same place. Half a cache line each; as many as a
 * per-CPU value may have bytes.
 */
#define CACHED_RULES 1024
struct cached_rule {
	__u64 address;
	__u64 list;	/* 0: empty */
	__u64 words[2];	/* of the rule */
};
struct rule_cache {
	struct cached_rule rules[CACHED_RULES];
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rule_cache);
} rule_caches SEC(".maps");

static __always_inline struct cached_rule *place_in_cache(struct rule_cache *cache, __u64 address, __u64 list)
{
	return &cache->rules[(address ^ address >> 10 ^ list * 0x9e37) & (CACHED_RULES - 1)];
}

static __always_inline const __u8 *segment_at(__u32 address)
{
	__u32 index = address >> SEGMENT_SHIFT, zero = 0;
	void *map = bpf_map_lookup_elem(&segments, &index);

	return map ? bpf_map_lookup_elem(map, &zero) : 0;
}

static __always_inline __u32 read_u32(__u32 address)
{
	const __u8 *segment = segment_at(address);

	return segment ? *(const __u32 *)(segment + (address & (SEGMENT_BYTES - 4))) : 0;
}

static __always_inline __u64 read_u64(__u32 address)
{
	const __u8 *segment = segment_at(address);

	return segment ? *(const __u64 *)(segment + (address & (SEGMENT_BYTES - 8))) : 0;
}

/*
 * Returns the number of mappings in the list that begin at or before `address`. Global functions, here and below, as the
 * verifier checks those once and by themselves.
 */
__noinline __u32 mappings_before(__u32 mappings_at, __u32 mappings, __u64 address)
{
	__u32 left = 0, right = mappings;

#pragma clang loop unroll(disable)
	for (int i = 0; i < MAPPING_STEPS; i++) {
		__u32 middle = left + (right - left) / 2;

		if (left >= right)
			break;
		if (read_u64(mappings_at + middle * (__u32)sizeof(struct mapping)) <= address)
			left = middle + 1;
		else
			right = middle;
	}
	return left;
}

/* Returns the index behind the last row of `left..right` whose address is not above `low`, of 16 bits; or `left`. */
__noinline __u32 rows_before(__u32 rows_at, __u32 left, __u32 right, __u32 low)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < ROW_STEPS; i++) {
		__u32 middle = left + (right - left) / 2;

		if (left >= right)
			break;
		if (read_u32(rows_at + middle * 4) >> 16 <= low)
			left = middle + 1;
		else
			right = middle;
	}
	return left;
}

/* Returns the number of the rule of an address, as rows count it; 0, which is unknown, where the table does not reach. */
static __always_inline __u32 rule_number(const struct mapping *mapping, __u64 address)
{
	__u32 page = address >> mapping->page_shift, first, end, row;

	if (address >> 32 || page >= mapping->pages)
		return 0;
	first = read_u32(mapping->directory_at + page * 4);
	end = read_u32(mapping->directory_at + page * 4 + 4);
	row = rows_before(mapping->rows_at, first, end, address & 0xffff);
	/* None of the page's rows begins early enough: the one before holds on. */
	if (row == 0 || row > mapping->rows)
		return 0;
	return read_u32(mapping->rows_at + (row - 1) * 4) & 0xffff;
}

#endif
