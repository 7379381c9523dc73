/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fibers: stacks that one thread switches between. By hand on x86-64 (fiber_x86_64.S), where a switch is a dozen
 * instructions; with ucontext elsewhere (fiber_ucontext.c), where it is two system calls.
 */
#ifndef LADE_TEST_FIBER_H
#define LADE_TEST_FIBER_H

#include <stddef.h>

struct fiber {
  void *at; /* the stack pointer, or a context */
};

/* A fiber that begins in @entry, which may not return, on @stack. With ucontext it replaces an older one. */
void fiber_init(struct fiber *fiber, void *stack, size_t stack_bytes, void (*entry)(void));

/* Go on in @to, and here when somebody switches back to @from. */
void fiber_switch(struct fiber *from, struct fiber *to);

#endif
