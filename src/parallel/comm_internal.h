/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine of the comm contract fills in. Private to src/parallel/.
 *
 * comm.c checks arguments, keeps the first error, and turns collectives into work for queues; an engine may take it
 * for granted that what it is asked for makes sense, and embeds struct lade_comm as its first member.
 */
#ifndef LADE_COMM_INTERNAL_H
#define LADE_COMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/faults.h"
#include "parallel/comm.h"

struct lade_comm_ops {
  int (*run)(lade_comm *comm, const struct lade_comm_list *list, struct lade_error *error);
  int (*split)(lade_comm *comm, int colour, int key, struct lade_error *error, lade_comm **ret_comm);
  int (*alloc)(lade_comm *comm, uint64_t bytes, struct lade_error *error, void **ret_data);
  void (*free)(lade_comm *comm, void *data);
  /* Optional, both: where registering would change nothing. */
  int (*register_range)(lade_comm *comm, const struct lade_comm_range *range, struct lade_error *error,
                        bool *ret_is_registered);
  void (*unregister_range)(lade_comm *comm, const void *data);
  void (*abort)(lade_comm *comm, const char *words);
  bool (*is_speaker)(lade_comm *comm);
  void (*get_info)(const lade_comm *comm, struct lade_comm_info *ret_info);
  void (*close)(lade_comm *comm);

  void (*set_exit_code)(lade_comm *comm, int code); /* NULL: nobody is told by an end */

  /* Optional: lade_comm_set_busy. */
  void (*set_busy)(lade_comm *comm, bool is_busy);

  /* Optional. Put the work on @queue by a better way than to run it there; false: there is none for this queue. */
  bool (*launch)(lade_comm *comm, lade_queue *queue, struct lade_comm_work *work, uint64_t *ret_count);

  /*
   * Optional, all five: what another engine needs whose ranks cannot see each other. Never block; any thread.
   * look: has a member died, given up, been stopped or come late? 0 or the error, the same at every member that shares
   * memory. late: say that @member has not come for timeout_ms. is_excused: is another member busy by its own word?
   * spoil: no member can be relied on to close. peer_memory: where @member's part of the allocation whose own part is
   * @data lies here; NULL where ranks share no memory.
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
  struct lade_comm_params params; /* with its defaults filled in; launch is not kept */
  atomic_int status;              /* the first error */
  pthread_mutex_t mutex;          /* guards error */
  struct lade_error error;
};

/* Set up and take down the common part; ops, rank and size are given. */
void lade_comm_init(lade_comm *comm, const struct lade_comm_ops *ops, const struct lade_comm_params *params, int rank,
                    int size);
void lade_comm_finish(lade_comm *comm);

/*
 * Keep @found as the communicator's error if @status is one and the first. Returns the communicator's status, its line
 * in @error, or 0 when @status is 0. Any thread.
 */
int lade_comm_keep(lade_comm *comm, int status, const struct lade_error *found, struct lade_error *error);

/* The engines. @params has its defaults. */
int lade_comm_open_self(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);
int lade_comm_open_mpi(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);
int lade_comm_open_nccl(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);

/* Elements of all blocks of a list, laid end to end. */
static inline uint64_t comm_list_elements(const struct lade_comm_list *list)
{
  uint64_t n = 0;
  for (int i = 0; i < list->n; i++)
    n += list->items[i].n;
  return n;
}

/*
 * The same blocks as one range that is moved in chunks of any size: a walk over [from, from + n) of it comes by the
 * stretches that lie in one item.
 */
struct comm_stretch {
  const struct lade_collective *item;
  uint64_t at;   /* first element, in the item's block */
  uint64_t n;
  uint64_t from; /* where it stands in what is walked over */
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
