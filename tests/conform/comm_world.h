/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of the suite over communicators: the job of this rank, the values of ranks, and one checked collective.
 * One thread; a failure ends the running test.
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

#define N_MAX 100003 /* elements of a collective */

extern struct world {
  struct lade_launch launch;
  struct lade_kernels kernels;
  struct lade_comm_params params;
  lade_comm *comm;
  int rank, size, n_lines;
  bool is_ordered;     /* sums have the bits of the contract's order */
  lade_device *device; /* of nccl */
  struct lade_faults faults; /* of every communicator */
} world;

/*
 * Open the job over @path (self, memfd, file, apart, nccl; auto), with @staging_bytes of staging and a timeout of
 * @timeout_ms for other ranks. After a failure there is nothing to close.
 */
int world_open(const char *path, uint64_t staging_bytes, int timeout_ms, struct lade_error *error);

void world_close(void);

/*
 * Return an element that every rank can compute for every other: of all magnitudes, so that the order of a sum shows.
 */
float value_get(int rank, uint64_t element, uint32_t seed);

/* Check that element @i of @data is @value rounded to @dtype: the same bits. */
void value_expect(enum lade_dtype dtype, const void *data, uint64_t i, float value);

struct trial {
  lade_comm *comm;
  int rank, size; /* in comm */
  enum lade_collective_kind kind;
  enum lade_dtype dtype;
  uint64_t n;
  bool is_in_place;
  uint32_t seed;
  char *src, *dst; /* with space for size * n elements and a guard */
  struct lade_collective c;
};

/* Fill the buffers, and set trial.c to the collective. */
void trial_fill(struct trial *t);

/* Check the results of trial.c, and that no byte past their end has changed. */
void trial_expect(const struct trial *t);

/* Fill, run the collective, and check. */
void trial_run(struct trial *t);

/* Allocate memory through the communicator, or plain memory, which only engines on hosts take. */
void *bytes_get(lade_comm *comm, uint64_t bytes, bool is_window);

/* The same, with space for N_MAX elements of every rank, and a guard. */
void *room_get(lade_comm *comm, bool is_window);

void room_free(lade_comm *comm, void *data, bool is_window);

#define ENDING_PATIENCE_MS 300000 /* timeout of failing jobs, except for those that end by a rank that does not come: */
#define ENDING_LATE_MS 2000

/* Run a job that ends by @ending (comm.c), and print the status of this rank's call. Return the exit status. */
int ending_run(const char *ending);

#endif
