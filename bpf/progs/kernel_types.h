/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The few kernel types that the programs look into, with only the fields they read. Those marked for CO-RE are
 * matched by name against the running kernel when the program is loaded, so their layout here does not matter.
 * Constants and register layouts are user ABI and never change.
 */
#ifndef STROBE_KERNEL_TYPES_H
#define STROBE_KERNEL_TYPES_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
enum { false = 0, true = 1 };

enum { BPF_ANY = 0 };
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_RINGBUF = 27,
};
enum { BPF_F_MMAPABLE = 1 << 10 };
enum { BPF_F_USER_STACK = 1 << 8 };
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2 };
enum { BPF_RB_AVAIL_DATA = 0 };

#define EAGAIN 11

#if defined(__TARGET_ARCH_x86)

struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax;
	unsigned long ip, cs, flags, sp, ss;
};
#define REGS_IP(regs) ((regs)->ip)
#define REGS_SP(regs) ((regs)->sp)
#define REGS_FP(regs) ((regs)->bp)
#define REGS_USER_MODE(regs) (((regs)->cs & 3) == 3)
/* The only 32-bit code segment that Linux gives to user space (`__USER32_CS`). */
#define REGS_COMPAT32(regs) (((regs)->cs & 0xffff) == 0x23)
#define CODE_ADDRESS(address) (address)
/* By DWARF number, as unwind tables name them. */
#define GENERAL_REGISTERS(regs)                                                                              \
	{ (regs)->ax, (regs)->dx, (regs)->cx, (regs)->bx, (regs)->si,  (regs)->di,  (regs)->bp,	 (regs)->sp, \
	  (regs)->r8, (regs)->r9, (regs)->r10, (regs)->r11, (regs)->r12, (regs)->r13, (regs)->r14, (regs)->r15 }
/* Five-level page tables: the largest user space there is. */
#define USER_ADDRESS_END (1ULL << 56)

#elif defined(__TARGET_ARCH_arm64)

struct pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
#define REGS_IP(regs) ((regs)->pc)
#define REGS_SP(regs) ((regs)->sp)
#define REGS_FP(regs) ((regs)->regs[29])
#define REGS_USER_MODE(regs) (((regs)->pstate & 0xf) == 0)
#define REGS_COMPAT32(regs) (((regs)->pstate & 0x10) != 0)
/* No unwind tables here yet: the walk by them is never begun. */
#define GENERAL_REGISTERS(regs) { 0 }
/* Return addresses may be signed (PAC) in the bits that an address does not use. */
#define CODE_ADDRESS(address) ((address) & ((1ULL << 48) - 1))
#define USER_ADDRESS_END (1ULL << 48)

#else
#error "no register layout for this architecture: add one here"
#endif

struct bpf_perf_event_data {
	struct pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct maple_tree {
	void *ma_root;
};

struct maple_range_64 {
	unsigned long pivot[15];
	void *slot[16];
};

struct maple_arange_64 {
	unsigned long pivot[9];
	void *slot[10];
};

struct mm_struct {
	struct maple_tree mm_mt;
	unsigned long start_code, end_code, start_brk, start_stack, arg_start, exec_vm;
};

struct rb_node {
	struct rb_node *rb_right, *rb_left;
};

struct rb_root {
	struct rb_node *rb_node;
};

struct mm_struct___binary {
	struct rb_root mm_rb;
};

struct vm_area_struct___binary {
	struct rb_node vm_rb;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
};

struct task_struct {
	unsigned int flags;
	struct mm_struct *mm;
	unsigned int in_execve : 1;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	__u64 start_boottime;
	__u64 self_exec_id;
	struct css_set *cgroups;
};

struct super_block {
	unsigned int s_dev;
};

/* Kernels have given the time of a file's last change three names. */
struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
	long long i_size;
	__s64 i_ctime_sec;
	__u32 i_ctime_nsec;
};

struct timespec64 {
	__s64 tv_sec;
	long tv_nsec;
};

struct inode___named {
	struct timespec64 __i_ctime;
};

struct inode___plain {
	struct timespec64 i_ctime;
};

struct file {
	struct inode *f_inode;
};

struct vm_special_mapping {
	const char *name;
};

struct vm_area_struct {
	unsigned long vm_start, vm_end, vm_flags, vm_pgoff;
	struct mm_struct *vm_mm;
	struct file *vm_file;
	const void *vm_ops;
	void *vm_private_data;
};

#pragma clang attribute pop

/* Their values depend on what the kernel was built with; the loader puts in the right ones. */
enum cgroup_subsys_id {
	cpu_cgrp_id = 1,
	memory_cgrp_id = 4,
	pids_cgrp_id = 11,
	cpuacct_cgrp_id = 2,
};

#define VM_EXEC 0x00000004
/* A second has fewer nanoseconds. */
#define CTIME_NS_MASK 0x3fffffff
enum maple_type {
	maple_leaf_64 = 1,
	maple_arange_64 = 3,
};

#define PAGE_SHIFT 12
#define PF_VCPU 0x00000001
#define PF_KTHREAD 0x00200000

#endif
