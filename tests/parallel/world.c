/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/parallel/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/cpu.h"

#define RANKS_MAX 64

extern char **environ;

void demand(bool truth, const char *format, ...)
{
  va_list args;
  if (truth)
    return;
  va_start(args, format);
  fprintf(stderr, "FAILED: ");
  vfprintf(stderr, format, args);
  fprintf(stderr, "\n");
  va_end(args);
  exit(1);
}

void world_open(struct world *world)
{
  world_open_as(world, LADE_COMM_BACKING_AUTO, 0);
}

void world_open_as(struct world *world, enum lade_comm_backing backing, int timeout_ms)
{
  struct lade_error error = {0};
  struct lade_cpu cpu = lade_cpu_get();
  *world = (struct world){.rank = 0};
  lade_kernels_init(&world->kernels, &cpu);
  demand(!lade_launch_read(environ, &error, &world->launch), "%s", error.text);
  struct lade_comm_params params = {.struct_size = sizeof(params), .launch = &world->launch,
                                    .kernels = &world->kernels, .is_checked = true, .backing = backing,
                                    .timeout_ms = timeout_ms};
  demand(!lade_comm_open(&params, &error, &world->comm), "%s", error.text);
  world->rank = lade_comm_rank(world->comm);
  world->size = lade_comm_size(world->comm);
  demand(world->size <= RANKS_MAX, "%d ranks are more than tests are for", world->size);
}

void world_split(struct world *world, const struct lade_layout *layout)
{
  struct lade_error error = {0};
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    int colour = lade_mesh_group(&layout->mesh, (enum lade_axis)axis, world->rank);
    int key = lade_mesh_position(&layout->mesh, (enum lade_axis)axis, world->rank);
    if (layout->mesh.axes[axis].size > 1)
      demand(!lade_comm_split(world->comm, colour, key, &error, &world->axes[axis]), "%s", error.text);
  }
}

void world_unite(struct world *world)
{
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    lade_comm_close(world->axes[axis]);
    world->axes[axis] = NULL;
  }
}

void world_close(struct world *world)
{
  world_unite(world);
  lade_comm_close(world->comm);
}

bool world_agrees(struct world *world, uint64_t number)
{
  struct lade_error error = {0};
  uint64_t numbers[RANKS_MAX];
  struct lade_collective gather = {.kind = LADE_ALL_GATHER, .dtype = LADE_F64, .n = 1, .src = &number, .dst = numbers};
  demand(!lade_comm_run(world->comm, &gather, &error), "%s", error.text);
  bool is_equal = true;
  for (int rank = 0; rank < world->size; rank++)
    is_equal &= numbers[rank] == number;
  return is_equal;
}
