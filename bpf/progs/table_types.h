/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What user space writes into the memory of tables: a process's mappings, and a table's rules. */
#ifndef STROBE_TABLE_TYPES_H
#define STROBE_TABLE_TYPES_H

/*
 * One executable mapping; a list is sorted by `start`. All addresses are of this memory. With `rows` 0 it has no table, and `pages`
 * says why: PAGES_NEVER, PAGES_NOT_YET; with PAGES_OF_JVM it is a heap of generated code, and `jvm_walk.h` says what the others are.
 */
enum { PAGES_NEVER = 0, PAGES_NOT_YET = 1, PAGES_OF_JVM = 2 };
struct mapping {
	__u64 start;
	__u64 end;
	__u64 offset;	/* what is taken off an address to get the one that rows count by */
	__u32 rows_at;
	__u32 rows;
	__u32 directory_at;
	__u32 pages;
	__u32 rules_at;
	__u32 page_shift;
};

/* How a frame is left; see `rule.rs` of the crate that makes tables. Kinds in the high half of a byte, a register in the low. */
struct rule {
	__u8 cfa;
	__u8 return_address;
	__u8 rbp;
	__u8 rbx;
	__s32 cfa_offset;
	__s16 return_address_offset;
	__s16 rbp_offset;
	__s16 rbx_offset;
	__u8 extra;	/* what is added to the word, as a signed byte; or a linkage table's threshold */
	__u8 flags;
};

enum { CFA_UNKNOWN = 0, CFA_UNSUPPORTED = 1, CFA_ROOT = 2, CFA_REGISTER = 3, CFA_DEREF = 4, CFA_PLT = 5, CFA_NOT_YET = 6,
       CFA_JVM = 7, CFA_SWITCHED = 8 };
enum { SAVED_SAME = 0, SAVED_LOST = 1, SAVED_AT_CFA = 2, SAVED_AT = 3, SAVED_IN = 4 };
#define RULE_SIGNAL 1
#define KIND(byte) ((byte) >> 4)
#define REGISTER(byte) ((byte) & 15)

_Static_assert(sizeof(struct mapping) == 48, "src/tables.rs MAPPING_BYTES");
_Static_assert(sizeof(struct rule) == 16, "RULE_BYTES of the tables");

#endif
