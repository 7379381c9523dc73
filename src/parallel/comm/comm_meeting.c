/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of a group: detection of ended processes, and the meetings and failure of the members of one node.
 *
 * A member of this node is checked through a pidfd, which also reports a process that is dead and not yet reaped. On
 * kernels without pidfd_open it is checked by process number. If two checks are more than a second apart, this process
 * was stopped between them. So the time between them counts as at most a second of waiting.
 *
 * A meeting ends when every member has arrived. Arriving members count up one word. The last one resets it, raises
 * n_met and wakes the sleepers on that word. If ranks outnumber cores, waiters sleep at once; else a short spin saves
 * the sleep. A sleeper wakes every COMM_LOOK_MS to check that the missing members still run.
 *
 * Failure is one word, set once by the first member that detects it, so all members report the same cause. A member
 * that arrives and then dies does not fail that meeting: the meeting can end, and the next one fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "parallel/comm/comm_group_internal.h"
#include "parallel/comm/comm_node_internal.h"

#define LOOK_GAP_MAX_NS (1000 * INT64_C(1000000)) /* a longer interval between checks means that this process did
                                                     not run */

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

int comm_member_report_dead(const struct comm_group *group, int member, struct lade_error *error)
{
  int rank = group->members[member];
  return lade_error_set(error, -EPIPE, "rank %d (process %d) has ended; the other ranks cannot go on without it", rank,
                        (int)group->job->processes[rank].pid);
}

/* True if @pid is stopped by a signal. A process stopped by a debugger does not count. */
static bool process_is_stopped(pid_t pid)
{
  char path[32], text[128];
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
  if (fd >= 0)
    close(fd);
  text[LADE_MAX(n, 0)] = 0;
  const char *name_end = strrchr(text, ')'); /* the state is the letter after the program's name */
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
  if (gap_ns > LOOK_GAP_MAX_NS) /* no check was made meanwhile, perhaps because this process was stopped too */
    return false;
  return atomic_fetch_add(&process->stopped_ns, gap_ns) + gap_ns >= LADE_COMM_STOPPED_MS * INT64_C(1000000);
}

bool comm_member_is_busy(const struct comm_group *group, int member)
{
  const struct comm_control *control = group->job->control;
  return control && atomic_load(&control->members[group->members[member]].n_busy) > 0;
}

int comm_member_report_stopped(const struct comm_group *group, int member, struct lade_error *error)
{
  int rank = group->members[member];
  return lade_error_set(error, -ETIMEDOUT, "rank %d (process %d) is stopped; the other ranks cannot go on without it",
                        rank, (int)group->job->processes[rank].pid);
}

int comm_member_report_late(const struct comm_group *group, int member, struct lade_error *error)
{
  int rank = group->members[member];
  return lade_error_set(error, -ETIMEDOUT, "rank %d (process %d) did not come within %g s; it is stuck or elsewhere",
                        rank, (int)group->job->processes[rank].pid, group->params->timeout_ms / 1e3);
}

bool comm_patience_is_due(const struct comm_patience *patience)
{
  return lade_now_ns() - patience->look_ns >= COMM_LOOK_MS * INT64_C(1000000);
}

void comm_patience_count(struct comm_patience *patience, bool is_excused)
{
  const int64_t now_ns = lade_now_ns();
  patience->waited_ns += is_excused ? 0 : LADE_MIN(now_ns - patience->look_ns, LOOK_GAP_MAX_NS);
  patience->look_ns = now_ns;
}

/* ---- meetings ---- */

/* The failure word: the cause in bits 24 to 30, the member plus 1 in the lower bits. */
enum {
  FAILED_DEAD = 1 << 24,
  FAILED_ABORT = 2 << 24,
  FAILED_LATE = 3 << 24,
  FAILED_STOPPED = 4 << 24,
  FAILED_MASK = 0x7f << 24
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
  const struct timespec max = {.tv_nsec = COMM_LOOK_MS * 1000000l};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &max, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void failure_set(struct comm_node *node, uint32_t kind, int member)
{
  uint32_t none = 0;
  atomic_compare_exchange_strong(&node->control->failure, &none, kind | (uint32_t)(member + 1));
  atomic_store(&node->group->job->has_failed, true);
  futex_wake(&node->control->n_met);
}

int comm_node_status(struct comm_node *node, struct lade_error *error)
{
  uint32_t failure = atomic_load(&node->control->failure);
  if (!failure)
    return 0;
  atomic_store(&node->group->job->has_failed, true);
  int member = (int)(failure & ~(uint32_t)FAILED_MASK) - 1, rank = node->group->members[member];
  switch (failure & FAILED_MASK) {
  case FAILED_DEAD: return comm_member_report_dead(node->group, member, error);
  case FAILED_ABORT:
    return lade_error_set(error, -ECANCELED, "rank %d gave up: %.*s", rank, COMM_WORDS_BYTES,
                          node->control->members[member].words);
  case FAILED_STOPPED: return comm_member_report_stopped(node->group, member, error);
  default: return comm_member_report_late(node->group, member, error);
  }
}

static bool is_over(struct comm_node *node, uint32_t meeting)
{
  return (int32_t)(atomic_load_explicit(&node->control->n_met, memory_order_acquire) - meeting) >= 0;
}

/* True if @member has not arrived at @meeting. */
static bool is_missing(struct comm_node *node, uint32_t meeting, int member)
{
  return atomic_load(&node->control->members[member].n_arrived) != meeting;
}

/* Check for a missing member that is dead, stopped, or too late and not busy. */
static void missing_check(struct comm_node *node, uint32_t meeting, struct comm_patience *patience)
{
  int late = -1;
  for (int member = 0; member < node->group->size && !is_over(node, meeting); member++) {
    if (!is_missing(node, meeting, member))
      continue;
    /* It may have arrived before it died: after it is known to be dead, its n_arrived is final, so read that again. */
    if (comm_member_is_dead(node->group, member) && is_missing(node, meeting, member)) {
      failure_set(node, FAILED_DEAD, member);
      return;
    }
    if (comm_member_is_stopped(node->group, member)) {
      failure_set(node, FAILED_STOPPED, member);
      return;
    }
    late = late < 0 && !comm_member_is_busy(node->group, member) ? member : late;
  }
  comm_patience_count(patience, late < 0);
  if (late >= 0 && patience->waited_ns > node->params->timeout_ms * INT64_C(1000000))
    failure_set(node, FAILED_LATE, late);
}

static int meeting_wait(struct comm_node *node, uint32_t meeting, struct lade_error *error)
{
  struct comm_control *control = node->control;
  for (int i = 0; i < node->n_spins; i++)
    if (is_over(node, meeting))
      return 0;
  struct comm_patience patience;
  int status = 0;
  comm_patience_begin(&patience);
  atomic_fetch_add(&control->n_sleepers, 1);
  while (!is_over(node, meeting) && !(status = comm_node_status(node, error))) {
    futex_wait(&control->n_met, meeting - 1);
    if (comm_patience_is_due(&patience))
      missing_check(node, meeting, &patience);
  }
  atomic_fetch_sub(&control->n_sleepers, 1);
  return status;
}

int comm_node_meet(struct comm_node *node, struct lade_error *error)
{
  struct comm_control *control = node->control;
  uint32_t meeting = ++node->n_meetings;
  bool is_last = atomic_fetch_add(&control->n_here, 1) + 1 == (uint32_t)node->group->size;
  if (is_last) {
    atomic_store(&control->n_here, 0);
    atomic_store(&control->n_met, meeting);
  }
  /* Stored last: a member that dies before this store counts as missing, and is detected. */
  atomic_store(&control->members[node->group->rank].n_arrived, meeting);
  if (!is_last)
    return meeting_wait(node, meeting, error);
  if (atomic_load(&control->n_sleepers))
    futex_wake(&control->n_met);
  return 0;
}

void comm_node_abort(struct comm_node *node, const char *words)
{
  struct comm_member *own = &node->control->members[node->group->rank];
  if (atomic_exchange(&node->has_aborted, true))
    return;
  snprintf(own->words, sizeof(own->words), "%s", words);
  failure_set(node, FAILED_ABORT, node->group->rank);
}

int comm_node_look(struct comm_node *node, struct lade_error *error)
{
  bool is_well = atomic_load(&node->control->failure) == 0;
  for (int member = 0; is_well && member < node->group->size; member++) {
    is_well = !comm_member_is_dead(node->group, member);
    if (!is_well)
      failure_set(node, FAILED_DEAD, member);
    else if (comm_member_is_stopped(node->group, member))
      failure_set(node, FAILED_STOPPED, member);
  }
  return comm_node_status(node, error);
}

void comm_node_late(struct comm_node *node, int member)
{
  failure_set(node, FAILED_LATE, member);
}
