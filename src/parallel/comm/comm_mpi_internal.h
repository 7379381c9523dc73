/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interface between the core and the MPI plug-in (liblade-mpi.so, comm_mpi_plugin.c), which alone refers to libmpi.
 * Private to src/parallel/.
 *
 * The plug-in is MPI without its types: groups, and transfers of bytes that are begun and tested. It never waits: the
 * waiting caller decides how to sleep and when to time out. Calls return 0 or a negative errno with a line in @error,
 * which must not be NULL.
 */
#ifndef LADE_COMM_MPI_INTERNAL_H
#define LADE_COMM_MPI_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "lade/types.h"

#define LADE_MPI_TRANSFER_MAX (1 << 30) /* bytes of one part: MPI counts in int */

enum lade_mpi_kind { LADE_MPI_GATHER, LADE_MPI_EXCHANGE, LADE_MPI_BROADCAST, LADE_MPI_SEND, LADE_MPI_RECV };

/* Bytes from or to each member (gather: all_gather; exchange: all_to_all). Sends are synchronous. */
struct lade_mpi_transfer {
  enum lade_mpi_kind kind;
  const void *src;
  void *dst;
  int bytes, peer;
  void *request[1];   /* used by the plug-in */
  int received_bytes; /* of a receive, once done; -EPROTO if more bytes arrived than expected */
};

struct lade_mpi {
  /*
   * Start MPI unless the program has started it, and return the group of all ranks. ret_is_serial: MPI calls must not
   * run concurrently. -ENOTSUP if MPI supports no threads at all.
   */
  int (*open)(struct lade_error *error, void **ret_group, bool *ret_is_serial);
  /* End MPI if open started it. @is_clean: all ranks end it; otherwise the process is about to exit. */
  void (*close)(bool is_clean);
  void (*members)(void *group, int *ret_rank, int *ret_size);
  int (*split)(void *group, int colour, int key, struct lade_error *error, void **ret_group); /* blocks */
  void (*release)(void *group);
  int (*begin)(void *group, struct lade_mpi_transfer *transfer, struct lade_error *error);
  int (*test)(struct lade_mpi_transfer *transfer, bool *ret_is_done, struct lade_error *error);
  void (*abort)(int code); /* end the job; does not return */
};

#define LADE_MPI_SYMBOL "lade_mpi"

#endif
