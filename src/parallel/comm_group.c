/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI as something that can be waited for politely.
 *
 * A wait tests, gives up the processor a few times, then sleeps for a growing while (up to WAIT_MOST_NS): where ranks
 * outnumber cores, the time of a spinner is taken from the one it waits for. Every COMM_LOOK_MS it looks whether a
 * peer's process has ended, through a pidfd each, which also sees a process that is dead and not yet reaped; kernels
 * without pidfd_open are asked by number. Peers on other nodes cannot be seen: their launcher ends the job.
 *
 * Two ranks are on one node when their machine is one (base/node.c) and their namespace of process numbers, since that
 * is what looking at each other takes. Whether they can share memory is tried (comm_segment.c).
 *
 * Rejected: MPI's blocking calls. They spin, cannot be given up, and with a library that allows one thread at a
 * time two communicators would block each other for ever.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/node.h"
#include "parallel/comm_group_internal.h"
#include "parallel/comm_node_internal.h"

#define YIELDS 64
#define WAIT_FIRST_NS 10000
#define WAIT_MOST_NS 200000
#define LINGER_MS (4 * COMM_LOOK_MS)
#define LOOK_GAP_MOST_NS (1000 * INT64_C(1000000)) /* looks that are further apart were not kept by us */

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

/* ---- who is where ---- */

/*
 * The machine, and on it the space of process numbers: who is in another one of a machine has other numbers for what
 * we see in /proc.
 */
static uint64_t node_key(void)
{
  struct stat space = {0};
  if (stat("/proc/self/ns/pid", &space))
    space.st_ino = 0;
  return lade_node_key() * 0x9e3779b97f4a7c15 ^ (uint64_t)space.st_ino;
}

/* A descriptor that says when @pid has ended, or -1 where the kernel has none. */
static int process_watch(pid_t pid)
{
  return (int)syscall(SYS_pidfd_open, pid, 0);
}

bool comm_member_is_dead(const struct comm_group *group, int member)
{
  const struct comm_process *self = &group->job->processes[group->members[group->rank]];
  const struct comm_process *process = &group->job->processes[group->members[member]];
  if (process->node != self->node || process == self)
    return false;
  if (process->watch < 0)
    return kill(process->pid, 0) && errno == ESRCH;
  struct pollfd poll_fd = {.fd = process->watch, .events = POLLIN};
  return poll(&poll_fd, 1, 0) > 0;
}

int comm_member_tell_dead(const struct comm_group *group, int member, struct lade_error *error)
{
  int rank = group->members[member];
  return lade_error_set(error, -EPIPE, "rank %d (process %d) has ended; the other ranks cannot go on without it", rank,
                        (int)group->job->processes[rank].pid);
}

/* Is @pid stopped by a signal? A process under a debugger is not. */
static bool process_is_stopped(pid_t pid)
{
  char path[32], text[128];
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
  if (fd >= 0)
    close(fd);
  text[LADE_MAX(n, 0)] = 0;
  const char *name_end = strrchr(text, ')'); /* the state is the letter behind the program's name */
  return name_end && name_end[1] == ' ' && name_end[2] == 'T';
}

bool comm_member_is_stopped(const struct comm_group *group, int member)
{
  const struct comm_process *self = &group->job->processes[group->members[group->rank]];
  struct comm_process *process = &group->job->processes[group->members[member]];
  if (process->node != self->node || process == self)
    return false;
  const int64_t now_ns = lade_now_ns(), gap_ns = now_ns - atomic_exchange(&process->looked_ns, now_ns);
  if (!process_is_stopped(process->pid)) {
    atomic_store(&process->stopped_ns, 0);
    return false;
  }
  if (gap_ns > LOOK_GAP_MOST_NS) /* nobody looked meanwhile, perhaps because we were stopped too */
    return false;
  return atomic_fetch_add(&process->stopped_ns, gap_ns) + gap_ns >= LADE_COMM_STOPPED_MS * INT64_C(1000000);
}

bool comm_member_is_busy(const struct comm_group *group, int member)
{
  const struct comm_control *control = group->job->control;
  return control && atomic_load(&control->members[group->members[member]].n_busy) > 0;
}

int comm_member_tell_stopped(const struct comm_group *group, int member, struct lade_error *error)
{
  int rank = group->members[member];
  return lade_error_set(error, -ETIMEDOUT, "rank %d (process %d) is stopped; the other ranks cannot go on without it",
                        rank, (int)group->job->processes[rank].pid);
}

int comm_member_tell_late(const struct comm_group *group, int member, struct lade_error *error)
{
  int rank = group->members[member];
  return lade_error_set(error, -ETIMEDOUT, "rank %d (process %d) did not come within %g s; it is stuck or elsewhere",
                        rank, (int)group->job->processes[rank].pid, group->params->timeout_ms / 1e3);
}

/* ---- waiting ---- */

bool comm_patience_is_due(const struct comm_patience *patience)
{
  return lade_now_ns() - patience->look_ns >= COMM_LOOK_MS * INT64_C(1000000);
}

void comm_patience_count(struct comm_patience *patience, bool is_excused)
{
  const int64_t now_ns = lade_now_ns();
  patience->waited_ns += is_excused ? 0 : LADE_MIN(now_ns - patience->look_ns, LOOK_GAP_MOST_NS);
  patience->look_ns = now_ns;
}

/* Between two tests of a wait. */
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
  pause->sleep_ns = LADE_MIN(2 * pause->sleep_ns, WAIT_MOST_NS);
}

/* A member that the transfer needs and that has died or is stopped; is one of them busy? */
static int members_look(const struct comm_group *group, const struct lade_mpi_transfer *transfer, bool *ret_is_busy,
                        struct lade_error *error)
{
  const bool is_pair = transfer->kind == LADE_MPI_SEND || transfer->kind == LADE_MPI_RECV;
  *ret_is_busy = false;
  if (!group->members || !group->job->processes) /* this rank lacks the memory to know them by */
    return 0;
  for (int member = 0; member < group->size; member++) {
    if (member == group->rank || (is_pair && member != transfer->peer))
      continue;
    if (comm_member_is_dead(group, member))
      return comm_member_tell_dead(group, member, error);
    if (comm_member_is_stopped(group, member))
      return comm_member_tell_stopped(group, member, error);
    *ret_is_busy |= comm_member_is_busy(group, member);
  }
  return 0;
}

/* Is there a reason to wait no longer? */
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
    return comm_member_tell_late(group, transfer->peer, error);
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
  LADE_ASSERT(transfer->bytes >= 0 && transfer->bytes <= LADE_MPI_TRANSFER_MOST);
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

int comm_group_agree(struct comm_group *group, bool has_memory, const char *what, struct lade_error *error)
{
  int lacking, failed = comm_group_vote(group, has_memory ? 0 : -ENOMEM, &lacking, error);
  if (!failed && lacking >= 0)
    failed = lade_error_set(error, -ENOMEM, "rank %d has no memory for %s", group->members[lacking], what);
  return failed;
}

/* ---- making and ending ---- */

static int plugin_open(const struct lade_mpi **ret_mpi, struct lade_error *error)
{
  const char *file = getenv("LADE_MPI_PLUGIN");
  /* Global, because Open MPI's own components look for libmpi's symbols there. */
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
  /* Who waits for us would take our end for the cause; until the others have looked, we stay. */
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
  if (atomic_load(&job->has_failed)) /* a transfer that was given up may still write into what it was given */
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
  if (!atomic_load(&group->job->has_failed)) /* else MPI may still write into them */
    free(group->members);
  job_release(group->job);
}

/* Tell each other where we run, and watch whom we can. */
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

/* Has every rank the memory to begin? A vote that takes none more: who lacks it still hears from all, and all of it. */
static int world_agree(struct comm_group *world, bool has_memory, struct lade_error *error)
{
  char own = !has_memory, *votes = world->job->first_votes;
  if (world->size > COMM_FIRST_VOTES) /* its own error; the others wait out their patience */
    return has_memory ? 0 : lade_error_set(error, -ENOMEM, "no memory for %d ranks", world->size);
  int status = comm_group_gather(world, &own, votes, sizeof(own), error);
  const char *lacking = status ? NULL : memchr(votes, true, (size_t)world->size);
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
    atomic_store(&job->has_failed, true); /* the others would wait for us in MPI_Finalize */
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
  if (status) { /* who has not come is known now, too: MPI's split could not be given up */
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
  if (!status)
    *ret_part = part;
  return status;
}
