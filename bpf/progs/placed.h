/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which file stands behind an address of the running process, by the kernel's own tree of its mappings. Many processes live for some
 * milliseconds and are over before user space has heard of them, and a library runs at once when it is loaded. So user space says
 * once which file has which table; from then on whoever maps it is walked by it from the first tick on.
 *
 * A tick cannot wait for the lock of the mappings. What it interrupts is no writer of them in user mode; another thread may be
 * one at the same time. So nothing that is read is trusted: reads may fail, loops have their bounds, and a mapping counts only if
 * it says that it is of this process and holds this address. Its memory is freed after a grace period, which a tick holds up.
 */
#ifndef STROBE_PLACED_H
#define STROBE_PLACED_H

#include "unwind.h"

/* Places of files that are known at one time: one or two of each binary; allocated at once, some 150 bytes each. */
#define KNOWN_FILES_MAX 8192
/* Places that wait to be looked at by user space: what is beyond comes with a later tick. */
#define MET_FILES_MAX 1024

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KNOWN_FILES_MAX);
	__type(key, struct file_place);
	__type(value, struct known_file);
} known_files SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MET_FILES_MAX);
	__type(key, struct file_place);
	__type(value, struct met_file);
} met_files SEC(".maps");

/* Levels of a tree of 2^31 mappings, at least 5 below each node; and of a binary one, which is at most twice as deep as it must be. */
#define TREE_LEVELS 14
#define BINARY_LEVELS 48
/* Entries of a node, but the last: `pivot` of the two kinds. */
#define LEAF_PIVOTS 15
#define INNER_PIVOTS 9
/* The low byte of a node's address says what it is. */
#define NODE_MASK 0xffULL
#define NODE_TYPE(node) ((node) >> 3 & 15)
#define IS_NODE(root) (((root) & 3) == 2 && (root) > 4096)

static __always_inline __u64 read_kernel(__u64 address)
{
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (const void *)address);
	return word;
}

/* The mapping of an address in a tree as kernels have it since 6.1; its address in the kernel, or 0. */
static __always_inline __u64 in_maple_tree(const struct mm_struct *mm, __u64 address)
{
	__u64 at = (__u64)mm->mm_mt.ma_root, pivots[LEAF_PIVOTS], node, slots;

	if (!IS_NODE(at))
		return 0;
#pragma clang loop unroll(disable)
	for (int level = 0; level < TREE_LEVELS; level++) {
		bool inner = NODE_TYPE(at) == bpf_core_enum_value(enum maple_type, maple_arange_64);
		bool leaf = NODE_TYPE(at) == bpf_core_enum_value(enum maple_type, maple_leaf_64);
		__u32 slot = 0;

		node = at & ~NODE_MASK;
		if (inner) {
			slots = node + bpf_core_field_offset(struct maple_arange_64, slot);
			if (bpf_probe_read_kernel(pivots, INNER_PIVOTS * sizeof(__u64),
						  (const void *)(node + bpf_core_field_offset(struct maple_arange_64, pivot))))
				return 0;
		} else {
			slots = node + bpf_core_field_offset(struct maple_range_64, slot);
			if (bpf_probe_read_kernel(pivots, sizeof(pivots),
						  (const void *)(node + bpf_core_field_offset(struct maple_range_64, pivot))))
				return 0;
		}
		/* The last entry of a node has no pivot where all are taken, and 0 where not. */
#pragma clang loop unroll(full)
		for (int i = 0; i < LEAF_PIVOTS; i++) {
			if (slot == i && (i < INNER_PIVOTS || !inner) && (i == 0 || pivots[i]) && pivots[i] < address)
				slot = i + 1;
		}
		at = read_kernel(slots + slot * sizeof(__u64));
		if (leaf)
			return at;
		if (!at)
			return 0;
	}
	return 0;
}

/* The same in a binary tree, as kernels before had it. */
static __always_inline __u64 in_binary_tree(const struct mm_struct *mm, __u64 address)
{
	const struct mm_struct___binary *old = (const struct mm_struct___binary *)mm;
	__u64 node = (__u64)old->mm_rb.rb_node;

#pragma clang loop unroll(disable)
	for (int level = 0; level < BINARY_LEVELS && node; level++) {
		__u64 vma = node - bpf_core_field_offset(struct vm_area_struct___binary, vm_rb);

		if (read_kernel(vma + bpf_core_field_offset(struct vm_area_struct, vm_end)) <= address)
			node = read_kernel(node + bpf_core_field_offset(struct rb_node, rb_right));
		else if (read_kernel(vma + bpf_core_field_offset(struct vm_area_struct, vm_start)) > address)
			node = read_kernel(node + bpf_core_field_offset(struct rb_node, rb_left));
		else
			return vma;
	}
	return 0;
}

/* The last change of a file, under its names from 6.11 on, from 6.6 on, and before. */
static __always_inline void last_change(const struct inode *inode, struct file_place *place)
{
	struct timespec64 time = {};

	if (bpf_core_field_exists(inode->i_ctime_sec)) {
		place->changed_s = BPF_CORE_READ(inode, i_ctime_sec);
		place->changed_ns = BPF_CORE_READ(inode, i_ctime_nsec);
	} else {
		if (bpf_core_field_exists(((const struct inode___named *)inode)->__i_ctime))
			BPF_CORE_READ_INTO(&time, (const struct inode___named *)inode, __i_ctime);
		else
			BPF_CORE_READ_INTO(&time, (const struct inode___plain *)inode, i_ctime);
		place->changed_s = time.tv_sec;
		place->changed_ns = time.tv_nsec;
	}
	/* Newer kernels mark there that somebody has asked. */
	place->changed_ns &= CTIME_NS_MASK;
}

/* Whether a mapping without a file is the vdso: the kernel names such mappings. */
static __always_inline bool is_vdso(const struct vm_area_struct *vma)
{
	const struct vm_special_mapping *special = BPF_CORE_READ(vma, vm_private_data);
	char name[8] = {};

	if (!special || !BPF_CORE_READ(vma, vm_ops) || bpf_probe_read_kernel(name, 7, BPF_CORE_READ(special, name)))
		return false;
	return name[0] == '[' && name[1] == 'v' && name[2] == 'd' && name[3] == 's' && name[4] == 'o' && name[5] == ']' && !name[6];
}

static __always_inline void place_of(const struct vm_area_struct *vma, struct file_place *place)
{
	const struct file *file = BPF_CORE_READ(vma, vm_file);
	const struct inode *inode;

	if (!file) {
		if (is_vdso(vma))
			place->device = VDSO_DEVICE;
		return;
	}
	inode = BPF_CORE_READ(file, f_inode);
	place->inode = BPF_CORE_READ(inode, i_ino);
	place->bytes = BPF_CORE_READ(inode, i_size);
	place->device = BPF_CORE_READ(inode, i_sb, s_dev);
	place->offset = (__u64)BPF_CORE_READ(vma, vm_pgoff) << PAGE_SHIFT;
	last_change(inode, place);
}

/* Tells user space of a file that nothing is known of. */
static __always_inline void meet(const struct scratch *scratch, const struct file_place *file, __u64 start)
{
	struct met_file met = {
		.start = start,
		.start_time_ns = scratch->record.header.start_time_ns,
		.tgid = scratch->record.header.tgid,
		.exec_id = scratch->record.header.exec_id,
	};

	/* Full, or locked by what was interrupted: the next tick will do. */
	bpf_map_update_elem(&met_files, file, &met, BPF_ANY);
}

/* Finds the mapping of an address by the kernel's own tree, and what is known of its file; 0: no code is mapped there. */
__noinline int find_placed(struct scratch *scratch, __u64 address)
{
	const struct mm_struct *mm = bpf_get_current_task_btf()->mm;
	const struct vm_area_struct *vma;
	const struct known_file *known;
	struct file_place file = {};
	struct mapping *mapping;

	if (!scratch || !mm)
		return 0;
	mapping = &scratch->table.mapping;
	if (bpf_core_field_exists(mm->mm_mt))
		vma = (const struct vm_area_struct *)in_maple_tree(mm, address);
	else if (bpf_core_field_exists(((const struct mm_struct___binary *)mm)->mm_rb))
		vma = (const struct vm_area_struct *)in_binary_tree(mm, address);
	else
		return 0;
	if (!vma)
		return 0;
	mapping->start = BPF_CORE_READ(vma, vm_start);
	mapping->end = BPF_CORE_READ(vma, vm_end);
	mapping->rows = 0;
	mapping->pages = PAGES_NEVER;
	if (BPF_CORE_READ(vma, vm_mm) != mm || !(BPF_CORE_READ(vma, vm_flags) & VM_EXEC) ||
	    address - mapping->start >= mapping->end - mapping->start) {
		mapping->end = mapping->start;
		return 0;
	}
	place_of(vma, &file);
	/* Generated code: frame pointers, until a list says more. */
	if (!file.inode && file.device != VDSO_DEVICE)
		return 1;
	known = bpf_map_lookup_elem(&known_files, &file);
	if (!known) {
		mapping->pages = PAGES_NOT_YET;
		meet(scratch, &file, mapping->start);
		return 1;
	}
	mapping->offset = mapping->start + known->offset;
	mapping->rows_at = known->rows_at;
	mapping->rows = known->rows;
	mapping->directory_at = known->directory_at;
	mapping->pages = known->pages;
	mapping->rules_at = known->rules_at;
	mapping->page_shift = known->page_shift;
	return 1;
}

#endif
