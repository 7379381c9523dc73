/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of a test that ranks.py starts: who this process is, and its communicators by axis. What cannot be had ends
 * the process with a line.
 */
#ifndef LADE_TESTS_WORLD_H
#define LADE_TESTS_WORLD_H

#include "parallel/layout.h"
#include "parallel/comm.h"

struct world {
  struct lade_launch launch;
  struct lade_kernels kernels;
  lade_comm *comm;              /* of all */
  lade_comm *axes[LADE_N_AXES]; /* of the layout's axes; NULL where we are alone */
  int rank, size;
};

void world_open(struct world *world);
void world_open_as(struct world *world, enum lade_comm_backing backing, int timeout_ms);
/* Communicators of @layout's axes. */
void world_split(struct world *world, const struct lade_layout *layout);
void world_unite(struct world *world); /* close them again */
void world_close(struct world *world);

/* Is it the same at every rank? Collective. */
bool world_agrees(struct world *world, uint64_t number);

/* Print and exit unless @truth; the other ranks end with the job. */
void demand(bool truth, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
