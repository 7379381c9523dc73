/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a store: a tree finds one by its name, and a list enumerates all. Both have every tensor. */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store/tensor_internal.h"

static int name_compare(const void *a, const void *b)
{
  return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

struct tensor *tensor_find(struct lade_tensor_store *s, const char *name)
{
  struct tensor key = {.name = (char *)name};
  struct tensor **found = tfind(&key, &s->tree, name_compare);
  return found ? *found : NULL;
}

static void tensor_free(void *arg)
{
  struct tensor *tensor = arg;
  LADE_ARRAY_FREE(&tensor->runs);
  free(tensor->name);
  free(tensor);
}

struct tensor *tensor_make(struct lade_tensor_store *s, const char *name)
{
  struct tensor *tensor = calloc(1, sizeof(*tensor));
  char *copy = strdup(name);
  if (tensor)
    tensor->name = copy;
  if (!tensor || !copy || !tsearch(tensor, &s->tree, name_compare)) {
    free(copy);
    free(tensor);
    return NULL;
  }
  tensor->number = s->n_numbers++;
  tensor->next = s->tensors;
  if (s->tensors)
    s->tensors->previous = tensor;
  s->tensors = tensor;
  s->n_tensors++;
  return tensor;
}

void tensor_remove(struct lade_tensor_store *s, struct tensor *tensor)
{
  LADE_ASSERT(!tensor->requests);
  store_room_give(&s->room, &tensor->runs);
  tdelete(tensor, &s->tree, name_compare);
  if (tensor->previous)
    tensor->previous->next = tensor->next;
  else
    s->tensors = tensor->next;
  if (tensor->next)
    tensor->next->previous = tensor->previous;
  s->n_tensors--;
  tensor_free(tensor);
}

void tensors_free(struct lade_tensor_store *s)
{
  tdestroy(s->tree, tensor_free);
  s->tree = NULL;
  s->tensors = NULL;
}
