// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Stage 2 of a sample's path: the timer interrupt of one CPU -> one `struct sample_record` in the ring buffer.
 * Runs in interrupt context, once at a time per CPU. A sample is lost here only as `dropped`, counted per CPU.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "record.h"
#include "unwind.h"

volatile struct control control = { .epoch = 1, .omit_seen = 1, .period = 1, .until_ns = ~0ULL };

#include "table_walk.h"

/* Which hierarchy names a task's control group. */
enum cgroup_source { CGROUP_V2 = 0, CGROUP_MEMORY = 1, CGROUP_CPU = 2, CGROUP_PIDS = 3, CGROUP_CPUACCT = 4 };

/* Fixed before loading: the verifier then drops every branch that cannot be taken. */
const volatile __u32 cgroup_source = CGROUP_V2;
const volatile __u32 kernel_frames_max = STACK_FRAMES_MAX;	/* less where `perf_event_max_stack` is less */
const volatile __u32 sent_sets_mask = 0;	/* sets of `sent`, a power of two, minus 1 */
const volatile __u32 tables_used = 0;	/* 0: every stack is walked by frame pointers */
/* Processes that are watched, where not all are. */
#define WATCHED_MAX 64
const volatile __u32 watched[WATCHED_MAX] = {};
const volatile __u32 watched_count = 0;
const volatile __u32 amount_offset = 0;	/* of the field that says what one event of a tracepoint counts for */
const volatile __u32 amount_bytes = 0;	/* 0: each counts for one */
const volatile __u64 wake_bytes = ~0ULL;	/* unread bytes from which user space is woken */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);	/* set by user space */
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/*
 * Stacks sent in full this epoch: a four-way cache, half a cache line a set, of hashes mixed with the epoch. Not an
 * LRU hash map: an update of that takes locks in interrupt context. What is pushed out here, or overwritten by a race
 * between CPUs, is merely sent again.
 */
#define SENT_WAYS 4
struct sent_set {
	__u64 way[SENT_WAYS];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);	/* set by user space */
	__type(key, __u32);
	__type(value, struct sent_set);
} sent SEC(".maps");

static __always_inline bool was_sent(const struct sent_set *set, __u64 mark)
{
	return set->way[0] == mark || set->way[1] == mark || set->way[2] == mark || set->way[3] == mark;
}

static __always_inline void mark_sent(struct sent_set *set, __u64 mark)
{
	set->way[3] = set->way[2];
	set->way[2] = set->way[1];
	set->way[1] = set->way[0];
	set->way[0] = mark;
}

#define CGROUP_ID_OF(task, subsystem)                                                                       \
	(bpf_core_enum_value_exists(enum cgroup_subsys_id, subsystem)                                       \
		 ? (task)->cgroups->subsys[bpf_core_enum_value(enum cgroup_subsys_id, subsystem)]->cgroup->kn->id \
		 : 0)

/* With cgroup version 1 the helper says 1, the unused version 2 root, for everything. */
static __always_inline __u64 cgroup_id(const struct task_struct *task)
{
	switch (cgroup_source) {
	case CGROUP_MEMORY:
		return CGROUP_ID_OF(task, memory_cgrp_id);
	case CGROUP_CPU:
		return CGROUP_ID_OF(task, cpu_cgrp_id);
	case CGROUP_PIDS:
		return CGROUP_ID_OF(task, pids_cgrp_id);
	case CGROUP_CPUACCT:
		return CGROUP_ID_OF(task, cpuacct_cgrp_id);
	default:
		return bpf_get_current_cgroup_id();
	}
}

static __always_inline enum stack_end kernel_stack(void *ctx, struct sample_record *record)
{
	__u32 size = kernel_frames_max * sizeof(__u64);
	long bytes;

	if (size > STACK_FRAMES_MAX * sizeof(__u64))
		size = STACK_FRAMES_MAX * sizeof(__u64);
	bytes = bpf_get_stack(ctx, record->frames, size, 0);
	if (bytes < 0)
		return STACK_UNREADABLE;
	record->header.kernel_depth = (__u64)bytes / sizeof(__u64);
	/* The kernel's unwinder does not say how it ended; only a full buffer is known to be cut. */
	return (__u32)bytes == size ? STACK_DEPTH : STACK_ROOT;
}

/* Where user code stands: the registers a user stack is walked from. */
static __always_inline void take_registers(struct scratch *scratch, const struct pt_regs *regs)
{
	__u64 general[DWARF_REGISTERS] = GENERAL_REGISTERS(regs);

	scratch->user.ip = REGS_IP(regs);
	scratch->user.sp = REGS_SP(regs);
	scratch->user.fp = REGS_FP(regs);
	scratch->compat32 = REGS_COMPAT32(regs);
	__builtin_memcpy(scratch->table.general, general, sizeof(general));
}

/*
 * Two functions that are not inlined: left alone, the compiler merges the loads of both through a pointer that may be
 * either, and the verifier refuses a context pointer that was computed with.
 */
static __noinline int take_interrupted_registers(struct bpf_perf_event_data *ctx, struct scratch *scratch)
{
	take_registers(scratch, &ctx->regs);
	return 0;
}

static __noinline int take_saved_registers(struct task_struct *task, struct scratch *scratch)
{
	take_registers(scratch, (const struct pt_regs *)bpf_task_pt_regs(task));
	return 0;
}

/* The list of a process's image, or nothing. */
static __always_inline const struct process *list_of(const struct task_struct *leader)
{
	__u32 tgid = leader->tgid;
	const struct process *process = bpf_map_lookup_elem(&processes, &tgid);

	if (!process || process->start_time_ns != leader->start_boottime || process->exec_id != (__u32)leader->self_exec_id)
		return 0;
	return process;
}

/*
 * Whether one address space came from the other by fork, and neither has mapped code since: an exec in between would have chosen all
 * of the addresses anew, a library more or less changes how many pages of code there are.
 */
static __always_inline bool same_image(const struct mm_struct *one, const struct mm_struct *other)
{
	return one && one->exec_vm == other->exec_vm && one->start_code == other->start_code && one->end_code == other->end_code &&
	       one->start_brk == other->start_brk && one->start_stack == other->start_stack &&
	       one->arg_start == other->arg_start;
}

/*
 * A process that was forked a moment ago has its parent's mappings, and may be gone before it has a list of its own: shells and
 * servers make many such. Each level is an ancestor that lives and has not become another image.
 */
#define FORK_LEVELS 3
static __always_inline const struct process *list_of_parent(struct sample_header *header, const struct task_struct *leader,
							     const struct mm_struct *mm)
{
	__u32 exec_id = leader->self_exec_id;

#pragma clang loop unroll(full)
	for (int i = 0; i < FORK_LEVELS; i++) {
		const struct process *process;

		leader = leader->real_parent;
		if (!leader)
			break;
		leader = leader->group_leader;
		if (!leader || (__u32)leader->self_exec_id != exec_id || !same_image(leader->mm, mm))
			break;
		process = list_of(leader);
		if (process)
			return process;
		/* It may sleep for ever, and never be sampled itself. */
		header->parent_tgid = leader->tgid;
		header->parent_start_ns = leader->start_boottime;
	}
	return 0;
}

/*
 * Finds the list of mappings of the image that runs. Without one, each address is looked up in the kernel's own tree of mappings, which
 * takes longer.
 */
static __always_inline void begin_tables(struct scratch *scratch, const struct task_struct *leader, const struct mm_struct *mm)
{
	const struct process *process = list_of(leader);

	if (!process) {
		/* Also tells user space that it should get a list of its own. */
		scratch->record.header.flags |= SAMPLE_NO_TABLES;
		process = list_of_parent(&scratch->record.header, leader, mm);
		/* As good as certain: a library of the same size may have taken another's place. */
		if (process)
			scratch->record.header.flags |= SAMPLE_GUESSED;
	}
	scratch->table.list = 0;
	scratch->table.mappings = 0;
	if (process) {
		/* In this order: see `struct process`. */
		scratch->table.list = *(volatile const __u64 *)&process->list;
		scratch->table.mappings_at = *(volatile const __u32 *)&process->mappings_at;
		scratch->table.mappings = *(volatile const __u32 *)&process->mappings;
		if (*(volatile const __u32 *)&process->list_again != (__u32)scratch->table.list) {
			scratch->table.list = 0;
			scratch->table.mappings = 0;
		}
	}
	scratch->table.mapping.start = 0;
	scratch->table.mapping.end = 0;
	scratch->table.fp_at = 0;
	scratch->table.bx_at = 0;
	scratch->table.bx_lost = 0;
	scratch->table.others_at = OTHERS_HERE;
	scratch->table.exact = 1;
	scratch->table.early = 0;
}

static __always_inline int user_stack(void *ctx, struct task_struct *task, bool in_user_mode,
				      struct scratch *scratch)
{
	struct unwind *state = &scratch->user;
	struct mm_struct *mm = task->mm;

	if ((task->flags & PF_KTHREAD) || !mm)
		return STACK_NO_USER;
	/*
	 * From where execve switches to the new memory until it sets the new registers, the saved registers are the
	 * old image's. Nothing tells from outside on which side of the switch a task stands, so all of it is withheld.
	 */
	if (BPF_CORE_READ_BITFIELD(task, in_execve))
		return STACK_EXEC;
	if (in_user_mode)
		take_interrupted_registers(ctx, scratch);
	else
		take_saved_registers(task, scratch);
	/* Workers that the kernel started inside a process (io_uring, vhost) have its memory and no user registers. */
	if (state->ip == 0)
		return STACK_NO_USER;
	if (scratch->compat32) {
		scratch->record.frames[state->base & FRAMES_MASK] = state->ip;
		state->hash = hash_word(state->hash, state->ip);
		state->depth = 1;
		return STACK_COMPAT32;
	}
	state->stack_top = mm->start_stack;
	if (tables_used) {
		__u32 zero = 0;
		struct rule_cache *cache = bpf_map_lookup_elem(&rule_caches, &zero);

		if (cache) {
			begin_tables(scratch, task->group_leader, mm);
			return walk_by_tables(scratch, cache);
		}
	}
	return walk_user(scratch);
}

/* Returns the flags of one output: a wake-up for each sample would cost more than the sample (12 to 16 us). */
static __always_inline __u64 wake_flags(const struct sample_record *record)
{
	/* The sooner user space hears of an image, the fewer of its stacks are walked without tables. */
	if (record->header.flags & SAMPLE_NO_TABLES && !control.woken_for_image) {
		control.woken_for_image = 1;
		return BPF_RB_FORCE_WAKEUP;
	}
	if (control.woken || bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA) < wake_bytes)
		return BPF_RB_NO_WAKEUP;
	control.woken = 1;
	return BPF_RB_FORCE_WAKEUP;
}

static __always_inline void send(struct sample_record *record, __u64 hash, struct cpu_counters *count)
{
	__u32 frames = (record->header.kernel_depth + record->header.user_depth) & FRAMES_MASK;
	__u32 key = hash & sent_sets_mask;
	struct sent_set *set = control.omit_seen ? bpf_map_lookup_elem(&sent, &key) : 0;
	/* The epoch changes all 64 bits: what an older epoch marked looks like any other stack. */
	__u64 mark = hash ^ (record->header.epoch * HASH_MULTIPLIER);
	long error;

	if (set && was_sent(set, mark)) {
		record->header.flags |= SAMPLE_FRAMES_OMITTED;
		frames = 0;
	}
	/* Variable length: a reservation takes only a constant size. */
	error = bpf_ringbuf_output(&samples, record, sizeof(struct sample_header) + frames * sizeof(__u64),
				   wake_flags(record));
	if (error == 0) {
		if (record->header.flags & SAMPLE_FRAMES_OMITTED) {
			count->omitted++;
			return;
		}
		count->full++;
		/* Only now: a stack marked without having been sent would leave its followers without frames. */
		if (set)
			mark_sent(set, mark);
	} else if (error == -EAGAIN) {
		count->dropped[DROP_RING_FULL]++;	/* losing a sample is allowed; losing it silently is not */
	} else {
		count->dropped[DROP_OUTPUT_FAILED]++;
	}
}

static __always_inline bool is_watched(void)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;

	if (watched_count == 0)
		return true;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < WATCHED_MAX && i < watched_count; i++) {
		if (watched[i] == tgid)
			return true;
	}
	return false;
}

/* Takes one sample of the task that runs, with the stack of `ctx`. */
static __always_inline void take(void *ctx, bool in_user_mode, struct cpu_counters *count, struct scratch *scratch,
				 __u64 value, __u64 time_ns)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct sample_header *header;
	struct task_struct *task;
	__u64 hash;
	__u32 end;

	if (pid_tgid == 0) {
		count->idle++;
		return;
	}
	count->taken++;

	task = bpf_get_current_task_btf();
	header = &scratch->record.header;
	header->time_ns = time_ns;
	header->start_time_ns = task->group_leader->start_boottime;
	header->cgroup_id = cgroup_id(task);
	header->cpu_sequence = count->taken;
	header->tgid = pid_tgid >> 32;
	header->tid = pid_tgid;
	header->exec_id = task->self_exec_id;
	header->epoch = control.epoch;
	header->cpu = bpf_get_smp_processor_id();
	header->flags = (in_user_mode ? 0 : SAMPLE_KERNEL_MODE) | (task->flags & PF_VCPU ? SAMPLE_GUEST : 0);
	bpf_get_current_comm(header->comm, sizeof(header->comm));
	header->value = value;
	header->parent_start_ns = 0;
	header->parent_tgid = 0;

	hash = hash_word(header->tgid | ((__u64)header->exec_id << 32), header->start_time_ns);
	header->kernel_depth = 0;
	header->kernel_end = STACK_NOT_TAKEN;
	if (!in_user_mode) {
		header->kernel_end = kernel_stack(ctx, &scratch->record);
		hash = hash_kernel_frames(scratch, hash, header->kernel_depth);
	}

	/* Where one side ends and the other begins is part of the stack. */
	scratch->user.hash = hash_word(hash, header->kernel_depth);
	scratch->user.base = header->kernel_depth;
	scratch->user.depth = 0;
	end = user_stack(ctx, task, in_user_mode, scratch);
	header->user_end = end;
	header->user_depth = scratch->user.depth;
	if (end < STACK_ENDS)
		count->user_ends[end]++;

	header->stack_hash = hash_word(scratch->user.hash, (__u64)end << 32 | header->user_depth);
	send(&scratch->record, header->stack_hash, count);
}

/* A clock's tick, so many of a counted event, or a touch of an address. */
SEC("perf_event")
int on_cpu(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct cpu_counters *count = bpf_map_lookup_elem(&counters, &zero);
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
	__u64 now_ns = bpf_ktime_get_ns();

	/*
	 * A run is as long as it was drawn to be. User space starts and stops ticks when it gets a CPU, which is sooner when nothing else
	 * wants it: were that its beginning and end, busy moments would have more than their part.
	 */
	if (now_ns < control.from_ns || now_ns >= control.until_ns)
		return 0;
	if (!count || !scratch)
		return 0;	/* cannot happen: both have the entry 0 */
	if (!is_watched()) {
		if (bpf_get_current_pid_tgid() == 0)
			count->idle++;
		else
			count->unwatched++;	/* to whoever watches others, the CPU is as good as idle */
		return 0;
	}
	take(ctx, REGS_USER_MODE(&ctx->regs), count, scratch, control.period, now_ns);
	return 0;
}

/* Returns what one event counts for: 1, or what its field says. */
static __always_inline __u64 amount_of(const void *ctx)
{
	const void *field = (const char *)ctx + amount_offset;
	__u64 amount = 0;

	switch (amount_bytes) {
	case 1:
		bpf_probe_read_kernel(&amount, 1, field);
		return amount;
	case 2:
		bpf_probe_read_kernel(&amount, 2, field);
		return amount;
	case 4:
		bpf_probe_read_kernel(&amount, 4, field);
		return amount;
	case 8:
		bpf_probe_read_kernel(&amount, 8, field);
		return amount;
	default:
		return 1;
	}
}

/*
 * A tracepoint, on whatever CPU. What comes together is carried by the sample that fills the period: so the values add up to what
 * there was, and what is large is not missed. Returns 1: with 0 the kernel would keep the event from other programs that trace it.
 */
SEC("tracepoint")
int on_tracepoint(void *ctx)
{
	__u32 zero = 0;
	struct cpu_counters *count = bpf_map_lookup_elem(&counters, &zero);
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
	__u64 value;

	if (!count || !scratch || control.stopped || !is_watched())
		return 1;
	value = scratch->amount + amount_of(ctx);
	if (value < control.period) {
		scratch->amount = value;
		return 1;
	}
	scratch->amount = 0;
	take(ctx, false, count, scratch, value, bpf_ktime_get_ns());
	return 1;
}

/* The helpers that read memory are for programs that may be used under the GPL, too. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
