/* SPDX-License-Identifier: Apache-2.0 */
/* Values in plain memory. A call that violates the contract aborts the test. */
#include "tests/support/values_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/float.h"
#include "base/philox.h"

static void demand(bool is_met, const char *claim)
{
  if (is_met)
    return;
  fprintf(stderr, "values: %s\n", claim);
  abort();
}

static int call_begin(struct values_memory *memory, int tensor, uint64_t offset, uint64_t bytes,
                      struct lade_error *error)
{
  demand(tensor >= 0 && tensor < lade_value_count(memory->graph) && memory->memory[tensor], "no such value");
  demand(offset % LADE_VALUES_WINDOW_BYTES == 0, "offset is not a window's");
  demand(bytes > 0 && bytes <= LADE_VALUES_WINDOW_BYTES, "not at most a window");
  demand(offset + bytes <= lade_value_bytes(memory->graph, tensor), "past the value's end");
  if (++memory->n_calls == memory->fail_at)
    return lade_error_set(error, -EIO, "the values' call %llu fails", (unsigned long long)memory->n_calls);
  return 0;
}

static int memory_get(void *user, int tensor, uint64_t offset, void *dst, uint64_t bytes, struct lade_error *error)
{
  struct values_memory *memory = user;
  int rc = call_begin(memory, tensor, offset, bytes, error);
  if (rc == 0)
    memcpy(dst, (char *)memory->memory[tensor] + offset, bytes);
  return rc;
}

static int memory_set(void *user, int tensor, uint64_t offset, const void *src, uint64_t bytes,
                      struct lade_error *error)
{
  struct values_memory *memory = user;
  int rc = call_begin(memory, tensor, offset, bytes, error);
  if (rc < 0)
    return rc;
  uint64_t *done = &memory->set_bytes[tensor];
  demand(offset == *done || offset == 0, "not set in ascending order");
  demand(bytes == LADE_VALUES_WINDOW_BYTES || offset + bytes == lade_value_bytes(memory->graph, tensor),
         "a window is set in part");
  *done = offset + bytes;
  memcpy((char *)memory->memory[tensor] + offset, src, bytes);
  return 0;
}

static void value_make(struct values_memory *memory, int tensor)
{
  if (tensor < 0)
    return;
  uint64_t bytes = lade_value_bytes(memory->graph, tensor);
  memory->memory[tensor] = malloc(bytes);
  if (!memory->memory[tensor])
    abort();
  memset(memory->memory[tensor], 0xff, bytes);
}

void values_memory_init(struct values_memory *memory, const struct lade_model_graph *graph)
{
  *memory = (struct values_memory){.graph = graph};
  memory->values = (struct lade_values){.graph = graph, .get = memory_get, .set = memory_set, .user = memory};
  memory->memory = calloc((size_t)lade_value_count(graph), sizeof(*memory->memory));
  memory->set_bytes = calloc((size_t)lade_value_count(graph), sizeof(*memory->set_bytes));
  if (!memory->memory || !memory->set_bytes)
    abort();
  for (int param = 0; param < graph->n_params; param++) {
    value_make(memory, graph->params[param].tensor);
    for (int part = 0; part < LADE_N_PARTS; part++)
      value_make(memory, lade_value_part(graph, param, (enum lade_part)part));
  }
}

void values_memory_finish(struct values_memory *memory)
{
  for (int i = 0; i < lade_value_count(memory->graph); i++)
    free(memory->memory[i]);
  free(memory->memory);
  free(memory->set_bytes);
  *memory = (struct values_memory){0};
}

/* Return a random FP32 number below 2 in magnitude with all bits of its mantissa in use. */
static float random_number(uint64_t seed, uint32_t stream, uint64_t i)
{
  uint32_t word = lade_philox_word(seed, 7, stream, i);
  return lade_f32_from_bits((word & 0x807fffffu) | (120 + (word >> 23) % 8) << 23);
}

static void master_randomize(struct values_memory *memory, int param, uint64_t seed)
{
  const struct lade_model_graph *graph = memory->graph;
  int weight = graph->params[param].tensor, part = lade_value_part(graph, param, LADE_PART_RESIDUAL);
  uint64_t n = lade_value_bytes(graph, weight) / lade_dtype_bytes(graph->dtype);
  for (uint64_t i = 0; i < n; i++) {
    float master = random_number(seed, (uint32_t)weight, i);
    if (graph->dtype == LADE_F32) {
      ((float *)memory->memory[weight])[i] = master;
    } else if (graph->dtype == LADE_BF16) {
      lade_master_split(master, (uint16_t *)memory->memory[weight] + i, (int16_t *)memory->memory[part] + i);
    } else {
      ((uint16_t *)memory->memory[weight])[i] = lade_f32_to_f16(master);
      ((float *)memory->memory[part])[i] = master;
    }
  }
}

void values_memory_randomize(struct values_memory *memory, uint64_t seed)
{
  const struct lade_model_graph *graph = memory->graph;
  for (int param = 0; param < graph->n_params; param++) {
    master_randomize(memory, param, seed);
    for (int part = LADE_PART_M; part <= LADE_PART_V; part++) {
      int tensor = lade_value_part(graph, param, (enum lade_part)part);
      for (uint64_t i = 0; i < lade_value_bytes(graph, tensor) / sizeof(float); i++)
        ((float *)memory->memory[tensor])[i] = random_number(seed, (uint32_t)tensor, i);
    }
  }
}

bool values_memory_equal(const struct values_memory *a, const struct values_memory *b)
{
  for (int i = 0; i < lade_value_count(a->graph); i++)
    if (a->memory[i] && memcmp(a->memory[i], b->memory[i], lade_value_bytes(a->graph, i)) != 0)
      return false;
  return true;
}

bool values_memory_is_set(const struct values_memory *memory)
{
  for (int i = 0; i < lade_value_count(memory->graph); i++)
    if (memory->memory[i] && memory->set_bytes[i] != lade_value_bytes(memory->graph, i))
      return false;
  return true;
}
