/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of an engine of the comm contract. Private to src/parallel/.
 *
 * comm.c checks arguments, keeps the first error, and turns collectives into work for queues. An engine may rely on
 * valid arguments. It embeds struct lade_comm as its first member.
 */
#ifndef LADE_COMM_INTERNAL_H
#define LADE_COMM_INTERNAL_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/faults.h"
#include "base/first_error.h"
#include "parallel/comm.h"

struct lade_comm_ops {
  int (*run)(lade_comm *comm, const struct lade_comm_list *list, struct lade_error *error);
  int (*split)(lade_comm *comm, int colour, int key, struct lade_error *error, lade_comm **ret_comm);
  int (*alloc)(lade_comm *comm, uint64_t bytes, struct lade_error *error, void **ret_data);
  void (*free)(lade_comm *comm, void *data);
  /* Optional, both; NULL if registering has no effect. */
  int (*register_range)(lade_comm *comm, const struct lade_comm_range *range, struct lade_error *error,
                        bool *ret_is_registered);
  void (*unregister_range)(lade_comm *comm, const void *data);
  void (*abort)(lade_comm *comm, const char *words);
  bool (*is_speaker)(lade_comm *comm);
  void (*get_info)(const lade_comm *comm, struct lade_comm_info *ret_info);
  void (*close)(lade_comm *comm);

  void (*set_exit_code)(lade_comm *comm, int code); /* optional; NULL: the exit code has no effect on other ranks */

  /* Optional: lade_comm_set_busy. */
  void (*set_busy)(lade_comm *comm, bool is_busy);

  /* Optional. Put the work on @queue by a faster path than running it there; false if this queue has none. */
  bool (*launch)(lade_comm *comm, lade_queue *queue, struct lade_comm_work *work, uint64_t *ret_count);

  /*
   * Optional, all five: used by another engine whose ranks cannot see each other. Never block; any thread. look: return
   * 0, or the error if a member has died, aborted, is stopped or late, the same at every member that shares memory.
   * late: report that @member has not arrived within timeout_ms. is_excused: true if another member has declared itself
   * busy. spoil: record that members may not take part in closing. peer_memory: return the local address of @member's
   * part of the allocation whose own part is @data; NULL if ranks share no memory.
   */
  int (*look)(lade_comm *comm, struct lade_error *error);
  void (*late)(lade_comm *comm, int member);
  bool (*is_excused)(lade_comm *comm);
  void (*spoil)(lade_comm *comm);
  const void *(*peer_memory)(lade_comm *comm, const void *data, int member);
};

struct lade_comm {
  const struct lade_comm_ops *ops;
  int rank, size;
  struct lade_comm_params params; /* with defaults filled in; launch is not kept */
  struct lade_first_error failure;
};

/* Initialise and finish the common part. The caller gives ops, rank and size. */
void lade_comm_init(lade_comm *comm, const struct lade_comm_ops *ops, const struct lade_comm_params *params, int rank,
                    int size);
void lade_comm_finish(lade_comm *comm);

/*
 * True if @comm is a rank of its size, and its engine has all operations that are not optional. Its parameters must be
 * complete, and its error that of its status. pre: no other thread uses @comm. Asserted with -Dchecks=full.
 */
bool comm_is_valid(const lade_comm *comm);

/*
 * Record @found as the communicator's error if @status is the first error. Return the communicator's status with its
 * line in @error, or 0 if @status is 0. Any thread.
 */
int lade_comm_keep(lade_comm *comm, int status, const struct lade_error *found, struct lade_error *error);

/* Open an engine. pre: @params has its defaults filled in. */
int lade_comm_open_self(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);
int lade_comm_open_mpi(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);
int lade_comm_open_nccl(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);

/* Open an engine of the host, as @params->engine and the number of ranks choose; @params are complete. */
int lade_comm_open_host(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);

/* Copy @found to @error (may be NULL) if @status is a failure. Return @status. */
int comm_error_pass(int status, const struct lade_error *found, struct lade_error *error);

/* Return the elements of all blocks of a list, laid end to end. */
static inline uint64_t comm_list_elements(const struct lade_comm_list *list)
{
  uint64_t n = 0;
  for (int i = 0; i < list->n; i++)
    n += list->items[i].n;
  return n;
}

/*
 * The blocks of a list as one range, to be moved in chunks of any size. A walk over [from, from + n) of the range
 * visits it in stretches, each inside one item.
 */
struct comm_stretch {
  const struct lade_collective *item;
  uint64_t at;   /* first element, in the item's block */
  uint64_t n;
  uint64_t from; /* its position in the walk */
};

struct comm_walk {
  const struct lade_comm_list *list;
  int i_item;
  uint64_t skipped, left, done;
};

static inline struct comm_walk comm_walk_begin(const struct lade_comm_list *list, uint64_t from, uint64_t n)
{
  return (struct comm_walk){list, 0, from, n, 0};
}

static inline bool comm_walk_next(struct comm_walk *walk, struct comm_stretch *ret_stretch)
{
  for (; walk->left && walk->i_item < walk->list->n; walk->i_item++) {
    const struct lade_collective *item = &walk->list->items[walk->i_item];
    if (walk->skipped >= item->n) {
      walk->skipped -= item->n;
      continue;
    }
    uint64_t n = LADE_MIN(item->n - walk->skipped, walk->left);
    *ret_stretch = (struct comm_stretch){item, walk->skipped, n, walk->done};
    walk->i_item++;
    walk->skipped = 0;
    walk->left -= n;
    walk->done += n;
    return true;
  }
  return false;
}

static inline uint64_t lade_collective_bytes(const struct lade_collective *collective)
{
  return collective->n * lade_dtype_bytes(collective->dtype);
}

#endif
