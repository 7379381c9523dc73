/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits on MPI that sleep, detect failures and time out.
 *
 * A wait tests, yields the processor a few times, then sleeps for growing intervals (up to WAIT_MAX_NS). If ranks
 * outnumber cores, a spinner would take processor time from the rank that it waits for. Every COMM_LOOK_MS it checks if
 * a peer's process has ended, through a pidfd each. A pidfd also reports a dead process that is not yet reaped. On
 * kernels without pidfd_open the check is by process number. Processes on other nodes cannot be checked: their launcher
 * ends the job.
 *
 * Two ranks are on one node if they have the same machine (base/system/host_id.c) and the same namespace of process
 * numbers. Checks of a process need both. Whether they can share memory is tried (comm_segment.c).
 *
 * Rejected: MPI's blocking calls. They spin and cannot be interrupted. With a library that allows one thread at a time,
 * two communicators would block each other for ever.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/host_id.h"
#include "parallel/comm/comm_group_internal.h"
#include "parallel/comm/comm_node_internal.h"

#define YIELDS 64 /* before the first sleep: most peers arrive at once */
#define WAIT_FIRST_NS 10000 /* of the first sleep; doubled up to WAIT_MAX_NS */
#define WAIT_MAX_NS 200000
#define LINGER_MS (4 * COMM_LOOK_MS)

static void serial_lock(struct comm_job *job)
{
  if (job->is_serial)
    pthread_mutex_lock(&job->mpi_mutex);
}

static void serial_unlock(struct comm_job *job)
{
  if (job->is_serial)
    pthread_mutex_unlock(&job->mpi_mutex);
}

/* ---- nodes and processes ---- */

/*
 * Return a key of the machine and of the namespace of process numbers. In another namespace of the same machine, the
 * numbers in /proc mean other processes.
 */
static uint64_t node_key(void)
{
  struct stat space = {0};
  if (stat("/proc/self/ns/pid", &space))
    space.st_ino = 0;
  return lade_host_id() * 0x9e3779b97f4a7c15 ^ (uint64_t)space.st_ino;
}

/* Return a descriptor that reports the end of @pid, or -1 if the kernel has none. */
static int process_watch(pid_t pid)
{
  return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* ---- waiting ---- */

/* State between two tests of a wait. */
struct pause {
  struct comm_patience patience;
  int n_yields;
  long sleep_ns;
};

static void pause_take(struct pause *pause)
{
  if (pause->n_yields < YIELDS) {
    pause->n_yields++;
    sched_yield();
    return;
  }
  nanosleep(&(struct timespec){.tv_nsec = pause->sleep_ns}, NULL);
  pause->sleep_ns = LADE_MIN(2 * pause->sleep_ns, WAIT_MAX_NS);
}

/* Return an error if a member that the transfer needs has died or is stopped. @ret_is_busy: one of them is busy. */
static int members_look(const struct comm_group *group, const struct lade_mpi_transfer *transfer, bool *ret_is_busy,
                        struct lade_error *error)
{
  const bool is_pair = transfer->kind == LADE_MPI_SEND || transfer->kind == LADE_MPI_RECV;
  *ret_is_busy = false;
  if (!group->members || !group->job->processes) /* this rank lacked memory for the table of processes */
    return 0;
  for (int member = 0; member < group->size; member++) {
    if (member == group->rank || (is_pair && member != transfer->peer))
      continue;
    if (comm_member_is_dead(group, member))
      return comm_member_report_dead(group, member, error);
    if (comm_member_is_stopped(group, member))
      return comm_member_report_stopped(group, member, error);
    *ret_is_busy |= comm_member_is_busy(group, member);
  }
  return 0;
}

/* Return an error if the wait cannot succeed. */
static int pause_look(struct pause *pause, const struct comm_group *group, const struct lade_mpi_transfer *transfer,
                      struct lade_error *error)
{
  bool is_busy = false;
  if (!comm_patience_is_due(&pause->patience))
    return 0;
  if (atomic_load(&group->is_aborted))
    return lade_error_set(error, -ECANCELED, "this rank gave up");
  int status = group->node ? comm_node_status(group->node, error) : 0;
  if (!status)
    status = members_look(group, transfer, &is_busy, error);
  if (status)
    return status;
  comm_patience_count(&pause->patience, is_busy);
  if (pause->patience.waited_ns <= group->params->timeout_ms * INT64_C(1000000))
    return 0;
  if (transfer->kind == LADE_MPI_SEND || transfer->kind == LADE_MPI_RECV)
    return comm_member_report_late(group, transfer->peer, error);
  return lade_error_set(error, -ETIMEDOUT, "the other ranks of a transfer did not come within %g s",
                        group->params->timeout_ms / 1e3);
}

static int transfer_wait(struct comm_group *group, struct lade_mpi_transfer *transfer, struct lade_error *error)
{
  struct pause pause = {.sleep_ns = WAIT_FIRST_NS};
  comm_patience_begin(&pause.patience);
  for (;;) {
    bool is_done = false;
    serial_lock(group->job);
    int status = group->job->mpi->test(transfer, &is_done, error);
    serial_unlock(group->job);
    if (status || is_done)
      return status;
    pause_take(&pause);
    status = pause_look(&pause, group, transfer, error);
    if (status)
      return status;
  }
}

int comm_group_transfer(struct comm_group *group, struct lade_mpi_transfer *transfer, struct lade_error *error)
{
  LADE_ASSERT(transfer->bytes >= 0 && transfer->bytes <= LADE_MPI_TRANSFER_MAX);
  serial_lock(group->job);
  int status = group->job->mpi->begin(group->group, transfer, error);
  serial_unlock(group->job);
  if (!status)
    status = transfer_wait(group, transfer, error);
  if (status)
    atomic_store(&group->job->has_failed, true);
  return status;
}

int comm_group_gather(struct comm_group *group, const void *src, void *dst, int bytes, struct lade_error *error)
{
  struct lade_mpi_transfer transfer = {.kind = LADE_MPI_GATHER, .src = src, .dst = dst, .bytes = bytes};
  return comm_group_transfer(group, &transfer, error);
}

int comm_group_vote(struct comm_group *group, int own, int *ret_member, struct lade_error *error)
{
  int failed = comm_group_gather(group, &own, group->outcomes, sizeof(own), error);
  *ret_member = -1;
  for (int member = 0; !failed && member < group->size && *ret_member < 0; member++)
    *ret_member = group->outcomes[member] ? member : -1;
  return failed;
}

int comm_group_agree(struct comm_group *group, bool has_memory, const char *purpose, struct lade_error *error)
{
  int lacking, failed = comm_group_vote(group, has_memory ? 0 : -ENOMEM, &lacking, error);
  if (!failed && lacking >= 0)
    failed = lade_error_set(error, -ENOMEM, "rank %d has no memory for %s", group->members[lacking], purpose);
  return failed;
}

/* ---- making and ending ---- */

static int plugin_open(const struct lade_mpi **ret_mpi, struct lade_error *error)
{
  const char *file = getenv("LADE_MPI_PLUGIN");
  /* RTLD_GLOBAL, because Open MPI's own components search libmpi's symbols there. */
  void *library = dlopen(file ? file : "liblade-mpi.so", RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    return lade_error_set(error, -ENOSYS, "several ranks need the MPI plug-in, which cannot be opened: %s; build Lade "
                          "with Open MPI (apt-get install libopenmpi-dev openmpi-bin)", dlerror());
  *ret_mpi = dlsym(library, LADE_MPI_SYMBOL);
  return *ret_mpi ? 0 : lade_error_set(error, -ENOSYS, "%s is no MPI plug-in of Lade", file ? file : "liblade-mpi.so");
}

static void job_release(struct comm_job *job)
{
  if (atomic_fetch_sub(&job->n_refs, 1) > 1)
    return;
  /* Stay until the other ranks have checked: otherwise a rank that waits for this one takes its exit for the cause. */
  if (atomic_load(&job->has_failed))
    nanosleep(&(struct timespec){.tv_nsec = LINGER_MS * 1000000l}, NULL);
  if (atomic_load(&job->is_aborted))
    job->mpi->abort(atomic_load(&job->exit_code));
  for (int rank = 0; job->processes && rank < job->world; rank++)
    if (job->processes[rank].watch >= 0)
      close(job->processes[rank].watch);
  if (job->mpi)
    job->mpi->close(!atomic_load(&job->has_failed));
  LADE_ASSERT(job->windows.n == 0);
  LADE_ARRAY_FREE(&job->windows);
  pthread_mutex_destroy(&job->mpi_mutex);
  pthread_mutex_destroy(&job->windows_mutex);
  if (atomic_load(&job->has_failed)) /* an abandoned transfer may still write into its buffers */
    return;
  free(job->processes);
  free(job);
}

void comm_group_close(struct comm_group *group)
{
  if (group->group && !atomic_load(&group->job->has_failed)) {
    serial_lock(group->job);
    group->job->mpi->release(group->group);
    serial_unlock(group->job);
  }
  if (!atomic_load(&group->job->has_failed)) /* otherwise MPI may still write into them */
    free(group->members);
  job_release(group->job);
}

/* Exchange node and process number of all ranks, and watch the processes on this node. */
static int processes_meet(struct comm_group *world, struct lade_error *error)
{
  struct comm_job *job = world->job;
  struct comm_process own = {.node = node_key(), .pid = getpid(), .watch = -1};
  int status = comm_group_gather(world, &own, job->processes, sizeof(own), error);
  for (int rank = 0; rank < job->world; rank++) {
    struct comm_process *process = &job->processes[rank];
    bool is_here = !status && process->node == own.node;
    job->n_here += is_here;
    world->is_one_node = job->n_here == job->world;
    process->watch = is_here && rank != world->rank ? process_watch(process->pid) : -1;
  }
  return status;
}

static int world_check(const struct comm_group *world, const struct lade_launch *launch, struct lade_error *error)
{
  if (!launch || (launch->rank == world->rank && launch->world == world->size))
    return 0;
  return lade_error_set(error, -EINVAL, "MPI says rank %d of %d and %s's variables rank %d of %d; start with %smpirun",
                        world->rank, world->size, lade_launcher_name(launch->launcher), launch->rank, launch->world,
                        launch->launcher == LADE_LAUNCHER_SRUN ? "srun --mpi=pmix or " : "");
}

/*
 * Return -ENOMEM at all ranks if one of them lacks memory to begin. The vote allocates nothing, so a rank without
 * memory still receives the votes of all.
 */
static int world_agree(struct comm_group *world, bool has_memory, struct lade_error *error)
{
  char own = !has_memory, *votes = world->job->first_votes;
  if (world->size > COMM_FIRST_VOTES) /* this rank's own error; the others wait until the timeout */
    return has_memory ? 0 : lade_error_set(error, -ENOMEM, "no memory for %d ranks", world->size);
  int status = comm_group_gather(world, &own, votes, sizeof(own), error);
  const char *lacking = status ? NULL : memchr(votes, 1, (size_t)world->size);
  if (lacking)
    status = lade_error_set(error, -ENOMEM, "rank %d has no memory for a job of %d ranks", (int)(lacking - votes),
                            world->size);
  return status;
}

static int world_fill(struct comm_group *world, const struct lade_comm_params *params, struct lade_error *error)
{
  struct comm_job *job = world->job;
  int status = job->mpi->open(error, &world->group, &job->is_serial);
  if (status)
    return status;
  job->mpi->members(world->group, &world->rank, &world->size);
  job->world = world->size;
  status = world_check(world, params->launch, error);
  if (status) {
    atomic_store(&job->has_failed, true); /* otherwise the others wait for this rank in MPI_Finalize */
    return status;
  }
  job->processes = lade_fault_calloc(params->faults, (size_t)world->size, sizeof(*job->processes));
  world->members = lade_fault_calloc(params->faults, 2 * (size_t)world->size, sizeof(*world->members));
  for (int rank = 0; job->processes && rank < world->size; rank++)
    job->processes[rank].watch = -1;
  for (int rank = 0; world->members && rank < world->size; rank++)
    world->members[rank] = rank;
  status = world_agree(world, job->processes && world->members, error);
  if (status) {
    if (world->size > COMM_FIRST_VOTES)
      atomic_store(&job->has_failed, true);
    return status;
  }
  world->outcomes = world->members + world->size;
  return processes_meet(world, error);
}

/* True if @job counts the processes on the node of rank @own, and watches none of other nodes and not itself. */
static bool job_is_valid(const struct comm_job *job, int own)
{
  int n_here = 0;
  for (int rank = 0; rank < job->world; rank++) {
    const struct comm_process *process = &job->processes[rank];
    const bool is_here = process->node == job->processes[own].node;
    n_here += is_here;
    if (process->watch >= 0 && (!is_here || rank == own))
      return false;
  }
  return n_here == job->n_here && atomic_load(&job->n_refs) > 0;
}

bool comm_group_is_valid(const struct comm_group *group)
{
  const struct comm_job *job = group->job;
  bool is_one_node = true;
  if (group->rank < 0 || group->rank >= group->size || group->size > job->world || !group->params ||
      group->outcomes != group->members + group->size)
    return false;
  for (int member = 0; member < group->size; member++) {
    if (group->members[member] < 0 || group->members[member] >= job->world)
      return false;
    for (int before = 0; before < member; before++) {
      if (group->members[before] == group->members[member])
        return false;
    }
  }
  const int own = group->members[group->rank];
  for (int member = 0; member < group->size; member++)
    is_one_node &= job->processes[group->members[member]].node == job->processes[own].node;
  return is_one_node == group->is_one_node && job_is_valid(job, own);
}

int comm_job_open(const struct lade_comm_params *params, struct lade_error *error, struct comm_group *ret_world)
{
  struct comm_job *job = lade_fault_calloc(params->faults, 1, sizeof(*job));
  if (!job)
    return lade_error_set(error, -ENOMEM, "no memory for a communicator");
  struct comm_group world = {.job = job, .params = params};
  pthread_mutex_init(&job->mpi_mutex, NULL);
  pthread_mutex_init(&job->windows_mutex, NULL);
  atomic_store(&job->n_refs, 1);
  atomic_store(&job->exit_code, 1);
  int status = plugin_open(&job->mpi, error);
  if (!status)
    status = world_fill(&world, params, error);
  if (status) {
    comm_group_close(&world);
    return status;
  }
  LADE_ASSERT(!LADE_CHECK_FULL || comm_group_is_valid(&world));
  *ret_world = world;
  return 0;
}

static int members_gather(struct comm_group *part, int rank_in_world, struct lade_error *error)
{
  part->job->mpi->members(part->group, &part->rank, &part->size);
  part->outcomes = part->members + part->size;
  int status = comm_group_gather(part, &rank_in_world, part->members, sizeof(rank_in_world), error);
  part->is_one_node = true;
  for (int member = 0; !status && member < part->size; member++)
    part->is_one_node &= part->job->processes[part->members[member]].node == part->job->processes[rank_in_world].node;
  return status;
}

int comm_group_split(struct comm_group *group, int colour, int key, struct lade_error *error,
                     struct comm_group *ret_part)
{
  struct comm_group part = {.job = group->job, .params = group->params};
  part.members = lade_fault_calloc(group->params->faults, 2 * (size_t)group->size, sizeof(*part.members));
  int status = comm_group_agree(group, part.members, "a group of ranks", error);
  if (status) { /* also detects an absent member before MPI's split, which cannot be interrupted */
    free(part.members);
    return status;
  }
  serial_lock(group->job);
  status = group->job->mpi->split(group->group, colour, key, error, &part.group);
  serial_unlock(group->job);
  if (status)
    atomic_store(&group->job->has_failed, true);
  atomic_fetch_add(&group->job->n_refs, 1);
  if (!status && part.group)
    status = members_gather(&part, group->members[group->rank], error);
  if (status || !part.group) {
    comm_group_close(&part);
    part.group = NULL;
  }
  LADE_ASSERT(!LADE_CHECK_FULL || !part.group || comm_group_is_valid(&part));
  if (!status)
    *ret_part = part;
  return status;
}
