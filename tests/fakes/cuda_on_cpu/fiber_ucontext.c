/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers on machines without an assembly switch. */
#include "fiber.h"

#include <stdlib.h>
#include <ucontext.h>

#include "base/base.h"

static ucontext_t *context_get(struct fiber *fiber)
{
  if (!fiber->at)
    fiber->at = calloc(1, sizeof(ucontext_t));
  LADE_ASSERT(fiber->at);
  return fiber->at;
}

void fiber_init(struct fiber *fiber, void *stack, size_t stack_bytes, void (*entry)(void))
{
  ucontext_t *context = context_get(fiber);
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = stack_bytes;
  makecontext(context, entry, 0);
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
  swapcontext(context_get(from), context_get(to));
}
