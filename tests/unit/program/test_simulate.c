/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator of a program: transfers of several queues over one link. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "program/build.h"

#define N_MAX 4
#define NS 100000 /* of each transfer alone */

/* A program of instructions without operands and waits. */
struct list {
  struct lade_instr instrs[N_MAX];
  struct lade_program program;
  int64_t spans[N_MAX][2];
};

static struct lade_instr instr_of(enum lade_instr_kind kind, enum lade_queue_id queue, enum lade_axis axis)
{
  struct lade_instr instr = {.kind = (uint8_t)kind, .queue = (uint8_t)queue, .axis = (uint8_t)axis, .predicted_ns = NS};
  for (int q = 0; q < LADE_N_QUEUES; q++)
    instr.waits[q] = -1;
  return instr;
}

#define OUT instr_of(LADE_INSTR_COPY, LADE_Q_TO_HOST, LADE_AXIS_TP)
#define IN instr_of(LADE_INSTR_COPY, LADE_Q_TO_DEVICE, LADE_AXIS_TP)
#define TENSOR instr_of(LADE_INSTR_COLLECTIVE, LADE_Q_COMM_TP, LADE_AXIS_TP)
#define DATA instr_of(LADE_INSTR_COLLECTIVE, LADE_Q_COMM_DP, LADE_AXIS_DP)
#define SENT instr_of(LADE_INSTR_SEND, LADE_Q_SEND, LADE_AXIS_PP)
#define RECEIVED instr_of(LADE_INSTR_RECV, LADE_Q_RECV, LADE_AXIS_PP)

/* Tensor parallel ranks fill the first level, replicas half of it and all of the second, stages the second. */
static struct lade_prices prices_of(void)
{
  struct lade_prices prices = {.to_host = {0, 1}, .to_device = {0, 1}};
  prices.comm_shares[LADE_AXIS_TP].of[LADE_LINK_LEVELS] = 1;
  prices.comm_shares[LADE_AXIS_DP].of[LADE_LINK_LEVELS] = 0.5;
  prices.comm_shares[LADE_AXIS_DP].of[LADE_LINK_LEVELS + 1] = 1;
  prices.boundary_shares.of[LADE_LINK_LEVELS + 1] = 1;
  prices.comm_shares[LADE_AXIS_DP].of[LADE_LINK_HOST] = prices.boundary_shares.of[LADE_LINK_HOST] = 0.25;
  return prices;
}

/* Return the time of @n instructions together. */
static double time_of(const struct lade_prices *prices, const struct lade_instr *instrs, int n, struct list *list)
{
  list->program = (struct lade_program){.instrs = list->instrs, .n_instrs = n};
  memcpy(list->instrs, instrs, (size_t)n * sizeof(*instrs));
  assert_int_equal(lade_program_simulate(&list->program, prices, NULL), 0);
  assert_int_equal(lade_program_simulate(&list->program, prices, list->spans), 0);
  return (double)list->program.predicted_ns / NS;
}

#define TIME(...) \
  time_of(&prices, (const struct lade_instr[]){__VA_ARGS__}, \
          (int)LADE_COUNT(((const struct lade_instr[]){__VA_ARGS__})), &list)

static bool is_near(double a, double b)
{
  if (fabs(a - b) > 1e-3)
    print_error("%g is not %g\n", a, b);
  return fabs(a - b) <= 1e-3;
}

/* Two that want 1.5 of a link run at 2/3; the other one's rest is at its full speed. */
static void transfers_share_the_links_that_both_use(void **state)
{
  struct lade_prices prices = prices_of();
  struct list list;
  assert_true(is_near(TIME(TENSOR), 1) && is_near(TIME(DATA), 1));
  assert_true(is_near(TIME(TENSOR, DATA), 1.5));
  assert_true(list.instrs[0].shared_ns == NS / 2 && list.instrs[1].shared_ns == NS / 2);
  assert_true(is_near(TIME(DATA, SENT), 2));      /* the whole second level, out */
  assert_true(is_near(TIME(TENSOR, SENT), 1));    /* no common link */
  assert_true(list.instrs[0].shared_ns == 0 && list.instrs[1].shared_ns == 0);
  assert_true(is_near(TIME(DATA, OUT), 1.25) && is_near(TIME(DATA, IN), 1.25));
  struct lade_instr longer = DATA;
  longer.predicted_ns = 3 * NS;
  assert_true(is_near(TIME(TENSOR, longer), 3.5)); /* the shorter one is done after 1.5, when 2 are left */
  assert_true(list.spans[0][1] == 3 * NS / 2 && list.spans[1][1] == 7 * NS / 2);
  assert_true(is_near(TIME(TENSOR, DATA, SENT), 2)); /* two at 1/2, and the first meanwhile at 2/3 */
}

static void directions_of_a_link_are_apart(void **state)
{
  struct lade_prices prices = prices_of();
  struct list list;
  assert_true(is_near(TIME(SENT, RECEIVED), 1) && is_near(TIME(OUT, IN), 1));
  assert_true(is_near(TIME(SENT, OUT), 1.25) && is_near(TIME(SENT, IN), 1) && is_near(TIME(RECEIVED, IN), 1.25));
  prices.has_half_duplex = true;
  assert_true(is_near(TIME(OUT, IN), 2) && is_near(TIME(SENT, IN), 1.25));
}

/* No byte moves in the latency of a transfer: two of which half is latency fit one link. */
static void latencies_take_nothing_of_a_link(void **state)
{
  struct lade_prices prices = prices_of();
  struct list list;
  prices.comm[LADE_AXIS_DP].latency_ns = NS / 2;
  prices.boundary.latency_ns = NS / 2;
  assert_true(is_near(TIME(DATA, SENT), 1));
  prices.boundary.latency_ns = 0;
  assert_true(is_near(TIME(DATA, SENT), 1.5));
}

/* Copies of a unified machine are work of its cores, which are shared already. */
static void shared_cores_have_no_links(void **state)
{
  struct lade_prices prices = prices_of();
  struct list list;
  prices.n_cores = 4;
  prices.copy_cores = 1;
  assert_true(is_near(TIME(DATA, SENT), 1));
}

/* Both sides of a send advance together: the receiver's sum of gradients slows the sender too. */
static void a_send_is_as_slow_as_its_slower_side(void **state)
{
  const struct lade_prices prices = prices_of(), *both[] = {&prices, &prices};
  struct lade_operand operand = {.bytes = 1};
  struct lade_instr first[] = {SENT}, second[] = {RECEIVED, DATA};
  first[0].peer = 1;
  const struct lade_program programs[] = {{.instrs = first, .n_instrs = 1, .operands = &operand},
                                          {.instrs = second, .n_instrs = 2, .operands = &operand}};
  const struct lade_program *stages[] = {&programs[0], &programs[1]};
  struct lade_stages_time time;
  struct lade_error error;
  assert_int_equal(lade_stages_simulate(stages, both, 2, &error, &time), 0);
  assert_true(is_near((double)time.span_ns / NS, 2));
  stages[1] = &(const struct lade_program){.instrs = second, .n_instrs = 1, .operands = &operand};
  assert_int_equal(lade_stages_simulate(stages, both, 2, &error, &time), 0);
  assert_true(is_near((double)time.span_ns / NS, 1));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transfers_share_the_links_that_both_use),
      cmocka_unit_test(directions_of_a_link_are_apart),
      cmocka_unit_test(latencies_take_nothing_of_a_link),
      cmocka_unit_test(shared_cores_have_no_links),
      cmocka_unit_test(a_send_is_as_slow_as_its_slower_side),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
