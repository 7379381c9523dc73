/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fibers: stacks that one thread switches between. On x86-64 in assembly (fiber_x86_64.S), where a switch is a dozen
 * instructions; elsewhere with ucontext (fiber_ucontext.c), where it is two system calls.
 */
#ifndef LADE_TEST_FIBER_H
#define LADE_TEST_FIBER_H

#include <stddef.h>

struct fiber {
  void *at; /* the stack pointer, or a context */
};

/* Make a fiber that begins in @entry, which may not return, on @stack. With ucontext it replaces an older one. */
void fiber_init(struct fiber *fiber, void *stack, size_t stack_bytes, void (*entry)(void));

/* Switch to @to. Returns after a switch back to @from. */
void fiber_switch(struct fiber *from, struct fiber *to);

#endif
