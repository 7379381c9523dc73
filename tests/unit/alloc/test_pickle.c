/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle reader against hostile files. Every opcode that calls code is refused by name. Every opcode of data gives
 * Python's result. Cut, shared, circular and lying files end with one line.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/pickle.h"
#include "base/base.h"
#include "tests/support/heap/allocations.h"

#define TEXT(literal) literal, sizeof(literal) - 1

static struct lade_error error;

/* Read exactly @n bytes, so that a sanitizer detects a read past them. */
static int read_bytes(const char *bytes, size_t n, lade_pickle **ret_pickle)
{
  static char *copy;
  free(copy);
  copy = malloc(n + !n);
  assert_non_null(copy);
  memcpy(copy, bytes, n);
  error.text[0] = 0;
  return lade_pickle_read("p", copy, n, &error, ret_pickle);
}

static lade_pickle *accepted(const char *bytes, size_t n)
{
  lade_pickle *pickle = NULL;
  if (read_bytes(bytes, n, &pickle))
    fail_msg("%s", error.text);
  return pickle;
}

/* Check that @bytes are refused with one line that names @words. */
static void refused(const char *bytes, size_t n, const char *words)
{
  lade_pickle *pickle = NULL;
  assert_int_equal(read_bytes(bytes, n, &pickle), -EBADMSG);
  assert_null(pickle);
  assert_int_equal(strncmp(error.text, "p: byte ", 8), 0);
  assert_null(strchr(error.text, '\n'));
  if (!strstr(error.text, words))
    fail_msg("'%s' does not say '%s'", error.text, words);
}

static void test_every_opcode_that_calls_is_refused_by_name(void **state)
{
  static const struct {
    char code;
    const char *name;
  } calls[] = {{'c', "GLOBAL"},      {'\x93', "STACK_GLOBAL"}, {'R', "REDUCE"},      {'b', "BUILD"},
               {'i', "INST"},        {'o', "OBJ"},             {'\x81', "NEWOBJ"},   {'\x92', "NEWOBJ_EX"},
               {'\x82', "EXT1"},     {'\x83', "EXT2"},         {'\x84', "EXT4"},     {'P', "PERSID"},
               {'Q', "BINPERSID"}};
  for (size_t i = 0; i < LADE_COUNT(calls); i++) {
    /* The stack has the operands of the opcode, so that only the refusal can stop it. */
    char bytes[] = "\x80\x04(\x8c\x02os\x8c\x06system)?os\nsystem\n.", words[64];
    *strchr(bytes, '?') = calls[i].code;
    snprintf(words, sizeof(words), "byte 16: refused: calls code (%s)", calls[i].name);
    refused(bytes, sizeof(bytes) - 1, words);
  }
  refused(TEXT("\x80\x05]\x97."), "byte 3: refused: refers to what is not in the file (NEXT_BUFFER)");
  refused(TEXT("\x80\x05]\x98."), "refused: refers to what is not in the file (READONLY_BUFFER)");
}

static void test_real_exploits_are_refused(void **state)
{
  refused(TEXT("\x80\x02""cposix\nsystem\nq\x00X\x02\x00\x00\x00idq\x01\x85q\x02Rq\x03."), "calls code (GLOBAL)");
  refused(TEXT("\x80\x04\x95\x1d\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94."),
          "calls code (STACK_GLOBAL)");
}

static void test_text_opcodes_of_old_protocols_are_refused(void **state)
{
  static const char codes[] = "ILFSVpg";
  for (const char *code = codes; *code; code++) {
    char bytes[] = "\x80\x02?1\n.";
    bytes[2] = *code;
    refused(bytes, sizeof(bytes) - 1, "protocol 0");
  }
  refused(TEXT("(dp0\n."), "byte 0: no pickle of protocol 2 to 5");
  refused(TEXT("\x80\x01]."), "a protocol other than 2 to 5");
  refused(TEXT("\x80\x06]."), "a protocol other than 2 to 5");
}

static void test_every_byte_that_is_no_opcode_is_refused(void **state)
{
  static const char known[] = "\x80\x95.(012N\x88\x89KMJ\x8a\x8bG\x8cX\x8dUTCB\x8e\x96)]}\x8f\x85\x86\x87tld\x91"
                              "aseu\x90qr\x94hjc\x93Rbio\x81\x92\x82\x83\x84PQ\x97\x98ILFSVpg";
  int n_unknown = 0;
  for (int code = 0; code < 256; code++) {
    char bytes[] = {'\x80', 4, 'N', (char)code, '.'};
    if (memchr(known, code, sizeof(known) - 1))
      continue;
    refused(bytes, sizeof(bytes), "not an opcode of any protocol (no opcode)");
    n_unknown++;
  }
  assert_int_equal(n_unknown, 256 - (int)(sizeof(known) - 1));
}

static uint64_t integer_of(const char *bytes, size_t n)
{
  lade_pickle *pickle = accepted(bytes, n);
  uint64_t integer = 12345;
  int code = lade_pickle_get_integer(pickle, lade_pickle_root(pickle), &integer);
  assert_int_equal(code, 0);
  lade_pickle_destroy(pickle);
  return integer;
}

static enum lade_pickle_kind kind_of(const char *bytes, size_t n, bool is_integer)
{
  lade_pickle *pickle = accepted(bytes, n);
  uint64_t integer = 12345;
  enum lade_pickle_kind kind = lade_pickle_kind(pickle, lade_pickle_root(pickle));
  assert_int_equal(lade_pickle_get_integer(pickle, lade_pickle_root(pickle), &integer), is_integer ? 0 : -EINVAL);
  lade_pickle_destroy(pickle);
  return kind;
}

static void test_integers_are_those_of_python(void **state)
{
  assert_int_equal(integer_of(TEXT("\x80\x02K\xff.")), 255);
  assert_int_equal(integer_of(TEXT("\x80\x02M\x34\x12.")), 0x1234);
  assert_int_equal(integer_of(TEXT("\x80\x02J\xff\xff\xff\x7f.")), INT32_MAX);
  assert_int_equal(integer_of(TEXT("\x80\x02\x8a\x00.")), 0);
  assert_int_equal(integer_of(TEXT("\x80\x02\x8a\x05\0\0\0\0\x01.")), (uint64_t)1 << 32);
  assert_true(integer_of(TEXT("\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0.")) == UINT64_MAX);
  assert_int_equal(integer_of(TEXT("\x80\x02\x8b\x02\0\0\0\x34\x12.")), 0x1234);
  assert_int_equal(kind_of(TEXT("\x80\x02J\xff\xff\xff\xff."), false), LADE_PICKLE_INTEGER);      /* -1 */
  assert_int_equal(kind_of(TEXT("\x80\x02\x8a\x01\x80."), false), LADE_PICKLE_INTEGER);           /* -128 */
  assert_int_equal(kind_of(TEXT("\x80\x02\x8a\x09\0\0\0\0\0\0\0\0\x01."), false), LADE_PICKLE_LONG); /* 2^64 */
  assert_int_equal(kind_of(TEXT("\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff."), false), LADE_PICKLE_LONG);
}

static void test_every_kind_of_data_is_built(void **state)
{
  assert_int_equal(kind_of(TEXT("\x80\x02N."), false), LADE_PICKLE_NONE);
  assert_int_equal(kind_of(TEXT("\x80\x02\x88."), false), LADE_PICKLE_BOOL);
  assert_int_equal(kind_of(TEXT("\x80\x02\x89."), false), LADE_PICKLE_BOOL);
  assert_int_equal(kind_of(TEXT("\x80\x02G\x3f\xf0\0\0\0\0\0\0."), false), LADE_PICKLE_REAL);
  assert_int_equal(kind_of(TEXT("\x80\x05\x8c\x02hi."), false), LADE_PICKLE_TEXT);
  assert_int_equal(kind_of(TEXT("\x80\x05X\x02\0\0\0hi."), false), LADE_PICKLE_TEXT);
  assert_int_equal(kind_of(TEXT("\x80\x05\x8d\x02\0\0\0\0\0\0\0hi."), false), LADE_PICKLE_TEXT);
  assert_int_equal(kind_of(TEXT("\x80\x02U\x02hi."), false), LADE_PICKLE_TEXT);
  assert_int_equal(kind_of(TEXT("\x80\x02T\x02\0\0\0hi."), false), LADE_PICKLE_TEXT);
  assert_int_equal(kind_of(TEXT("\x80\x05""C\x02hi."), false), LADE_PICKLE_BYTES);
  assert_int_equal(kind_of(TEXT("\x80\x05""B\x02\0\0\0hi."), false), LADE_PICKLE_BYTES);
  assert_int_equal(kind_of(TEXT("\x80\x05\x8e\x02\0\0\0\0\0\0\0hi."), false), LADE_PICKLE_BYTES);
  assert_int_equal(kind_of(TEXT("\x80\x05\x96\x02\0\0\0\0\0\0\0hi."), false), LADE_PICKLE_BYTES);
  assert_int_equal(kind_of(TEXT("\x80\x04)."), false), LADE_PICKLE_TUPLE);
  assert_int_equal(kind_of(TEXT("\x80\x04NNN\x87."), false), LADE_PICKLE_TUPLE);
  assert_int_equal(kind_of(TEXT("\x80\x04(NNNNt."), false), LADE_PICKLE_TUPLE);
  assert_int_equal(kind_of(TEXT("\x80\x04(NNl."), false), LADE_PICKLE_LIST);
  assert_int_equal(kind_of(TEXT("\x80\x04(K\x01Nd."), false), LADE_PICKLE_DICT);
  assert_int_equal(kind_of(TEXT("\x80\x04}K\x01Ns."), false), LADE_PICKLE_DICT);
  assert_int_equal(kind_of(TEXT("\x80\x04\x8f(NN\x90."), false), LADE_PICKLE_SET);
  assert_int_equal(kind_of(TEXT("\x80\x04(N\x91."), false), LADE_PICKLE_SET);
  assert_int_equal(kind_of(TEXT("\x80\x04N(NN1."), false), LADE_PICKLE_NONE);
  assert_int_equal(kind_of(TEXT("\x80\x04NN0."), false), LADE_PICKLE_NONE);
  assert_int_equal(kind_of(TEXT("\x80\x04N(0."), false), LADE_PICKLE_NONE);
  assert_int_equal(kind_of(TEXT("\x80\x04N2\x86."), false), LADE_PICKLE_TUPLE);
  assert_int_equal(kind_of(TEXT("\x80\x04\x95\x02\0\0\0\0\0\0\0N."), false), LADE_PICKLE_NONE);
}

static void test_lists_grow_where_they_lie_and_dicts_are_found_in(void **state)
{
  /* {"a": [1, 2, 3], "b": the same list}; the list is filled after it was put into both. */
  lade_pickle *pickle = accepted(TEXT("\x80\x04}(\x8c\x01""a]\x94\x8c\x01""bh\x00uh\x00K\x01""a(K\x02K\x03""e0."));
  int root = lade_pickle_root(pickle), list = -1, same = -2, item = 0, cursor = LADE_PICKLE_START;
  assert_int_equal(lade_pickle_find(pickle, root, "a", &list), 0);
  assert_int_equal(lade_pickle_find(pickle, root, "b", &same), 0);
  assert_int_equal(list, same);
  assert_int_equal(lade_pickle_find(pickle, root, "c", &same), -ENOENT);
  assert_int_equal(lade_pickle_find(pickle, list, "a", &same), -EINVAL);
  for (uint64_t i = 1; i <= 3; i++) {
    uint64_t integer = 0;
    assert_int_equal(lade_pickle_next(pickle, list, &cursor, &item), 0);
    assert_int_equal(lade_pickle_get_integer(pickle, item, &integer), 0);
    assert_int_equal(integer, i);
  }
  assert_int_equal(lade_pickle_next(pickle, list, &cursor, &item), -ENOENT);
  cursor = LADE_PICKLE_START;
  assert_int_equal(lade_pickle_next(pickle, root, &cursor, &item), -EINVAL);
  lade_pickle_destroy(pickle);
}

static void test_a_key_that_stands_twice_is_no_answer(void **state)
{
  lade_pickle *pickle = accepted(TEXT("\x80\x04}(\x8c\x01""aK\x01\x8c\x01""aK\x02u."));
  int value = -1;
  assert_int_equal(lade_pickle_find(pickle, lade_pickle_root(pickle), "a", &value), -EINVAL);
  assert_int_equal(value, -1);
  lade_pickle_destroy(pickle);
}

static void test_a_file_that_lies_is_refused(void **state)
{
  refused(TEXT(""), "no pickle");
  refused(TEXT("\x80"), "no pickle");
  refused(TEXT("\x80\x04"), "has no end");
  refused(TEXT("\x80\x04."), "other than one value");
  refused(TEXT("\x80\x04NN."), "other than one value");
  refused(TEXT("\x80\x04N(."), "other than one value");
  refused(TEXT("\x80\x04N.N"), "more bytes come after its end");
  refused(TEXT("\x80\x04\x95\x03\0\0\0\0\0\0\0N."), "longer than the file");
  refused(TEXT("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffN."), "the file ends in it");
  refused(TEXT("\x80\x04X\xff\xff\xff\xffN."), "the file ends in it");
  refused(TEXT("\x80\x04\x8b\xff\xff\xff\xffN."), "the file ends in it");
  refused(TEXT("\x80\x04""a."), "fewer values");
  refused(TEXT("\x80\x04Na."), "fewer values");
  refused(TEXT("\x80\x04](Na."), "fewer values");
  refused(TEXT("\x80\x04](Ne1."), "no mark");
  refused(TEXT("\x80\x04NNa."), "no such container");
  refused(TEXT("\x80\x04}Na."), "no such container");
  refused(TEXT("\x80\x04](NNu."), "no such container");
  refused(TEXT("\x80\x04}(Nu."), "a key without a value");
  refused(TEXT("\x80\x04(Nd."), "a key without a value");
  refused(TEXT("\x80\x04t."), "no mark");
  refused(TEXT("\x80\x04N\x86."), "fewer values");
  refused(TEXT("\x80\x04N(N\x86."), "fewer values");
  refused(TEXT("\x80\x04""0."), "the stack is empty");
  refused(TEXT("\x80\x04""2."), "the stack is empty");
  refused(TEXT("\x80\x04\x94."), "the stack is empty");
  refused(TEXT("\x80\x04(\x94."), "the stack is empty");
  refused(TEXT("\x80\x04h\x00."), "nothing under its number");
  refused(TEXT("\x80\x04Nq\x03h\x02."), "nothing under its number");
}

/* A memo of four billion entries, a stack of marks, and a text of 2^63 bytes cost no more than the file's size. */
static void test_bombs_are_refused_before_they_cost_anything(void **state)
{
  char marks[2 + 1001 + 1];
  refused(TEXT("\x80\x04Nr\xff\xff\xff\xff."), "past what the file could have used");
  refused(TEXT("\x80\x04Nr\x00\x00\x00\x10."), "past what the file could have used");
  refused(TEXT("\x80\x04\x8e\x00\0\0\0\0\0\0\x80."), "the file ends in it");
  memset(marks, '(', sizeof(marks));
  memcpy(marks, "\x80\x04", 2);
  refused(marks, sizeof(marks), "deeper than 1000");
}

/*
 * Lists of ten references to the previous list: thirty levels describe 10^30 items in 1 KiB. Reading is as fast as for
 * any other kilobyte, and a full walk is stopped.
 */
static void test_sharing_without_end_is_read_but_not_walked(void **state)
{
  char bytes[2048] = "\x80\x04(]\x94Na";
  size_t n = 7;
  for (int level = 0; level < 30; level++) {
    bytes[n++] = '(';
    for (int i = 0; i < 10; i++) {
      bytes[n++] = 'h';
      bytes[n++] = (char)level;
    }
    memcpy(bytes + n, "l\x94", 2);
    n += 2;
  }
  memcpy(bytes + n, "1h\x1e.", 4); /* drop all pushed items, and take the last list from the memo */
  n += 4;
  lade_pickle *pickle = accepted(bytes, n);
  int code = 0, n_walked = 0;
  while (!code) {
    int value = lade_pickle_root(pickle), cursor = LADE_PICKLE_START;
    while (!(code = lade_pickle_next(pickle, value, &cursor, &(int){0})))
      n_walked++;
    code = code == -ENOENT ? 0 : code;
  }
  assert_int_equal(code, -ELOOP);
  assert_in_range(n_walked, 4096, 16 * n + 4096);
  lade_pickle_destroy(pickle);
}

static void test_a_list_may_hold_itself(void **state)
{
  lade_pickle *pickle = accepted(TEXT("\x80\x04]\x94h\x00""a."));
  int root = lade_pickle_root(pickle), item = -1, cursor = LADE_PICKLE_START;
  assert_int_equal(lade_pickle_next(pickle, root, &cursor, &item), 0);
  assert_int_equal(item, root);
  lade_pickle_destroy(pickle);
}

/* Python's pickle of {"segments": [], "device_traces": [[{"action": "alloc", "size": 512}]], "x": (1.5, None)}. */
static const char sample[] =
    "\x80\x04\x95\x4f\0\0\0\0\0\0\0}\x94(\x8c\x08segments\x94]\x94\x8c\rdevice_traces\x94]\x94]\x94}\x94(\x8c\x06"
    "action\x94\x8c\x05""alloc\x94\x8c\x04size\x94M\x00\x02uaa\x8c\x01x\x94G?\xf8\0\0\0\0\0\0N\x86\x94u.";

static void test_a_file_that_is_cut_anywhere_is_refused(void **state)
{
  size_t n = sizeof(sample) - 1;
  lade_pickle_destroy(accepted(sample, n));
  for (size_t cut = 0; cut < n; cut++)
    refused(sample, cut, "");
}

static void test_a_file_with_any_bit_flipped_is_read_or_refused(void **state)
{
  size_t n = sizeof(sample) - 1;
  int n_read = 0;
  for (size_t bit = 0; bit < n * 8; bit++) {
    char bytes[sizeof(sample)];
    lade_pickle *pickle = NULL;
    memcpy(bytes, sample, n);
    bytes[bit / 8] = (char)(bytes[bit / 8] ^ (1 << bit % 8));
    int code = read_bytes(bytes, n, &pickle);
    assert_true(code == 0 || code == -EBADMSG);
    assert_int_equal(code == 0, pickle != NULL);
    assert_int_equal(code == 0, error.text[0] == 0);
    n_read += code == 0;
    lade_pickle_destroy(pickle);
  }
  assert_true(n_read > 0);
}

static void test_an_allocation_that_fails_is_an_error_without_a_leak(void **state)
{
  int n = 1, code = -ENOMEM;
  for (; code; n++) {
    lade_pickle *pickle = NULL;
    allocations_left = n;
    code = lade_pickle_read("p", sample, sizeof(sample) - 1, &error, &pickle);
    allocations_left = -1;
    assert_true(code == 0 || code == -ENOMEM);
    assert_int_equal(code == 0, pickle != NULL);
    lade_pickle_destroy(pickle);
  }
  assert_true(n > 4);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_opcode_that_calls_is_refused_by_name),
      cmocka_unit_test(test_real_exploits_are_refused),
      cmocka_unit_test(test_text_opcodes_of_old_protocols_are_refused),
      cmocka_unit_test(test_every_byte_that_is_no_opcode_is_refused),
      cmocka_unit_test(test_integers_are_those_of_python),
      cmocka_unit_test(test_every_kind_of_data_is_built),
      cmocka_unit_test(test_lists_grow_where_they_lie_and_dicts_are_found_in),
      cmocka_unit_test(test_a_key_that_stands_twice_is_no_answer),
      cmocka_unit_test(test_a_file_that_lies_is_refused),
      cmocka_unit_test(test_bombs_are_refused_before_they_cost_anything),
      cmocka_unit_test(test_sharing_without_end_is_read_but_not_walked),
      cmocka_unit_test(test_a_list_may_hold_itself),
      cmocka_unit_test(test_a_file_that_is_cut_anywhere_is_refused),
      cmocka_unit_test(test_a_file_with_any_bit_flipped_is_read_or_refused),
      cmocka_unit_test(test_an_allocation_that_fails_is_an_error_without_a_leak),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
