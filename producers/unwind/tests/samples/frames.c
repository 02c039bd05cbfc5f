/* Frames of every kind that a C compiler makes: see `tests/walk.rs` and `tests/oracle.rs`. */
#include <alloca.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone))

volatile unsigned long sink;
volatile int zero;

KEPT int leaf(int x)
{
	return x * 3 + (int)sink;
}

KEPT int pushes(int a, int b, int c, int d, int e, int f, int g)
{
	int r = leaf(a) + leaf(b);

	for (int i = 0; i < d; i++)
		r += leaf(r + c) ^ (e + f * g);
	return r;
}

KEPT int early(int x)
{
	if (x < 0)
		return -1;
	int r = leaf(x);

	return r + pushes(r, x, 1, 2, 3, 4, 5);
}

KEPT int uses_alloca(int n)
{
	char *p = alloca(n);

	memset(p, n, n);
	return p[n / 2] + leaf(n);
}

KEPT int variable_array(int n)
{
	int values[n];

	for (int i = 0; i < n; i++)
		values[i] = leaf(i);
	return values[n - 1] + early(n);
}

KEPT int big_frame(int n)
{
	volatile char buffer[70000];

	buffer[n] = n;
	return buffer[n] + leaf(n);
}

KEPT int realigned(int n)
{
	_Alignas(64) volatile char buffer[128];

	buffer[n & 127] = n;
	return buffer[n & 127] + pushes(n, n, n, 2, n, n, n);
}

KEPT double doubles(double x)
{
	return sqrt(x) + sin(x) * leaf((int)x);
}

KEPT int tail(int x)
{
	sink++;
	return early(x + 1);
}

KEPT int chain(int depth)
{
	return depth == 0 ? tail(3) : chain(depth - 1) + leaf(depth);
}

KEPT __attribute__((noreturn)) void never_returns(int x)
{
	sink += leaf(x);
	exit((int)(sink & 1) * 0);
}

KEPT int calls_pointer(int (*function)(int), int x)
{
	return function(x) + 1;
}

static volatile sig_atomic_t handled;

KEPT void handler(int number)
{
	handled += leaf(number);
}

KEPT int with_signal(int x)
{
	signal(SIGUSR1, handler);
	raise(SIGUSR1);
	return handled + x;
}

/* Written by hand, with its information by hand, and a frame address that no compiler would choose. */
int by_hand(int x);
__asm__(".text\n.p2align 4\n.globl by_hand\n.type by_hand, @function\nby_hand:\n"
	".cfi_startproc\n"
	"mov %rsp, %rax\n.cfi_def_cfa_register %rax\n"
	"push %rbp\n.cfi_offset %rbp, -16\n"
	"and $-64, %rsp\n"
	"sub $64, %rsp\n"
	"mov %rax, (%rsp)\n.cfi_escape 0x0f, 0x03, 0x77, 0x00, 0x06\n" /* *(rsp): the CFA less 8 */
	".cfi_escape 0x0f, 0x05, 0x77, 0x00, 0x06, 0x23, 0x08\n"
	"xor %ebp, %ebp\n"
	"lea (%rdi, %rdi, 2), %edx\n"
	"mov (%rsp), %rax\n.cfi_def_cfa %rax, 8\n"
	"mov -8(%rax), %rbp\n.cfi_restore %rbp\n"
	"mov %rax, %rsp\n.cfi_def_cfa %rsp, 8\n"
	"mov %edx, %eax\n"
	"ret\n"
	".cfi_endproc\n.size by_hand, .-by_hand\n");

KEPT int all(int x)
{
	int r = early(x) + uses_alloca(40) + variable_array(5) + big_frame(9) + realigned(7);

	r += (int)doubles(x) + tail(x) + chain(3) + calls_pointer(leaf, 4) + by_hand(x);
	return r + with_signal(2);
}

int main(int argc, char **argv)
{
	int r = 0;
	int rounds = argc > 1 ? atoi(argv[1]) : 1;

	for (int i = 0; i < rounds; i++)
		r += all(argc + i);
	printf("%d\n", r);
	fflush(stdout);
	never_returns(r);
}
