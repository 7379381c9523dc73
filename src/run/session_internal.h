/* SPDX-License-Identifier: Apache-2.0 */
/* A session's parts: session_open.c acquires them in order, session.c runs steps over them. */
#ifndef LADE_SESSION_INTERNAL_H
#define LADE_SESSION_INTERNAL_H

#include "base/base.h"
#include "base/cpu.h"
#include "plan/probe.h"
#include "run/checkpoint.h"
#include "run/session.h"

struct lade_session {
  struct lade_session_params params;
  struct lade_model model;
  lade_data *data; /* NULL when only planned without data */
  struct lade_kernels kernels;
  lade_pool *pool;
  struct lade_graph *graph;
  struct lade_cost cost;
  bool has_cost;
  struct lade_prices prices;
  bool has_prices, is_unified;
  int n_microbatches;
  uint64_t capacity_bytes;  /* of the device */
  uint64_t left_bytes;      /* memory that device and host tier share, or the host's alone */
  uint64_t budget_bytes, host_bytes, store_bytes;
  struct lade_change *pins;
  int n_pins;
  lade_planner *planner;
  struct lade_plan_bounds bounds;
  struct lade_plan *plan;
  lade_device *device;
  lade_store *store;
  lade_executor *executor;
  double matmul_flops_per_s; /* measured in this run; 0: not */
  struct lade_checkpoint_state state;
};

struct lade_values lade_session_values(lade_session *session);

void session_notice(const lade_session *session, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
