/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/store.h: submitted requests give the bytes of blocking ones, whole or in parts. Bytes in flight stay within the
 * bound. Requests that overlap are refused, and all others run side by side. Every ticket ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "lade/store.h"
#include "tests/support/scratch.h"
#include "tests/support/store/tensor_fixture.h"

#define GRANULE 65536u
#define MIB (1u << 20)

static lade_tensor_store *store_make(uint64_t budget_bytes, uint64_t in_flight_bytes)
{
  return tensor_fixture_open((struct lade_tensor_store_params){.dirs = scratch, .budget_bytes = budget_bytes,
                                                               .in_flight_bytes = in_flight_bytes,
                                                               .allow_tmpfs = true, .allow_buffered = true});
}

static struct lade_tensor_request part(enum lade_tensor_op op, const char *name, void *data, uint64_t offset,
                                       uint64_t bytes, uint64_t tensor_bytes)
{
  return (struct lade_tensor_request){.struct_size = sizeof(struct lade_tensor_request), .op = op, .name = name,
                                      .data = data, .bytes = bytes, .offset = offset, .tensor_bytes = tensor_bytes};
}

static lade_tensor_ticket *begin(lade_tensor_store *store, struct lade_tensor_request request)
{
  struct lade_error error = {0};
  lade_tensor_ticket *ticket = NULL;
  if (lade_tensor_store_submit(store, &request, &error, &ticket))
    fail_msg("%s", error.text);
  return ticket;
}

static void end(lade_tensor_store *store, lade_tensor_ticket *ticket)
{
  struct lade_error error = {0};
  if (lade_tensor_store_wait(store, ticket, &error))
    fail_msg("%s", error.text);
}

static void refused(lade_tensor_store *store, int code, struct lade_tensor_request request, const char *word)
{
  struct lade_error error = {0};
  lade_tensor_ticket *ticket = NULL;
  assert_int_equal(lade_tensor_store_submit(store, &request, &error, &ticket), code);
  assert_null(ticket);
  if (!strstr(error.text, word))
    fail_msg("does not say '%s': %s", word, error.text);
}

static void submitted_tensors_are_got(void **state)
{
  enum { N = 24 };
  lade_tensor_store *store = store_make(N * 2 * MIB, 0);
  unsigned char *data[N], *back[N];
  lade_tensor_ticket *tickets[N];
  char names[N][8];
  for (int i = 0; i < N; i++) {
    const uint64_t bytes = 1000000u + 31u * (unsigned)i;
    data[i] = malloc(bytes);
    back[i] = malloc(bytes);
    assert_true(data[i] && back[i]);
    tensor_fixture_fill(data[i], bytes, (uint64_t)i);
    snprintf(names[i], sizeof(names[i]), "t%d", i);
    tickets[i] = begin(store, part(LADE_TENSOR_PUT, names[i], data[i], 0, bytes, 0));
  }
  for (int i = N - 1; i >= 0; i--) {
    end(store, tickets[i]);
    tickets[i] = begin(store, part(LADE_TENSOR_GET, names[i], back[i], 0, 1000000u + 31u * (unsigned)i, 0));
  }
  for (int i = 0; i < N; i++) {
    while (lade_tensor_store_is_done(store, tickets[i]) == 0)
      usleep(100);
    assert_int_equal(lade_tensor_store_is_done(store, tickets[i]), 1);
    end(store, tickets[i]);
    assert_memory_equal(data[i], back[i], 1000000u + 31u * (unsigned)i);
    free(data[i]);
    free(back[i]);
  }
  lade_tensor_store_close(store);
}

/* Parts are put and got in any cut, in place of bytes of an earlier whole put, with other requests side by side. */
static void parts_are_of_their_tensor(void **state)
{
  const uint64_t bytes = 10 * GRANULE + 777;
  static unsigned char data[11 * GRANULE], back[11 * GRANULE];
  lade_tensor_store *store = store_make(4 * MIB, 0);
  lade_tensor_ticket *tickets[3];
  struct lade_error error;
  tensor_fixture_fill(data, bytes, 1);
  end(store, begin(store, part(LADE_TENSOR_PUT, "whole", data, 0, bytes, 0)));
  tensor_fixture_fill(data + 2 * GRANULE, 3 * GRANULE, 2);
  tensor_fixture_fill(data + 9 * GRANULE, bytes - 9 * GRANULE, 3);
  tickets[0] = begin(store, part(LADE_TENSOR_PUT, "whole", data + 2 * GRANULE, 2 * GRANULE, 3 * GRANULE, bytes));
  tickets[1] = begin(store, part(LADE_TENSOR_PUT, "whole", data + 9 * GRANULE, 9 * GRANULE, bytes - 9 * GRANULE,
                                 bytes));
  tickets[2] = begin(store, part(LADE_TENSOR_GET, "whole", back, 0, 2 * GRANULE, bytes));
  for (int i = 0; i < 3; i++)
    end(store, tickets[i]);
  assert_memory_equal(back, data, 2 * GRANULE);
  assert_int_equal(lade_tensor_store_get(store, "whole", back, bytes, &error), 0);
  assert_memory_equal(back, data, bytes);
  end(store, begin(store, part(LADE_TENSOR_GET, "whole", back, 9 * GRANULE, bytes - 9 * GRANULE, bytes)));
  assert_memory_equal(back, data + 9 * GRANULE, bytes - 9 * GRANULE);
  /* A tensor that is created by parts: those that were never put are found. */
  end(store, begin(store, part(LADE_TENSOR_PUT, "made", data, GRANULE, GRANULE, 3 * GRANULE)));
  end(store, begin(store, part(LADE_TENSOR_GET, "made", back, GRANULE, GRANULE, 3 * GRANULE)));
  assert_memory_equal(back, data, GRANULE);
  assert_int_equal(lade_tensor_store_get(store, "made", back, 3 * GRANULE, &error), -EBADMSG);
  assert_non_null(strstr(error.text, "'made'"));
  lade_tensor_store_close(store);
}

static void wrong_requests_change_nothing(void **state)
{
  static unsigned char data[4 * GRANULE];
  lade_tensor_store *store = store_make(8 * GRANULE, 0);
  struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
  struct lade_error error;
  assert_int_equal(lade_tensor_store_put(store, "a", data, 4 * GRANULE, &error), 0);
  refused(store, -EINVAL, part((enum lade_tensor_op)2, "a", data, 0, 4, 0), "no operation");
  refused(store, -EINVAL, part(LADE_TENSOR_PUT, "", data, 0, 4, 0), "name");
  refused(store, -EINVAL, part(LADE_TENSOR_PUT, "a", NULL, 0, 4, 0), "memory");
  refused(store, -EINVAL, part(LADE_TENSOR_PUT, "a", data, 0, 0, 0), "bytes");
  refused(store, -EINVAL, part(LADE_TENSOR_PUT, "a", data, 4096, GRANULE, 4 * GRANULE), "multiples");
  refused(store, -EINVAL, part(LADE_TENSOR_PUT, "a", data, 0, GRANULE + 1, 4 * GRANULE), "multiples");
  refused(store, -EINVAL, part(LADE_TENSOR_PUT, "a", data, 3 * GRANULE, 2 * GRANULE, 4 * GRANULE), "not within");
  refused(store, -EINVAL, part(LADE_TENSOR_PUT, "a", data, UINT64_MAX & ~0xffffull, 2 * GRANULE, UINT64_MAX), "within");
  refused(store, -EINVAL, part(LADE_TENSOR_PUT, "a", data, 0, GRANULE, 5 * GRANULE), "asked for");
  refused(store, -EINVAL, part(LADE_TENSOR_GET, "a", data, 0, GRANULE, 3 * GRANULE), "asked for");
  refused(store, -ENOENT, part(LADE_TENSOR_GET, "b", data, 0, GRANULE, 3 * GRANULE), "'b'");
  refused(store, -EOVERFLOW, part(LADE_TENSOR_PUT, "b", data, 0, GRANULE, 5 * GRANULE), "are free");
  assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
  assert_int_equal(info.n_tensors, 1);
  assert_int_equal(info.used_bytes, 4 * GRANULE);
  assert_int_equal(info.in_flight_bytes, 0);
  assert_int_equal(lade_tensor_store_publish(store, &error), -EINVAL);
  assert_int_equal(lade_tensor_store_is_done(store, NULL), -EINVAL);
  assert_int_equal(lade_tensor_store_wait(store, NULL, &error), -EINVAL);
  lade_tensor_store_close(store);
}

/*
 * Many requests are queued behind large ones, so a second one finds the first in flight. Overlap with a put is refused;
 * gets of one tensor run together.
 */
static void overlaps_are_refused(void **state)
{
  const uint64_t bytes = 24 * MIB;
  unsigned char *data = malloc(bytes), *back = malloc(bytes);
  lade_tensor_store *store = store_make(5 * bytes, 8 * bytes);
  lade_tensor_ticket *tickets[6];
  char name[8];
  assert_true(data && back);
  tensor_fixture_fill(data, bytes, 5);
  for (int i = 0; i < 4; i++) { /* these keep all threads of the store at work */
    snprintf(name, sizeof(name), "big%d", i);
    tickets[i] = begin(store, part(LADE_TENSOR_PUT, name, data, 0, bytes, 0));
  }
  tickets[4] = begin(store, part(LADE_TENSOR_PUT, "t", data, GRANULE, GRANULE, 4 * GRANULE));
  refused(store, -EBUSY, part(LADE_TENSOR_GET, "t", back, 0, 2 * GRANULE, 4 * GRANULE), "'t'");
  refused(store, -EBUSY, part(LADE_TENSOR_PUT, "t", data, 0, 4 * GRANULE, 0), "'t'");
  assert_int_equal(lade_tensor_store_drop(store, "t"), -EBUSY);
  tickets[5] = begin(store, part(LADE_TENSOR_PUT, "t", data, 2 * GRANULE, 2 * GRANULE, 4 * GRANULE));
  for (int i = 0; i < 6; i++)
    end(store, tickets[i]);
  tickets[0] = begin(store, part(LADE_TENSOR_GET, "big0", data, 0, bytes, 0));
  tickets[1] = begin(store, part(LADE_TENSOR_GET, "big0", back, 0, bytes, 0));
  end(store, tickets[0]);
  end(store, tickets[1]);
  assert_memory_equal(data, back, bytes);
  free(data);
  free(back);
  lade_tensor_store_close(store);
}

static void bytes_in_flight_are_bounded(void **state)
{
  enum { N = 40 };
  const uint64_t bytes = MIB, limit = 3 * MIB;
  static unsigned char data[4 * MIB];
  lade_tensor_store *store = store_make(N * bytes + 8 * MIB, limit);
  struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
  lade_tensor_ticket *tickets[N];
  char names[N][8];
  for (int i = 0; i < N; i++) {
    snprintf(names[i], sizeof(names[i]), "t%d", i);
    tickets[i] = begin(store, part(LADE_TENSOR_PUT, names[i], data, 0, bytes, 0));
    assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
    assert_true(info.in_flight_bytes <= limit);
  }
  for (int i = 0; i < N; i++)
    end(store, tickets[i]);
  assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
  assert_int_equal(info.in_flight_bytes, 0);
  assert_true(info.in_flight_peak_bytes >= bytes && info.in_flight_peak_bytes <= limit);
  end(store, begin(store, part(LADE_TENSOR_PUT, "larger", data, 0, sizeof(data), 0))); /* alone */
  lade_tensor_store_close(store);
}

/* A store that closes with tickets finishes what has begun and frees all of them (the sanitizers look). */
static void closing_ends_all_tickets(void **state)
{
  static unsigned char data[4 * MIB];
  for (int n = 0; n < 3; n++) {
    lade_tensor_store *store = store_make(40 * MIB, 0);
    char name[8];
    for (int i = 0; i < 8; i++) {
      snprintf(name, sizeof(name), "t%d", i);
      begin(store, part(LADE_TENSOR_PUT, name, data, 0, sizeof(data), 0));
    }
    lade_tensor_store_close(store);
  }
}

struct worker {
  lade_tensor_store *store;
  unsigned char *data;
  int number, n_wrong;
};

/* Put and get parts of one tensor that this thread alone uses. */
static void *worker_run(void *arg)
{
  struct worker *worker = arg;
  const uint64_t at = (uint64_t)worker->number * 2 * GRANULE;
  unsigned char *back = malloc(2 * GRANULE);
  struct lade_error error;
  for (uint64_t i = 0; i < 30 && back; i++) {
    lade_tensor_ticket *ticket;
    tensor_fixture_fill(worker->data + at, 2 * GRANULE, i);
    struct lade_tensor_request put = part(LADE_TENSOR_PUT, "shared", worker->data + at, at, 2 * GRANULE, 12 * GRANULE);
    struct lade_tensor_request get = part(LADE_TENSOR_GET, "shared", back, at, 2 * GRANULE, 12 * GRANULE);
    worker->n_wrong += lade_tensor_store_submit(worker->store, &put, &error, &ticket) != 0 ||
                       lade_tensor_store_wait(worker->store, ticket, &error) != 0 ||
                       lade_tensor_store_submit(worker->store, &get, &error, &ticket) != 0 ||
                       lade_tensor_store_wait(worker->store, ticket, &error) != 0 ||
                       memcmp(back, worker->data + at, 2 * GRANULE) != 0;
  }
  worker->n_wrong += !back;
  free(back);
  return NULL;
}

static void threads_move_parts_of_one_tensor(void **state)
{
  enum { N_WORKERS = 6 };
  static unsigned char data[12 * GRANULE];
  lade_tensor_store *store = store_make(2 * MIB, 3 * GRANULE);
  struct worker workers[N_WORKERS];
  pthread_t threads[N_WORKERS];
  assert_int_equal(lade_tensor_store_put(store, "shared", data, sizeof(data), NULL), 0);
  for (int i = 0; i < N_WORKERS; i++) {
    workers[i] = (struct worker){.store = store, .data = data, .number = i};
    assert_int_equal(pthread_create(&threads[i], NULL, worker_run, &workers[i]), 0);
  }
  for (int i = 0; i < N_WORKERS; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(workers[i].n_wrong, 0);
  }
  lade_tensor_store_close(store);
}

/* Return the descriptor of the store's unnamed file. */
static int file_find(void)
{
  char path[64];
  for (int fd = 3; fd < 256; fd++) {
    struct stat of_file;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (!fstat(fd, &of_file) && S_ISREG(of_file.st_mode) && !of_file.st_nlink)
      return open(path, O_RDWR | O_CLOEXEC);
  }
  return -1;
}

/* A flipped bit comes out of wait with the tensor's name, and leaves the other parts and tensors readable. */
static void damage_comes_with_wait(void **state)
{
  static unsigned char data[3 * GRANULE];
  lade_tensor_store *store = store_make(4 * GRANULE, 0);
  struct lade_error error = {0};
  unsigned char byte;
  tensor_fixture_fill(data, sizeof(data), 9);
  end(store, begin(store, part(LADE_TENSOR_PUT, "m", data, 0, sizeof(data), 0)));
  int fd = file_find();
  assert_true(fd >= 0);
  assert_int_equal(pread(fd, &byte, 1, GRANULE + 5), 1);
  byte ^= 1;
  assert_int_equal(pwrite(fd, &byte, 1, GRANULE + 5), 1);
  fsync(fd);
  lade_tensor_ticket *ticket = begin(store, part(LADE_TENSOR_GET, "m", data, GRANULE, GRANULE, sizeof(data)));
  assert_int_equal(lade_tensor_store_wait(store, ticket, &error), -EBADMSG);
  assert_non_null(strstr(error.text, "'m'"));
  end(store, begin(store, part(LADE_TENSOR_GET, "m", data, 2 * GRANULE, GRANULE, sizeof(data))));
  end(store, begin(store, part(LADE_TENSOR_PUT, "m", data, GRANULE, GRANULE, sizeof(data))));
  end(store, begin(store, part(LADE_TENSOR_GET, "m", data, 0, sizeof(data), 0)));
  close(fd);
  lade_tensor_store_close(store);
}

/* Set the longest file that this process may write; return the limit before. */
static rlim_t file_limit_set(rlim_t bytes)
{
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = bytes;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  return before;
}

/* A put of a part that fails costs that part alone, until it is put again; a failed put of a whole tensor drops it. */
static void a_failed_part_leaves_the_others(void **state)
{
  static unsigned char data[5 * GRANULE], back[5 * GRANULE];
  struct lade_error error = {0};
  uint64_t bytes = 0;
  lade_tensor_store *store = tensor_fixture_open((struct lade_tensor_store_params){
      .dirs = scratch, .budget_bytes = 32 * GRANULE, .allow_tmpfs = true, .allow_buffered = true, .is_durable = true});
  tensor_fixture_fill(data, sizeof(data), 3);
  signal(SIGXFSZ, SIG_IGN);
  end(store, begin(store, part(LADE_TENSOR_PUT, "p", data, 0, sizeof(data), 0)));
  rlim_t before = file_limit_set(0);
  lade_tensor_ticket *ticket = begin(store, part(LADE_TENSOR_PUT, "p", data, GRANULE, 2 * GRANULE, sizeof(data)));
  assert_int_equal(lade_tensor_store_wait(store, ticket, &error), -EFBIG);
  file_limit_set(before);
  assert_int_equal(lade_tensor_store_find(store, "p", &bytes), 0);
  assert_int_equal(bytes, sizeof(data));
  end(store, begin(store, part(LADE_TENSOR_GET, "p", back, 3 * GRANULE, 2 * GRANULE, sizeof(data))));
  assert_memory_equal(back, data + 3 * GRANULE, 2 * GRANULE);
  refused(store, -EBADMSG, part(LADE_TENSOR_GET, "p", back, 2 * GRANULE, GRANULE, sizeof(data)), "65536 to 196608");
  assert_int_equal(lade_tensor_store_publish(store, &error), -EBADMSG);
  assert_non_null(strstr(error.text, "'p'"));
  end(store, begin(store, part(LADE_TENSOR_PUT, "p", data + 2 * GRANULE, 2 * GRANULE, GRANULE, sizeof(data))));
  refused(store, -EBADMSG, part(LADE_TENSOR_GET, "p", back, 0, sizeof(data), 0), "65536 to 131072");
  end(store, begin(store, part(LADE_TENSOR_PUT, "p", data + GRANULE, GRANULE, GRANULE, sizeof(data))));
  end(store, begin(store, part(LADE_TENSOR_GET, "p", back, 0, sizeof(data), 0)));
  assert_memory_equal(back, data, sizeof(data));
  assert_int_equal(lade_tensor_store_publish(store, &error), 0);
  before = file_limit_set(0);
  assert_int_equal(lade_tensor_store_put(store, "p", data, sizeof(data), &error), -EFBIG);
  file_limit_set(before);
  assert_int_equal(lade_tensor_store_find(store, "p", &bytes), -ENOENT);
  /* A whole put of fewer bytes leaves no failed part past its end. */
  end(store, begin(store, part(LADE_TENSOR_PUT, "p", data, 0, sizeof(data), 0)));
  before = file_limit_set(0);
  ticket = begin(store, part(LADE_TENSOR_PUT, "p", data, 3 * GRANULE, 2 * GRANULE, sizeof(data)));
  assert_int_equal(lade_tensor_store_wait(store, ticket, &error), -EFBIG);
  file_limit_set(before);
  assert_int_equal(lade_tensor_store_put(store, "p", data, 2 * GRANULE, &error), 0);
  assert_int_equal(lade_tensor_store_publish(store, &error), 0);
  lade_tensor_store_close(store);
  signal(SIGXFSZ, SIG_DFL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(submitted_tensors_are_got, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(parts_are_of_their_tensor, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(wrong_requests_change_nothing, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(overlaps_are_refused, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(bytes_in_flight_are_bounded, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(closing_ends_all_tickets, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(threads_move_parts_of_one_tensor, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(damage_comes_with_wait, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_failed_part_leaves_the_others, scratch_setup, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
