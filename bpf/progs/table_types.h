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

/* A place in a file, as it is now: one that is written to, or replaced, is another. `src/places.rs` holds the same numbers. */
struct file_place {
	__u64 inode;	/* 0: no file */
	__u64 bytes;	/* the file's size */
	__u64 changed_s;	/* its last change */
	__u32 changed_ns;
	__u32 device;	/* VDSO_DEVICE: the code that the kernel lends to every process */
	__u64 offset;
};
#define VDSO_DEVICE 0xffffffffU

/* What user space knows of a place: as in `struct mapping`, but that `offset` counts from the mapping's beginning. */
struct known_file {
	__u64 offset;
	__u32 rows_at;
	__u32 rows;
	__u32 directory_at;
	__u32 pages;
	__u32 rules_at;
	__u32 page_shift;
};

/* Where a place was met that nothing is known of: the image, and the beginning of its mapping. */
struct met_file {
	__u64 start;
	__u64 start_time_ns;
	__u32 tgid;
	__u32 exec_id;
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
_Static_assert(sizeof(struct file_place) == 40, "src/places.rs PLACE_BYTES");
_Static_assert(sizeof(struct known_file) == 32, "src/places.rs KNOWN_BYTES");
_Static_assert(sizeof(struct met_file) == 24, "src/places.rs MET_BYTES");
_Static_assert(sizeof(struct rule) == 16, "RULE_BYTES of the tables");

#endif
