/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memfd of the launcher, which its ranks open through /proc: it belongs to no file system, and nothing of it stays,
 * however the job ends. mpirun starts ranks in processes of its own and passes no descriptors on, but the environment.
 *
 * Each field has one writer. A rank's words are written before has_left; the launcher reads when all have ended.
 *
 * Which checkpoints in --save are the job's the board must know: others may be there, newer ones too, and --keep may
 * have removed the one before as soon as a save was published, which the job need not have lived to see. So it holds
 * the last save that was begun, too, and what that one was to replace: if another directory has its name now, it is
 * whole.
 */
#include "tools/board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "run/checkpoint.h"

#define BOARD_VARIABLE "LADE_LAUNCH_BOARD"
#define MEET_PAUSE_NS 5000000

static size_t board_bytes(int n_ranks)
{
  return sizeof(struct board) + (size_t)n_ranks * sizeof(struct board_rank);
}

/* Boards of other shapes are not ours. */
static uint64_t board_version(void)
{
  const uint64_t shape = (uint64_t)sizeof(struct board) << 32 ^ (uint64_t)sizeof(struct board_rank) << 16;
  return UINT64_C(0x6c616465626f0001) ^ shape;
}

int board_create(int n_ranks, struct board **ret_board)
{
  char place[64];
  const size_t bytes = board_bytes(n_ranks);
  int fd = memfd_create("lade-board", MFD_CLOEXEC), status = 0;
  if (fd < 0)
    return -errno;
  void *memory = MAP_FAILED;
  if (ftruncate(fd, (off_t)bytes) == 0)
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  snprintf(place, sizeof(place), "/proc/%d/fd/%d", (int)getpid(), fd);
  if (memory == MAP_FAILED || setenv(BOARD_VARIABLE, place, 1))
    status = -ENOMEM;
  if (status) {
    close(fd);
    return status;
  }
  struct board *board = memory; /* the descriptor stays open: it is the board's name */
  board->version = board_version();
  board->n_ranks = n_ranks;
  atomic_store(&board->saving_step, -1);
  atomic_store(&board->saved_step, -1);
  *ret_board = board;
  return 0;
}

void board_destroy(struct board *board)
{
  if (board)
    munmap(board, board_bytes(board->n_ranks));
}

void board_clear(struct board *board, int n_ranks)
{
  LADE_ASSERT(n_ranks <= board->n_ranks);
  board->n_ranks = n_ranks;
  memset(board->ranks, 0, (size_t)n_ranks * sizeof(*board->ranks));
  atomic_store(&board->first_step, -1);
}

/* What has the name of @step's checkpoint in --save. */
static struct board_checkpoint checkpoint_look(const struct board *board, int64_t step)
{
  char path[PATH_MAX];
  struct stat at;
  if (!*board->places[BOARD_SAVE] || lade_checkpoint_path(board->places[BOARD_SAVE], step, path, NULL) ||
      stat(path, &at))
    return (struct board_checkpoint){0};
  return (struct board_checkpoint){at.st_dev, at.st_ino};
}

/* Was the save that was begun last published, whether or not somebody lived to see it? */
static bool saving_is_whole(const struct board *board)
{
  const int64_t step = atomic_load(&board->saving_step);
  const struct board_checkpoint *before = &board->replaced;
  const struct board_checkpoint now = step < 0 ? *before : checkpoint_look(board, step);
  return now.node && (now.device != before->device || now.node != before->node);
}

void board_save_begin(struct board *board, int64_t step)
{
  if (saving_is_whole(board))
    atomic_store(&board->saved_step, atomic_load(&board->saving_step));
  atomic_store(&board->saving_step, -1);
  board->replaced = checkpoint_look(board, step);
  atomic_store(&board->saving_step, step);
}

void board_save_end(struct board *board, int64_t step, int64_t taken_ns)
{
  atomic_store(&board->saved_ns, taken_ns);
  atomic_store(&board->saved_step, step);
}

int64_t board_find_save(const struct board *board)
{
  return atomic_load(saving_is_whole(board) ? &board->saving_step : &board->saved_step);
}

struct board *board_find(int rank, int n_ranks)
{
  const char *place = getenv(BOARD_VARIABLE);
  const size_t bytes = board_bytes(n_ranks);
  struct stat file;
  int fd = place ? open(place, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0)
    return NULL;
  bool is_large = fstat(fd, &file) == 0 && (uint64_t)file.st_size >= bytes;
  void *memory = is_large ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  if (memory == MAP_FAILED)
    return NULL;
  struct board *board = memory;
  if (board->version != board_version() || board->n_ranks != n_ranks) {
    munmap(memory, bytes);
    return NULL;
  }
  atomic_store(&board->ranks[rank].pid, getpid());
  return board;
}

int board_meet(const struct board *board, double timeout_s, struct lade_error *error)
{
  const int64_t begin_ns = lade_now_ns();
  for (int rank = 0; rank < board->n_ranks;) {
    const pid_t pid = atomic_load(&board->ranks[rank].pid);
    if (atomic_load(&board->ranks[rank].has_left))
      return lade_error_set(error, -ECANCELED, "rank %d has left before it had met the others", rank);
    if (pid && kill(pid, 0) && errno == ESRCH)
      return lade_error_set(error, -EPIPE, "rank %d (process %d) has ended before it had met the others", rank,
                            (int)pid);
    rank += pid != 0;
    if (pid)
      continue;
    if ((double)(lade_now_ns() - begin_ns) > timeout_s * 1e9)
      return lade_error_set(error, -ETIMEDOUT, "rank %d has not begun within %g s; the other ranks cannot go on "
                            "without it", rank, timeout_s);
    nanosleep(&(struct timespec){.tv_nsec = MEET_PAUSE_NS}, NULL);
  }
  return 0;
}

void board_await_first(const struct board *board, int64_t most_ns)
{
  const int64_t end_ns = lade_now_ns() + most_ns;
  while (!atomic_load(&board->ranks[0].has_left) && lade_now_ns() < end_ns)
    nanosleep(&(struct timespec){.tv_nsec = MEET_PAUSE_NS}, NULL);
}

void board_leave(struct board *board, int rank, int code, const char *text)
{
  struct board_rank *own = &board->ranks[rank];
  own->left_ns = lade_now_ns();
  own->error.code = code;
  snprintf(own->error.text, sizeof(own->error.text), "%s", text ? text : "");
  atomic_store(&own->has_left, 1);
}

int board_signal(const struct board *board, int signal_number)
{
  int n = 0;
  for (int rank = 0; rank < board->n_ranks; rank++) {
    const struct board_rank *other = &board->ranks[rank];
    const pid_t pid = atomic_load(&other->pid);
    n += pid > 0 && !atomic_load(&other->has_left) && kill(pid, signal_number) == 0;
  }
  return n;
}

/* How little a rank's words say about what happened. */
static int hearsay(const struct lade_error *words)
{
  return words->code == -ECANCELED ? 2 : words->code == -EPIPE || words->code == -ETIMEDOUT ? 1 : 0;
}

void board_judge(const struct board *board, struct board_verdict *ret_verdict)
{
  struct board_verdict verdict = {.first_lost = -1};
  const struct board_rank *best = NULL;
  for (int rank = 0; rank < board->n_ranks; rank++) {
    const struct board_rank *other = &board->ranks[rank];
    verdict.n_begun += atomic_load(&other->pid) != 0;
    if (!atomic_load(&other->has_left)) {
      verdict.n_lost += !other->signal_number;
      verdict.first_lost = verdict.first_lost < 0 && !other->signal_number ? rank : verdict.first_lost;
      continue;
    }
    verdict.n_well += !other->error.code;
    if (!other->error.code)
      continue;
    const int rest = best ? hearsay(&best->error) - hearsay(&other->error) : 1;
    if (rest > 0 || (rest == 0 && other->left_ns < best->left_ns))
      best = other;
  }
  if (best) {
    verdict.error = best->error;
    verdict.is_own = hearsay(&best->error) == 0;
  }
  *ret_verdict = verdict;
}
