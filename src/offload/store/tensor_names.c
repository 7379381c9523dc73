/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a store: a tree finds one by its name and the next one in the order of names; a list enumerates all.
 * Both have every tensor.
 *
 * The tree is a treap: a search tree by name, and a heap by rank, a hash of the tensor's number. Its shape is that of a
 * tree into which the names were put in random order, whatever the order of the puts. So its depth is O(log n) with
 * probability close to 1. Rejected: tsearch of the C library, which has no successor.
 */
#include <stdlib.h>
#include <string.h>

#include "offload/store/tensor_internal.h"

/* Return a hash of @number that orders the heap: the last step of MurmurHash3, a bijection. */
static uint32_t rank_of(uint32_t number)
{
  number = (number ^ number >> 16) * 0x85ebca6bu;
  number = (number ^ number >> 13) * 0xc2b2ae35u;
  return number ^ number >> 16;
}

/* Return the place in the tree that holds the tensor called @name, or where it would be put as a leaf. */
static struct tensor **place_find(struct lade_tensor_store *s, const char *name)
{
  struct tensor **at = &s->tree;
  for (int order; *at && (order = strcmp(name, (*at)->name)) != 0;)
    at = &(*at)->sides[order > 0];
  return at;
}

/* Cut @tree into the names before @name and those after it. */
static void tree_split(struct tensor *tree, const char *name, struct tensor *ret_sides[2])
{
  struct tensor **ends[2] = {&ret_sides[0], &ret_sides[1]};
  while (tree) {
    const int is_after = strcmp(tree->name, name) > 0;
    *ends[is_after] = tree;
    ends[is_after] = &tree->sides[!is_after];
    tree = tree->sides[!is_after];
  }
  *ends[0] = *ends[1] = NULL;
}

/* Join two trees into one at @at. pre: every name of @after follows every name of @before. */
static void trees_join(struct tensor *before, struct tensor *after, struct tensor **at)
{
  while (before && after) {
    const bool is_before = before->rank > after->rank;
    struct tensor *top = is_before ? before : after;
    *at = top;
    at = &top->sides[is_before];
    *(is_before ? &before : &after) = *at;
  }
  *at = before ? before : after;
}

static void tree_put(struct lade_tensor_store *s, struct tensor *tensor)
{
  struct tensor **at = &s->tree;
  tensor->rank = rank_of(tensor->number);
  while (*at && (*at)->rank >= tensor->rank)
    at = &(*at)->sides[strcmp(tensor->name, (*at)->name) > 0];
  tree_split(*at, tensor->name, tensor->sides);
  *at = tensor;
}

struct tensor *tensor_find(struct lade_tensor_store *s, const char *name)
{
  return *place_find(s, name);
}

/* Return the tensor whose name follows @name, lost ones too; @name NULL: the first. NULL if there is none. */
static struct tensor *successor_find(const struct lade_tensor_store *s, const char *name)
{
  struct tensor *at = s->tree, *best = NULL;
  while (at) {
    const bool is_after = !name || strcmp(at->name, name) > 0;
    best = is_after ? at : best;
    at = at->sides[!is_after];
  }
  return best;
}

struct tensor *tensor_find_next(struct lade_tensor_store *s, const char *after)
{
  struct tensor *tensor = successor_find(s, after);
  while (tensor && tensor->is_lost)
    tensor = successor_find(s, tensor->name);
  return tensor;
}

static void tensor_free(struct tensor *tensor)
{
  LADE_ARRAY_FREE(&tensor->runs);
  LADE_ARRAY_FREE(&tensor->unwritten);
  free(tensor->name);
  free(tensor);
}

struct tensor *tensor_make(struct lade_tensor_store *s, const char *name)
{
  struct tensor *tensor = calloc(1, sizeof(*tensor));
  char *copy = strdup(name);
  if (!tensor || !copy) {
    free(copy);
    free(tensor);
    return NULL;
  }
  tensor->name = copy;
  tensor->number = s->n_numbers++;
  tree_put(s, tensor);
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
  trees_join(tensor->sides[0], tensor->sides[1], place_find(s, tensor->name));
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
  for (struct tensor *tensor = s->tensors, *next; tensor; tensor = next) {
    next = tensor->next;
    tensor_free(tensor);
  }
  s->tree = s->tensors = NULL;
}
