/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI for comm_mpi.c, in a separate shared object, so that the library loads without libmpi.
 *
 * Groups are communicators whose errors are returned and do not end the job. Every waiting operation is MPI's
 * non-blocking form and a test; sends are synchronous (MPI_Issend). Counts are bytes. Only creating a group blocks: MPI
 * has no other portable way.
 */
#include <errno.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "parallel/comm/comm_mpi_internal.h"

#define EXPORT __attribute__((visibility("default")))

extern EXPORT const struct lade_mpi lade_mpi;

/* A group is the MPI communicator itself, in the space of a pointer, so creating one allocates nothing here. */
union mpi_group {
  MPI_Comm comm;
  void *group;
};

_Static_assert(sizeof(union mpi_group) == sizeof(void *), "a communicator fits a group's pointer");
_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request fits the transfer's slot");

static bool is_ours; /* open has started MPI */
static atomic_int n_open;

static int error_fill(struct lade_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Fill @error as the core's lade_error_set does. The plug-in uses no symbol of the core, which may be linked anywhere.
 */
static int error_fill(struct lade_error *error, int code, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  error->code = code;
  vsnprintf(error->text, sizeof(error->text), format, args);
  va_end(args);
  return code;
}

static int failure_report(struct lade_error *error, const char *call, int code)
{
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0, class = MPI_ERR_OTHER;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &class);
  int status = class == MPI_ERR_TRUNCATE ? -EPROTO : class == MPI_ERR_NO_MEM ? -ENOMEM : -EIO;
  return error_fill(error, status, "%s: MPI says: %.*s", call, length, text);
}

static MPI_Comm comm_of(void *group)
{
  return ((union mpi_group){.group = group}).comm;
}

static void *group_wrap(MPI_Comm comm)
{
  union mpi_group own = {.group = NULL};
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  own.comm = comm;
  return own.group;
}

static int plugin_open(struct lade_error *error, void **ret_group, bool *ret_is_serial)
{
  int is_running = 0, is_over = 0, level = 0;
  MPI_Comm comm;
  atomic_fetch_add(&n_open, 1); /* the caller calls close, also if this fails */
  MPI_Finalized(&is_over);
  if (is_over)
    return error_fill(error, -ENOTSUP, "MPI has ended in this process and cannot start again");
  MPI_Initialized(&is_running);
  int code = is_running ? MPI_Query_thread(&level) : MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  if (code != MPI_SUCCESS)
    return error_fill(error, -EIO, "MPI did not start; is this process started by mpirun?");
  is_ours |= !is_running;
  if (level < MPI_THREAD_SERIALIZED)
    return error_fill(error, -ENOTSUP, "MPI was started for one thread; start it with MPI_THREAD_MULTIPLE");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  code = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  if (code != MPI_SUCCESS)
    return failure_report(error, "the group of all ranks", code);
  *ret_is_serial = level < MPI_THREAD_MULTIPLE;
  *ret_group = group_wrap(comm);
  return 0;
}

static void plugin_close(bool is_clean)
{
  int is_over = 0;
  bool is_last = atomic_fetch_sub(&n_open, 1) == 1;
  MPI_Finalized(&is_over);
  if (is_last && is_ours && is_clean && !is_over)
    MPI_Finalize();
}

static void group_members(void *group, int *ret_rank, int *ret_size)
{
  MPI_Comm_rank(comm_of(group), ret_rank);
  MPI_Comm_size(comm_of(group), ret_size);
}

static int group_split(void *group, int colour, int key, struct lade_error *error, void **ret_group)
{
  MPI_Comm comm;
  int code = MPI_Comm_split(comm_of(group), colour < 0 ? MPI_UNDEFINED : colour, key, &comm);
  if (code != MPI_SUCCESS)
    return failure_report(error, "split", code);
  *ret_group = comm == MPI_COMM_NULL ? NULL : group_wrap(comm);
  return 0;
}

static void group_release(void *group)
{
  MPI_Comm comm = comm_of(group);
  MPI_Comm_free(&comm);
}

static int transfer_begin(void *group, struct lade_mpi_transfer *t, struct lade_error *error)
{
  MPI_Comm comm = comm_of(group);
  MPI_Request *request = (MPI_Request *)t->request;
  int code = MPI_SUCCESS;
  switch (t->kind) {
  case LADE_MPI_GATHER:
    code = MPI_Iallgather(t->src, t->bytes, MPI_BYTE, t->dst, t->bytes, MPI_BYTE, comm, request);
    break;
  case LADE_MPI_EXCHANGE:
    code = MPI_Ialltoall(t->src, t->bytes, MPI_BYTE, t->dst, t->bytes, MPI_BYTE, comm, request);
    break;
  case LADE_MPI_BROADCAST: code = MPI_Ibcast(t->dst, t->bytes, MPI_BYTE, t->peer, comm, request); break;
  case LADE_MPI_SEND: code = MPI_Issend(t->src, t->bytes, MPI_BYTE, t->peer, 0, comm, request); break;
  case LADE_MPI_RECV: code = MPI_Irecv(t->dst, t->bytes, MPI_BYTE, t->peer, 0, comm, request); break;
  }
  return code == MPI_SUCCESS ? 0 : failure_report(error, "a transfer", code);
}

static int transfer_test(struct lade_mpi_transfer *t, bool *ret_is_done, struct lade_error *error)
{
  int is_done = 0;
  MPI_Status status;
  int code = MPI_Test((MPI_Request *)t->request, &is_done, &status);
  if (code != MPI_SUCCESS)
    return failure_report(error, "a transfer", code);
  if (is_done && t->kind == LADE_MPI_RECV)
    MPI_Get_count(&status, MPI_BYTE, &t->received_bytes);
  *ret_is_done = is_done;
  return 0;
}

static void job_abort(int code)
{
  MPI_Abort(MPI_COMM_WORLD, code);
}

const struct lade_mpi lade_mpi = {
    .open = plugin_open,
    .close = plugin_close,
    .members = group_members,
    .split = group_split,
    .release = group_release,
    .begin = transfer_begin,
    .test = transfer_test,
    .abort = job_abort,
};
