/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, arrays, 16-bit conversions and the exact split of a master weight. */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/echo.h"
#include "base/float.h"
#include "base/host_id.h"
#include "base/philox.h"
#include "kernels/kernels.h"
#include "tests/support/scratch.h"

static void exact_sizes_say_bytes_once(void **state)
{
  char text[LADE_SIZE_TEXT];
  assert_string_equal(lade_size_exact(0, text), "0 bytes");
  assert_string_equal(lade_size_exact(1, text), "1 byte");
  assert_string_equal(lade_size_exact(1023, text), "1023 bytes");
  assert_string_equal(lade_size_exact(1024, text), "1.0 KiB (1024 bytes)");
  assert_string_equal(lade_size_exact(UINT64_MAX, text), "16.0 EiB (18446744073709551615 bytes)");
}

static void echoes_of_names_are_short_and_on_one_line(void **state)
{
  char name[200], expected[LADE_ECHO_MAX + 4];
  assert_string_equal(lade_echo("").text, "");
  assert_string_equal(lade_echo("a\nb\x1b[31m\x7f\xc3\xa9").text, "a?b?[31m?\xc3\xa9");
  memset(name, 'n', sizeof(name));
  name[LADE_ECHO_MAX] = 0;
  assert_string_equal(lade_echo(name).text, name);
  for (int n = LADE_ECHO_MAX - 4; n <= LADE_ECHO_MAX; n++) { /* a letter of four bytes around the cut */
    memset(name, 'n', sizeof(name) - 1);
    memcpy(name + n, "\xf0\x9f\x98\x80", 4);
    name[sizeof(name) - 1] = 0;
    const int cut = n > LADE_ECHO_MAX - 4 ? n : LADE_ECHO_MAX;
    snprintf(expected, sizeof(expected), "%.*s...", cut, name);
    assert_string_equal(lade_echo(name).text, expected);
  }
}

static void echoes_of_json_are_those_of_its_encoder_cut_short(void **state)
{
  json_t *value = json_pack("{s:[i,b,n,s]}", "a", 7, true, "\n\xc3\xa9\"");
  assert_string_equal(lade_json_echo(NULL).text, "missing");
  assert_string_equal(lade_json_echo(value).text, "{\"a\":[7,true,null,\"\\n\\u00E9\\\"\"]}");
  json_decref(value);
  for (int n = 44; n < 48; n++) {
    char letters[64], expected[64];
    snprintf(letters, sizeof(letters), "%0*d", n, 0);
    snprintf(expected, sizeof(expected), n <= 45 ? "\"%s\"" : "\"%.43s...", letters);
    value = json_string(letters);
    assert_string_equal(lade_json_echo(value).text, expected);
    json_decref(value);
  }
}

static void size_parses_common_forms(void **state)
{
  uint64_t bytes = 0;
  assert_int_equal(lade_size_parse("24MiB", &bytes), 0);
  assert_int_equal(bytes, 24u << 20);
  assert_int_equal(lade_size_parse("1.5 GiB", &bytes), 0);
  assert_int_equal(bytes, 3u << 29);
  assert_int_equal(lade_size_parse("4096", &bytes), 0);
  assert_int_equal(bytes, 4096);
  assert_int_equal(lade_size_parse("2MB", &bytes), 0);
  assert_int_equal(bytes, 2000000);
  assert_int_equal(lade_size_parse("9007199254740993", &bytes), 0); /* 2^53 + 1 is no double */
  assert_true(bytes == (UINT64_C(1) << 53) + 1);
  char text[32]; /* a size is read back in every unit in which it is printed */
  for (int bit = 0; bit < 63; bit += 10) {
    assert_int_equal(lade_size_parse(lade_size_format(UINT64_C(1) << bit, text, sizeof(text)), &bytes), 0);
    assert_true(bytes == UINT64_C(1) << bit);
  }
}

/* Sizes have a point in every locale. The test makes a locale with a comma, where the machine can. */
static void sizes_have_a_point(void **state)
{
  char text[32], made[300], command[400];
  assert_string_equal(lade_size_format(3u << 19, text, sizeof(text)), "1.5 MiB");
  assert_string_equal(lade_size_format((1u << 20) - 1, text, sizeof(text)), "1024.0 KiB");
  snprintf(made, sizeof(made), "%s/de", scratch);
  snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 '%s' >/dev/null 2>&1", made);
  if (system(command) != 0)
    return;
  assert_int_equal(setenv("LOCPATH", scratch, 1), 0);
  assert_non_null(setlocale(LC_NUMERIC, "de"));
  snprintf(text, sizeof(text), "%.1f", 1.5);
  assert_string_equal(text, "1,5");
  assert_string_equal(lade_size_format(3u << 19, text, sizeof(text)), "1.5 MiB");
  setlocale(LC_NUMERIC, "C");
  unsetenv("LOCPATH");
}

static void size_refuses_other_text(void **state)
{
  static const char *const texts[] = {"", "MiB", "-1", "0x10", "nan", "inf", "1QiB", "1 2", "+3", "5 ", " 5"};
  uint64_t bytes = 77;
  for (size_t i = 0; i < LADE_COUNT(texts); i++)
    assert_int_equal(lade_size_parse(texts[i], &bytes), -EINVAL);
  assert_int_equal(lade_size_parse("99999999TiB", &bytes), -ERANGE);
  assert_int_equal(lade_size_parse("8EiB", &bytes), -ERANGE);
  assert_int_equal(bytes, 77);
}

static void numbers_are_decimal(void **state)
{
  static const char *const others[] = {"", " 1", "0x10", "-0x1p3", "inf", "-nan", "nan(1)", "e5", "+", "%"};
  static const struct {
    const char *text, *rest;
    double value;
  } numbers[] = {{"-1.5e3", "", -1500}, {"+.5%", "%", 0.5}, {"2e", "e", 2}, {"7,5", ",5", 7}, {"0", "", 0}};
  char *end = NULL;
  for (size_t i = 0; i < LADE_COUNT(others); i++) {
    assert_true(lade_number_read(others[i], &end) == 0);
    assert_ptr_equal(end, others[i]);
  }
  for (size_t i = 0; i < LADE_COUNT(numbers); i++) {
    assert_true(lade_number_read(numbers[i].text, &end) == numbers[i].value);
    assert_string_equal(end, numbers[i].rest);
  }
}

static void temporary_failures_are_retried_and_not_for_ever(void **state)
{
  static const int codes[] = {-EINTR, -EAGAIN, -EBUSY, -EIO, 0};
  for (size_t i = 0; i < LADE_COUNT(codes); i++) {
    int n_tries = 0, n = 0;
    while (lade_retry(codes[i], &n_tries))
      n++;
    assert_int_equal(n, i < 3 ? 32 : 0);
    assert_int_equal(n_tries, n);
  }
}

static void array_keeps_pushed_items(void **state)
{
  LADE_ARRAY(int) array = {0};
  for (int i = 0; i < 1000; i++)
    assert_true(LADE_PUSH(&array, i * 3));
  for (int i = 0; i < 1000; i++)
    assert_int_equal(array.items[i], i * 3);
  LADE_ARRAY_FREE(&array);
  assert_null(array.items);
}

static void bf16_rounds_to_nearest_even(void **state)
{
  assert_int_equal(lade_f32_to_bf16(1.0f), 0x3f80);
  assert_int_equal(lade_f32_to_bf16(lade_f32_from_bits(0x3f808000)), 0x3f80); /* tie to even */
  assert_int_equal(lade_f32_to_bf16(lade_f32_from_bits(0x3f818000)), 0x3f82);
  assert_int_equal(lade_f32_to_bf16(INFINITY), 0x7f80);
  assert_true(isnan(lade_bf16_to_f32(lade_f32_to_bf16(NAN))));
}

static void f16_survives_a_round_trip(void **state)
{
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    float value = lade_f16_to_f32((uint16_t)bits);
    if (isnan(value))
      continue;
    assert_int_equal(lade_f32_to_f16(value), bits);
  }
  assert_int_equal(lade_f32_to_f16(65519.0f), 0x7bff);
  assert_int_equal(lade_f32_to_f16(65520.0f), 0x7c00);
}

static void master_split_loses_no_bit(void **state)
{
  for (uint32_t i = 0; i < 4000000; i++) {
    uint32_t bits = i * 2654435761u;
    if ((bits & 0x7f800000) == 0x7f800000)
      continue;
    uint16_t high;
    int16_t low;
    lade_master_split(lade_f32_from_bits(bits), &high, &low);
    assert_int_equal(lade_f32_bits(lade_master_join(high, low)), bits);
  }
}

/* A GPU's NaN is 0x7fffffff, whose rounding would carry into the sign. */
static void master_split_keeps_nan(void **state)
{
  static const uint32_t bits[] = {0x7fffffff, 0xffffffff, 0x7fff8000, 0x7fc00000, 0xffc00000, 0x7f800001};
  for (size_t i = 0; i < LADE_COUNT(bits); i++) {
    uint16_t high;
    int16_t low;
    lade_master_split(lade_f32_from_bits(bits[i]), &high, &low);
    assert_true(isnan(lade_bf16_to_f32(high)) && isnan(lade_master_join(high, low)));
  }
}

/* Known answers of the authors' Random123 (kat_vectors, philox4x32 10). */
static void philox_gives_the_published_words(void **state)
{
  struct lade_philox zero = lade_philox_draw(0, 0, 0, 0);
  static const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  assert_memory_equal(zero.word, zeros, sizeof(zeros));
  struct lade_philox ones = lade_philox_draw(~UINT64_C(0), ~0u, ~0u, ~UINT64_C(0));
  static const uint32_t all_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  assert_memory_equal(ones.word, all_ones, sizeof(all_ones));
}

static void cpu_count_is_positive(void **state)
{
  assert_true(lade_cpu_count() >= 1);
}

struct grown {
  size_t struct_size;
  int64_t old, newer;
};

static void struct_of_an_older_program_reads_as_defaults_and_keeps_its_end(void **state)
{
  struct grown older = {.struct_size = offsetof(struct grown, newer), .old = 5, .newer = 77}, own = {.newer = 1};
  assert_int_equal(lade_struct_read("grown", &older, &own, sizeof(own), NULL), 0);
  assert_int_equal(own.struct_size, sizeof(own));
  assert_int_equal(own.old, 5);
  assert_int_equal(own.newer, 0);
  own = (struct grown){.old = 6, .newer = 7};
  assert_int_equal(lade_struct_fill("grown", &older, &own, sizeof(own), NULL), 0);
  assert_int_equal(older.struct_size, offsetof(struct grown, newer));
  assert_int_equal(older.old, 6);
  assert_int_equal(older.newer, 77);
}

static void struct_of_a_newer_program_is_taken_while_its_tail_is_zero(void **state)
{
  struct grown newer = {.struct_size = sizeof(newer), .old = 5};
  struct grown own = {.old = 1};
  const size_t own_bytes = offsetof(struct grown, newer);
  struct lade_error error = {0};
  assert_int_equal(lade_struct_read("grown", &newer, &own, own_bytes, &error), 0);
  assert_int_equal(own.old, 5);
  newer.newer = 1;
  own.old = 2;
  assert_int_equal(lade_struct_read("grown", &newer, &own, own_bytes, &error), -EINVAL);
  assert_non_null(strstr(error.text, "newer headers"));
  assert_int_equal(own.old, 2);
  assert_int_equal(lade_struct_fill("grown", &newer, &own, own_bytes, &error), 0);
  assert_int_equal(newer.old, 2);
  assert_int_equal(newer.newer, 0);
}

static void struct_whose_size_was_not_set_is_refused(void **state)
{
  struct grown given = {.old = 5}, own = {.old = 1};
  struct lade_error error = {0};
  assert_int_equal(lade_struct_read("grown", &given, &own, sizeof(own), &error), -EINVAL);
  assert_non_null(strstr(error.text, "struct_size"));
  given.struct_size = SIZE_MAX;
  assert_int_equal(lade_struct_fill("grown", &given, &own, sizeof(own), &error), -EINVAL);
  assert_int_equal(given.old, 5);
}

static void a_long_error_keeps_its_ends(void **state)
{
  (void)state;
  char path[3000];
  struct lade_error error;
  memset(path, 'x', sizeof(path) - 1);
  path[sizeof(path) - 1] = 0;
  assert_int_equal(lade_error_set(&error, -EINVAL, "where %s: what", path), -EINVAL);
  assert_int_equal(strlen(error.text), sizeof(error.text) - 1);
  assert_memory_equal(error.text, "where x", 7);
  assert_non_null(strstr(error.text, "x...x"));
  assert_string_equal(error.text + sizeof(error.text) - 1 - 7, "x: what");
}

/* Each level of LADE_CPU includes the one before it, and only the last one uses the slow dot products. */
static void cpu_level_lowers_the_answer(void **state)
{
  const char *before = getenv("LADE_CPU");
  char saved[32] = "";
  if (before)
    snprintf(saved, sizeof(saved), "%s", before);
  unsetenv("LADE_CPU");
  struct lade_cpu has = lade_cpu_get();
  static const char *const levels[] = {"plain", "avx2", "avx512", "avx512_bf16"};
  for (int i = 0; i < 4; i++) {
    setenv("LADE_CPU", levels[i], 1);
    struct lade_cpu cpu = lade_cpu_get();
    assert_int_equal(cpu.has_avx2, has.has_avx2 && i >= 1);
    assert_int_equal(cpu.has_avx512, has.has_avx512 && i >= 2);
    assert_int_equal(cpu.has_avx512_bf16, has.has_avx512_bf16 && i >= 3);
    assert_false(cpu.is_bf16_dot_slow);
    assert_false(cpu.has_amx_bf16); /* only the best level has it */
  }
  unsetenv("LADE_CPU");
  if (saved[0])
    setenv("LADE_CPU", saved, 1);
}

/*
 * Check the choice of tiles with an alternate signal stack of @stack_bytes. Return 0 if it is right. Runs in a child,
 * because the permission cannot be undone.
 */
static int tiles_ask(const struct lade_cpu *cpu, size_t stack_bytes)
{
  stack_t stack = {.ss_sp = malloc(stack_bytes), .ss_size = stack_bytes};
  if (!stack.ss_sp || sigaltstack(&stack, NULL))
    return 1;
  const bool is_permitted = lade_cpu_permit_amx();
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, cpu);
  const bool has_tiles = strcmp(kernels.variant[LADE_K_MATMUL], "amx") == 0;
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, NULL);
  free(stack.ss_sp);
  const bool is_expected = cpu->has_amx_bf16 && stack_bytes > 8192;
  return is_permitted == is_expected && has_tiles == is_expected ? 0 : 2;
}

static void tiles_need_room_for_signals(void **state)
{
  const struct lade_cpu cpu = lade_cpu_get();
  static const size_t stacks[] = {4096, 65536}; /* tiles alone are 8 KiB of a frame */
  for (size_t i = 0; i < LADE_COUNT(stacks); i++) {
    int status;
    const pid_t child = fork();
    if (child == 0)
      _exit(tiles_ask(&cpu, stacks[i]));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
  }
}

/*
 * Compute the key in a child's own namespaces, with @name as the host name and the contents of @boot_id as the boot id.
 */
static bool node_key_in(const char *name, const char *boot_id, uint64_t *ret_key)
{
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const bool is_apart = !unshare(CLONE_NEWNS | CLONE_NEWUTS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
                          !sethostname(name, strlen(name)) &&
                          (!boot_id || !mount(boot_id, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL));
    const uint64_t key = is_apart ? lade_host_id() : 0;
    _exit(write(ends[1], &key, sizeof(key)) != sizeof(key));
  }
  close(ends[1]);
  *ret_key = 0;
  assert_int_equal(read(ends[0], ret_key, sizeof(*ret_key)), sizeof(*ret_key));
  close(ends[0]);
  waitpid(child, NULL, 0);
  return *ret_key != 0;
}

static void a_machine_has_one_key_by_any_name(void **state)
{
  uint64_t key, other;
  assert_int_equal(lade_host_id(), lade_host_id());
  if (!node_key_in("here", NULL, &key)) {
    print_message("no namespaces are to be had\n");
    skip();
  }
  assert_int_equal(key, lade_host_id());
  assert_true(node_key_in("there", NULL, &other));
  assert_int_equal(key, other);
  assert_true(node_key_in("here", "/proc/sys/kernel/ostype", &other)); /* after its next start */
  assert_int_not_equal(key, other);
  uint64_t here, there; /* unreadable: host names distinguish machines */
  assert_true(node_key_in("here", "/dev/null", &here));
  assert_true(node_key_in("there", "/dev/null", &there));
  assert_int_not_equal(here, there);
  assert_true(node_key_in("here", "/dev/null", &other));
  assert_int_equal(here, other);
}

/* A kernel for 2048 CPUs, which refuses smaller masks; this process may run on every second one. */
static bool is_large_machine;

int __real_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set);

int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
  if (!is_large_machine)
    return __real_sched_getaffinity(pid, bytes, set);
  if (bytes < 2048 / 8) {
    errno = EINVAL;
    return -1;
  }
  CPU_ZERO_S(bytes, set);
  for (size_t i = 0; i < 2048; i += 2)
    CPU_SET_S(i, bytes, set);
  return 0;
}

static void cpus_past_1024_count(void **state)
{
  const int here = lade_cpu_count();
  is_large_machine = true;
  const int there = lade_cpu_count();
  is_large_machine = false;
  if (there != 1024 && there != here) /* unless a quota of this machine's control groups is lower */
    fail_msg("%d of 1024 CPUs count", there);
  assert_true(there > 1 || here == 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exact_sizes_say_bytes_once),
      cmocka_unit_test(echoes_of_names_are_short_and_on_one_line),
      cmocka_unit_test(echoes_of_json_are_those_of_its_encoder_cut_short),
      cmocka_unit_test(size_parses_common_forms),
      cmocka_unit_test_setup_teardown(sizes_have_a_point, scratch_setup, scratch_teardown),
      cmocka_unit_test(size_refuses_other_text),
      cmocka_unit_test(numbers_are_decimal),
      cmocka_unit_test(a_long_error_keeps_its_ends),
      cmocka_unit_test(temporary_failures_are_retried_and_not_for_ever),
      cmocka_unit_test(array_keeps_pushed_items),
      cmocka_unit_test(bf16_rounds_to_nearest_even),
      cmocka_unit_test(f16_survives_a_round_trip),
      cmocka_unit_test(master_split_loses_no_bit),
      cmocka_unit_test(master_split_keeps_nan),
      cmocka_unit_test(philox_gives_the_published_words),
      cmocka_unit_test(struct_of_an_older_program_reads_as_defaults_and_keeps_its_end),
      cmocka_unit_test(struct_of_a_newer_program_is_taken_while_its_tail_is_zero),
      cmocka_unit_test(struct_whose_size_was_not_set_is_refused),
      cmocka_unit_test(cpu_count_is_positive),
      cmocka_unit_test(cpus_past_1024_count),
      cmocka_unit_test(cpu_level_lowers_the_answer),
      cmocka_unit_test(tiles_need_room_for_signals),
      cmocka_unit_test(a_machine_has_one_key_by_any_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
