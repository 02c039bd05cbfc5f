// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * What the profiler is measured against, on the same perf event: a program that does nothing, and one that takes the
 * user stack with the kernel's helper and does nothing with it. Never part of a profile.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include "record.h"
#include "unwind.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

SEC("perf_event")
int empty(struct bpf_perf_event_data *ctx)
{
	return 0;
}

SEC("perf_event")
int walk_by_helper(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);

	/* Busy ticks in user mode only, as in `walk_by_frame_pointer`: the two walk the same stacks. */
	if (!scratch || bpf_get_current_pid_tgid() == 0 || !REGS_USER_MODE(&ctx->regs))
		return 0;
	bpf_get_stack(ctx, scratch->record.frames, STACK_FRAMES_MAX * sizeof(__u64), BPF_F_USER_STACK);
	return 0;
}

SEC("perf_event")
int walk_by_frame_pointer(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);

	if (!scratch || bpf_get_current_pid_tgid() == 0 || !REGS_USER_MODE(&ctx->regs))
		return 0;
	scratch->user = (struct unwind){ .ip = REGS_IP(&ctx->regs), .sp = REGS_SP(&ctx->regs), .fp = REGS_FP(&ctx->regs) };
	walk_user(scratch);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
