/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the suite over communicators shares: the job that a rank is in, what ranks hold, and one collective, checked.
 * All of one thread; what fails ends the test that runs.
 */
#ifndef LADE_TEST_COMM_WORLD_H
#define LADE_TEST_COMM_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/faults.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "parallel/comm.h"

#define N_MOST 100003 /* elements of a collective */

extern struct world {
  struct lade_launch launch;
  struct lade_kernels kernels;
  struct lade_comm_params params;
  lade_comm *comm;
  int rank, size, n_lines;
  bool is_ordered;     /* sums have the contract's own bits */
  lade_device *device; /* of nccl */
  struct lade_faults faults; /* of every communicator */
} world;

/*
 * Open the job over @path (self, memfd, file, apart, nccl; auto), with staging of @staging_bytes and calls that wait
 * for other ranks for @timeout_ms. On failure there is nothing to close.
 */
int world_open(const char *path, uint64_t staging_bytes, int timeout_ms, struct lade_error *error);

void world_close(void);

/* An element that every rank can compute for every other: of all magnitudes, so that the order of a sum shows. */
float value_get(int rank, uint64_t element, uint32_t seed);

/* Element @i of @data is @value, as @dtype has it: the same bits. */
void value_expect(enum lade_dtype dtype, const void *data, uint64_t i, float value);

struct trial {
  lade_comm *comm;
  int rank, size; /* in comm */
  enum lade_collective_kind kind;
  enum lade_dtype dtype;
  uint64_t n;
  bool is_in_place;
  uint32_t seed;
  char *src, *dst; /* with room for size * n elements and a guard */
  struct lade_collective c;
};

/* Fill the buffers, and say in trial.c what is to be done with them. */
void trial_fill(struct trial *t);

/* What trial.c asked for is there, and nothing past its end. */
void trial_expect(const struct trial *t);

/* Both, and the collective in between. */
void trial_run(struct trial *t);

/* Memory of the contract's own, or any that an engine on hosts takes. */
void *bytes_get(lade_comm *comm, uint64_t bytes, bool is_window);

/* The same, with room for N_MOST elements of every rank, and a guard. */
void *room_get(lade_comm *comm, bool is_window);

void room_free(lade_comm *comm, void *data, bool is_window);

#define ENDING_PATIENCE_MS 300000 /* of jobs that end badly, but where that is by a rank that does not come: */
#define ENDING_LATE_MS 2000

/* Run a job that ends as @ending says (comm.c), and print what this rank's call returned. Returns the exit status. */
int ending_run(const char *ending);

#endif
