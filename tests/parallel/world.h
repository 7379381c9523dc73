/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of a test that ranks.py starts: this process's rank, and its communicators by axis. Any failure ends the
 * process with a line.
 */
#ifndef LADE_TESTS_WORLD_H
#define LADE_TESTS_WORLD_H

#include "parallel/layout.h"
#include "parallel/comm.h"

struct world {
  struct lade_launch launch;
  struct lade_kernels kernels;
  lade_comm *comm;              /* of all ranks */
  lade_comm *axes[LADE_N_AXES]; /* of the layout's axes; NULL if this rank is alone on the axis */
  int rank, size;
};

void world_open(struct world *world);
void world_open_as(struct world *world, enum lade_comm_backing backing, int timeout_ms);
/* Open communicators of @layout's axes. */
void world_split(struct world *world, const struct lade_layout *layout);
void world_unite(struct world *world); /* close them */
void world_close(struct world *world);

/* True if @number is the same at every rank. Collective. */
bool world_agrees(struct world *world, uint64_t number);

/* Print and exit unless @truth; the other ranks end with the job. */
void demand(bool truth, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
