/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs of a caller's own step as JSON. Every field is read, and a wrong one is refused with its place, its value and
 * the values that are expected, in one line. A saved graph reads back equal. Damaged texts never give a bad graph.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "base/philox.h"
#include "graph/graph.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/names.h"
#include "tests/support/scratch.h"
#include "tests/support/step_graph.h"

#define N_DRAWN 200

static struct lade_error error;

static int parse(const char *text, size_t n, lade_graph **ret_graph)
{
  error.text[0] = 0;
  return lade_graph_parse(text, n, &error, ret_graph);
}

static lade_graph *accepted(const char *text)
{
  lade_graph *graph = NULL;
  if (parse(text, strlen(text), &graph))
    fail_msg("%s", error.text);
  return graph;
}

/* Check that @text is refused with @status in one line that begins with "graph: " and has all @names, up to a NULL. */
static void refused_at(int status, const char *text, const char *const *names, int line)
{
  lade_graph *graph = NULL;
  assert_int_equal(parse(text, strlen(text), &graph), status);
  assert_null(graph);
  assert_int_equal(strncmp(error.text, "graph: ", 7), 0);
  names_verify(error.text, names, __FILE__, line);
}
#define refused(text, ...) refused_at(-EINVAL, text, NAMES(__VA_ARGS__), __LINE__)
#define damaged(text, ...) refused_at(-EBADMSG, text, NAMES(__VA_ARGS__), __LINE__)

/* A file of two storages, "x" and "h", and one op, with one more field each for the file, "x" and the op. */
#define FILE_OF(of_file, of_storage, of_op) \
  "{\"schema_version\":1" of_file ",\"storages\":[{\"name\":\"x\",\"bytes\":1024" of_storage "}," \
  "{\"name\":\"h\",\"bytes\":512}],\"ops\":[{\"name\":\"conv.2\"" of_op "}]}"
#define OP_FIELDS ",\"reads\":[],\"writes\":[0],\"ns\":1000"
#define GOOD FILE_OF("", "", OP_FIELDS)

/* ---- reading ---- */

static void a_file_of_required_fields_has_the_defaults(void **state)
{
  lade_graph *graph = accepted(GOOD);
  const struct graph_storage *x = graph->storages.items;
  const struct graph_op *op = graph->ops.items;
  assert_true(graph->is_closed && graph->has_addresses && graph->storages.n == 2 && graph->ops.n == 1);
  assert_string_equal(lade_graph_storage_name(graph, 1), "h");
  assert_string_equal(lade_graph_op_name(graph, 0), "conv.2");
  assert_true(x->bytes == 1024 && x->align == 64 && !x->is_given && !x->is_kept && !x->class_name);
  assert_int_equal(x->tier, LADE_DEVICE);
  assert_true(op->n_reads == 0 && op->n_writes == 1 && op->n_updates == 0 && op->ns == 1000 && !op->scratch_bytes);
  assert_true(!op->is_once && !op->draws && op->pass == LADE_PASS_FORWARD && op->queue == LADE_OP_ON_DEVICE);
  assert_int_equal(graph->kept.n, 0);
  lade_graph_destroy(graph);
}

static void every_field_is_read_in_any_order(void **state)
{
  lade_graph *graph = accepted(
      "{\"ops\":[{\"queue\":\"host\",\"pass\":\"update\",\"draws\":true,\"repeatable\":false,\"scratch_bytes\":9,"
      "\"ns\":1e6,\"updates\":[[0,0,4.0],[0,8,0]],\"writes\":[[1,2,3]],\"reads\":[1,0,1],\"name\":\"f\"},"
      "{\"name\":\"g\",\"reads\":[],\"writes\":[],\"ns\":0,\"pass\":\"backward\",\"queue\":\"device\","
      "\"repeatable\":true,\"draws\":false,\"updates\":[]}],\"keep\":[1,0,1],"
      "\"storages\":[{\"class\":\"c\",\"align\":4096,\"tier\":\"store\",\"given\":true,\"bytes\":16,\"name\":\"x\"},"
      "{\"name\":\"y\",\"bytes\":9007199254740992.0,\"given\":true,\"tier\":\"host\"}],\"addresses\":false,"
      "\"schema_version\":1}");
  const struct graph_storage *x = graph->storages.items, *y = x + 1;
  const struct graph_op *f = graph->ops.items, *g = f + 1;
  const struct graph_operand *operands = graph->operands.items;
  assert_true(!graph->has_addresses && graph->kept.n == 2 && graph->kept.items[0] == 1 && graph->kept.items[1] == 0);
  assert_true(x->is_given && x->is_kept && x->align == 4096 && x->tier == LADE_STORE && x->bytes == 16);
  assert_string_equal(graph_name(graph, x->class_name), "c");
  assert_true(y->is_given && y->tier == LADE_HOST && y->bytes == (uint64_t)1 << 53 && !y->class_name);
  assert_true(f->is_once && f->draws && f->pass == LADE_PASS_UPDATE && f->queue == LADE_OP_ON_HOST);
  assert_true(f->ns == 1000000 && f->scratch_bytes == 9 && f->n_reads == 3 && f->n_writes == 1 && f->n_updates == 2);
  assert_true(operands[0].storage == 1 && operands[1].storage == 0 && operands[2].storage == 1);
  assert_true(operands[3].offset == 2 && operands[3].bytes == 3 && operands[3].access == GRAPH_WRITES);
  assert_true(operands[4].offset == 0 && operands[4].bytes == 4 && operands[4].access == GRAPH_UPDATES);
  assert_true(operands[5].offset == 8 && operands[5].bytes == 8);
  assert_true(!g->is_once && !g->draws && g->pass == LADE_PASS_BACKWARD && g->queue == LADE_OP_ON_DEVICE);
  lade_graph_destroy(graph);
}

static void fields_of_the_file_are_checked(void **state)
{
  refused("{}", "schema_version is missing", "expected 1");
  refused("{\"schema_version\":2,\"later\":1}", "schema_version is 2", "expected 1");
  refused("{\"schema_version\":1.0}", "schema_version is 1.0", "expected 1");
  refused("{\"schema_version\":\"1\"}", "schema_version is \"1\"");
  refused("{\"schema_version\":1,\"ops\":[]}", "storages is missing", "list");
  refused("{\"schema_version\":1,\"storages\":[]}", "ops is missing", "list");
  refused("{\"schema_version\":1,\"storages\":{},\"ops\":[]}", "storages is {}", "list");
  refused("{\"schema_version\":1,\"storages\":[],\"ops\":null}", "ops is null", "list");
  refused("{\"schema_version\":1,\"storages\":[7],\"ops\":[]}", "storages[0] is 7", "object");
  refused("{\"schema_version\":1,\"storages\":[],\"ops\":[[\"\\u0007\"]]}", "ops[0] is [\"\\u0007\"]", "object");
  damaged("[1]", "[1]", "object", "schema_version");
  refused(FILE_OF(",\"tensors\":[]", "", OP_FIELDS), "unknown field \"tensors\"", "storages, ops, keep");
  refused(FILE_OF(",\"a\\nb\":[]", "", OP_FIELDS), "unknown field \"a?b\"");
  refused(FILE_OF(",\"addresses\":0", "", OP_FIELDS), "addresses is 0", "true or false");
  refused(FILE_OF(",\"addresses\":null", "", OP_FIELDS), "addresses is null", "true or false");
  refused(FILE_OF(",\"keep\":1", "", OP_FIELDS), "keep is 1", "list");
  refused(FILE_OF(",\"keep\":[0,2]", "", OP_FIELDS), "keep[1] is 2", "below 2");
  refused(FILE_OF(",\"keep\":[-1]", "", OP_FIELDS), "keep[0] is -1", "below 2");
  refused(FILE_OF(",\"keep\":[\"x\"]", "", OP_FIELDS), "keep[0] is \"x\"", "index");
  refused(FILE_OF(",\"keep\":[4294967296]", "", OP_FIELDS), "keep[0] is 4294967296", "index");
  refused(FILE_OF(",\"keep\":[1]", "", OP_FIELDS), "storages[1] \"h\"", "kept", "writes");
}

static void fields_of_a_storage_are_checked(void **state)
{
#define STORAGE(fields) "{\"schema_version\":1,\"ops\":[],\"storages\":[{" fields "}]}"
  refused(STORAGE(""), "storages[0]", "name is missing", "string");
  refused(STORAGE("\"bytes\":1"), "storages[0]", "name is missing");
  refused(STORAGE("\"name\":7"), "storages[0]", "name is 7", "string");
  refused(STORAGE("\"name\":\"\",\"bytes\":1"), "storages[0]", "name is empty");
  refused(STORAGE("\"name\":\"x\""), "storages[0] \"x\"", "bytes is missing", "whole number");
  const char *const numbers[] = {"-1", "0.5", "1e300", "-1e300", "9007199254740994.0", "null", "true", "\"1\"", "[1]"};
  const char *const fields[] = {"bytes", "align"};
  for (size_t i = 0; i < LADE_COUNT(numbers) * LADE_COUNT(fields); i++) {
    const char *const field = fields[i % 2];
    char text[256], place[32];
    snprintf(text, sizeof(text), STORAGE("\"name\":\"x\",%s\"%s\":%s"), i % 2 ? "\"bytes\":1," : "", field,
             numbers[i / 2]);
    snprintf(place, sizeof(place), "%s is", field);
    refused(text, "storages[0] \"x\"", place, "whole number from 0 up");
  }
  refused(FILE_OF("", ",\"align\":3", OP_FIELDS), "storages[0] \"x\"", "align is 3", "power of two");
  refused(FILE_OF("", ",\"given\":1", OP_FIELDS), "storages[0] \"x\"", "given is 1", "true or false");
  refused(FILE_OF("", ",\"tier\":\"gpu\"", OP_FIELDS), "tier is \"gpu\"", "\"device\" or \"host\" or \"store\"");
  refused(FILE_OF("", ",\"tier\":1", OP_FIELDS), "tier is 1", "\"device\"");
  refused(FILE_OF("", ",\"tier\":\"host\"", OP_FIELDS), "storages[0] \"x\"", "tier is host", "given");
  refused(FILE_OF("", ",\"class\":null", OP_FIELDS), "storages[0] \"x\"", "class is null", "string");
  refused(FILE_OF("", ",\"class\":\"\"", OP_FIELDS), "storages[0] \"x\"", "class is empty");
  refused(FILE_OF("", ",\"size\":1", OP_FIELDS), "storages[0] \"x\"", "unknown field \"size\"", "bytes, given");
  refused(FILE_OF("", "},{\"name\":\"big\",\"bytes\":1152921504606846976", OP_FIELDS), "storages[1] \"big\"", "2^60");
}

static void fields_of_an_op_are_checked(void **state)
{
  refused(FILE_OF("", "", ""), "ops[0] \"conv.2\"", "reads is missing", "list");
  refused(FILE_OF("", "", ",\"reads\":[]"), "ops[0] \"conv.2\"", "writes is missing", "list");
  refused(FILE_OF("", "", ",\"reads\":[],\"writes\":[]"), "ops[0] \"conv.2\"", "ns is missing");
  refused(FILE_OF("", "", ",\"reads\":[],\"writes\":[],\"ns\":-5"), "ops[0] \"conv.2\"", "ns is -5", "from 0 up");
  refused(FILE_OF("", "", ",\"reads\":[],\"writes\":[],\"ns\":0.5"), "ops[0] \"conv.2\"", "ns is 0.5", "whole number");
  refused(FILE_OF("", "", ",\"reads\":[],\"writes\":[],\"ns\":1125899906842625"), "ops[0] \"conv.2\"", "2^50");
  refused(FILE_OF("", "", OP_FIELDS ",\"scratch_bytes\":-1"), "scratch_bytes is -1", "from 0 up");
  refused(FILE_OF("", "", OP_FIELDS ",\"repeatable\":\"no\""), "repeatable is \"no\"", "true or false");
  refused(FILE_OF("", "", OP_FIELDS ",\"draws\":0"), "draws is 0", "true or false");
  refused(FILE_OF("", "", OP_FIELDS ",\"pass\":\"eval\""), "pass is \"eval\"", "\"backward\" or \"update\"");
  refused(FILE_OF("", "", OP_FIELDS ",\"queue\":\"io\""), "queue is \"io\"", "\"device\" or \"host\"");
  refused(FILE_OF("", "", OP_FIELDS ",\"is_once\":true"), "ops[0] \"conv.2\"", "unknown field \"is_once\"",
          "repeatable");
  refused(FILE_OF("", "", OP_FIELDS ",\"updates\":1"), "updates is 1", "list");
  refused(FILE_OF("", "", OP_FIELDS ",\"updates\":[0]"), "ops[0] \"conv.2\"", "storage 0 \"x\"", "twice");
  refused(FILE_OF("", "", OP_FIELDS "},{\"name\":\"a\\nb\",\"reads\":[1],\"writes\":[],\"ns\":1"), "ops[1] \"a?b\"",
          "reads storage 1 \"h\"");
}

static void operands_are_storages_or_ranges_of_them(void **state)
{
  static const char *const malformed[] = {"\"x\"", "null", "1.0", "true", "[]", "[0]", "[0,0]", "[0,0,1,1]", "{}",
                                          "[0,-1,1]", "[0,0,-1]", "[0,0.5,1]", "[\"x\",0,1]", "[0,0,null]",
                                          "4294967296", "[-9223372036854775808,0,1]"};
  for (size_t i = 0; i < LADE_COUNT(malformed); i++) {
    char text[256], value[64];
    snprintf(text, sizeof(text), FILE_OF("", "", ",\"writes\":[0],\"ns\":1,\"reads\":[1,%s]"), malformed[i]);
    snprintf(value, sizeof(value), "reads[1] is %s", malformed[i]);
    refused(text, "ops[0] \"conv.2\"", value, "[storage, offset, bytes]");
  }
  refused(FILE_OF("", "", ",\"reads\":[17],\"writes\":[],\"ns\":1"), "ops[0] \"conv.2\"", "reads[0] is 17", "0 to 1");
  refused(FILE_OF("", "", ",\"reads\":[],\"writes\":[0,-1],\"ns\":1"), "writes[1] is -1", "0 to 1");
  refused(FILE_OF("", "", ",\"reads\":[],\"writes\":[[2,0,1]],\"ns\":1"), "writes[0] is 2", "0 to 1");
  refused(FILE_OF("", "", ",\"reads\":[],\"writes\":[[1,500,13]],\"ns\":1"), "writes[0] is 13 bytes", "offset 500",
          "storage 1 \"h\"", "512 bytes");
  refused("{\"schema_version\":1,\"storages\":[],\"ops\":[{\"name\":\"f\",\"reads\":[0],\"writes\":[],\"ns\":1}]}",
          "ops[0] \"f\"", "reads[0] is 0", "none");
}

static void texts_that_are_no_json_are_refused_with_their_place(void **state)
{
  damaged("", "line 1", "not JSON");
  damaged("{\n\"a\": \x01}", "line 2", "not JSON");
  damaged("{\n\n\"a\":\"\xff\"}", "line 3", "column", "not JSON", "0xff");
  damaged("{\"a\":1,\"a\":1}", "line 1, column", "duplicate");
  damaged("{\"schema_version\":1}}", "line 1", "not JSON");
  damaged("{\"schema_version\":99999999999999999999}", "line 1", "too big integer");
  damaged("{\"schema_version\":NaN}", "not JSON");
  damaged("{\"schema_version\":1e999}", "not JSON");
  damaged("{\"a\\u0000\":1}", "not JSON");
  damaged("{\"a\":\"\\ud800\"}", "not JSON");
  damaged("{\"storages\":[{\"bytes\":1,\"bytes\":2}]}", "duplicate");
  const size_t n = 1 << 20;
  char *deep = malloc(n);
  lade_graph *graph = NULL;
  assert_non_null(deep);
  memset(deep, '[', n);
  assert_int_equal(parse(deep, n, &graph), -EBADMSG);
  assert_names(error.text, "graph: line 1", "depth");
  free(deep);
  for (size_t i = 0; i + 1 < sizeof(GOOD); i++) { /* every truncation */
    char *part = strndup(GOOD, i); /* of its own size, so that the address sanitizer finds a read past its end */
    assert_int_equal(parse(part, i, &graph), -EBADMSG);
    free(part);
  }
}

/* Random damage to a good text is refused in one line, or gives a graph that reads back equal. */
static void damaged_texts_never_give_a_bad_graph(void **state)
{
  char *good;
  size_t n, n_accepted = 0;
  lade_graph *graph = step_graph_draw(7), *again = NULL;
  assert_int_equal(lade_graph_write(graph, &error, &good, &n), 0);
  lade_graph_destroy(graph);
  for (uint32_t i = 0; i < 1000; i++) {
    char *text = strndup(good, n), *copy;
    size_t n_copy;
    for (uint32_t j = 0; j <= i % 3; j++) {
      const uint32_t word = lade_philox_word(5, i, j, 0);
      text[word % n] = "0123456789-+.eE,:\"{}[]nul "[(word >> 16) % 27];
    }
    if (parse(text, n, &graph) == 0) {
      assert_int_equal(lade_graph_write(graph, &error, &copy, &n_copy), 0);
      assert_int_equal(parse(copy, n_copy, &again), 0);
      step_graphs_compare(graph, again);
      lade_graph_destroy(graph);
      lade_graph_destroy(again);
      free(copy);
      n_accepted++;
    }
    else
      assert_true((error.code == -EINVAL || error.code == -EBADMSG) && strncmp(error.text, "graph: ", 7) == 0 &&
                  !strchr(error.text, '\n'));
    free(text);
  }
  free(good);
  assert_true(n_accepted > 0 && n_accepted < 1000);
}

/* ---- writing ---- */

static void the_text_of_a_graph_has_a_line_for_each_storage_and_op(void **state)
{
  static const char text[] =
      "{\"schema_version\":1,\"addresses\":false,\n"
      "\"storages\":[\n"
      "{\"name\":\"a\\\"\\\\\\u000a\x7f\xc3\xa9\",\"bytes\":16,\"given\":true,\"tier\":\"host\",\"align\":256,"
      "\"class\":\"c\"},\n"
      "{\"name\":\"b\",\"bytes\":8}\n"
      "],\n"
      "\"ops\":[\n"
      "{\"name\":\"f\",\"reads\":[0,[0,2,4]],\"writes\":[1],\"ns\":7},\n"
      "{\"name\":\"g\",\"reads\":[],\"writes\":[[1,0,4]],\"updates\":[0],\"ns\":8,\"scratch_bytes\":9,"
      "\"repeatable\":false,\"draws\":true,\"pass\":\"update\",\"queue\":\"host\"}\n"
      "],\n"
      "\"keep\":[1,0]}\n";
  lade_graph *graph = accepted(text);
  char *written;
  size_t n;
  assert_int_equal(lade_graph_write(graph, &error, &written, &n), 0);
  assert_int_equal(n, strlen(text));
  assert_memory_equal(written, text, n);
  free(written);
  lade_graph_destroy(graph);
}

static void drawn_graphs_read_back_equal_from_their_files(void **state)
{
  for (uint32_t i = 0; i < N_DRAWN; i++) {
    lade_graph *graph = step_graph_draw(i), *loaded = NULL;
    const char *path = in_scratch("graph.json");
    if (lade_graph_save(graph, path, &error) || lade_graph_load(path, &error, &loaded))
      fail_msg("%s", error.text);
    step_graphs_compare(graph, loaded);
    lade_graph_destroy(loaded);
    lade_graph_destroy(graph);
  }
}

static void open_graphs_and_places_that_take_no_file_are_refused(void **state)
{
  lade_graph *graph = NULL;
  assert_int_equal(lade_graph_create(&graph), 0);
  assert_int_equal(lade_graph_save(graph, in_scratch("open.json"), &error), -EINVAL);
  assert_names(error.text, "open.json", "lade_graph_close");
  assert_int_equal(access(in_scratch("open.json"), F_OK), -1);
  assert_int_equal(lade_graph_close(graph, &error), 0);
  assert_int_equal(lade_graph_save(graph, in_scratch("none/graph.json"), &error), -ENOENT);
  assert_names(error.text, "none", "No such file");
  assert_int_equal(lade_graph_save(graph, scratch, &error), -EISDIR);
  lade_graph_destroy(graph);
}

/* ---- files ---- */

static void files_that_cannot_be_read_are_refused(void **state)
{
  lade_graph *graph = NULL;
  assert_int_equal(lade_graph_load("/nonexistent/graph.json", &error, &graph), -ENOENT);
  assert_names(error.text, "/nonexistent/graph.json");
  assert_int_equal(lade_graph_load(scratch, &error, &graph), -EINVAL);
  assert_names(error.text, "not a regular file");
  assert_int_equal(lade_file_replace(in_scratch("bad.json"), "{\"a\"", 4, &error), 0);
  assert_int_equal(lade_graph_load(in_scratch("bad.json"), &error, &graph), -EBADMSG);
  assert_names(error.text, "bad.json: line 1", "not JSON");
  assert_null(graph);
}

/* Write @text into the pipe from a child process, in pieces, with a pause after the first. */
static pid_t text_feed(int fd, const char *text)
{
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child)
    return child;
  for (size_t n = strlen(text), i = 0; i < n; i += LADE_MIN(n - i, 4096)) {
    if (write(fd, text + i, LADE_MIN(n - i, 4096)) < 0)
      _exit(1);
    usleep(i ? 0 : 200000); /* longer than lade_retry waits in all */
  }
  _exit(0);
}

static void standard_input_is_read_to_its_end_from_a_pipe(void **state)
{
  static char text[200000];
  const int input = dup(STDIN_FILENO);
  memset(text, ' ', sizeof(text) - 1);
  memcpy(text + sizeof(text) - sizeof(GOOD), GOOD, sizeof(GOOD) - 1);
  for (int flags = 0; flags <= O_NONBLOCK; flags += O_NONBLOCK) {
    lade_graph *graph = NULL, *expected = accepted(GOOD);
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = text_feed(ends[1], text);
    close(ends[1]);
    assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    assert_int_equal(fcntl(STDIN_FILENO, F_SETFL, flags), 0);
    if (lade_graph_load("-", &error, &graph))
      fail_msg("%s", error.text);
    step_graphs_compare(graph, expected);
    close(ends[0]);
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    assert_int_equal(lade_graph_load("-", &error, &graph), -EBADMSG); /* at its end */
    assert_names(error.text, "standard input: line 1", "not JSON");
    lade_graph_destroy(graph);
    lade_graph_destroy(expected);
  }
  char *read = NULL;
  size_t n;
  const int fd = open("/proc/self/exe", O_RDONLY);
  assert_int_equal(lade_stream_load(fd, "stream", 100, &error, &read, &n), -EINVAL);
  assert_names(error.text, "stream", "100 bytes");
  close(fd);
  assert_int_equal(lade_stream_load(fd, "stream", 100, &error, &read, &n), -EBADF);
  assert_null(read);
  assert_true(dup2(input, STDIN_FILENO) == STDIN_FILENO && close(input) == 0);
}

/* ---- memory ---- */

static void without_memory_nothing_is_read_or_written(void **state)
{
  char *text = NULL, *again = NULL;
  size_t n_bytes, n_again;
  lade_graph *graph = step_graph_draw(3);
  int rc = -ENOMEM, n;
  for (n = 1; rc; n++) {
    allocations_left = n;
    rc = lade_graph_write(graph, &error, &text, &n_bytes);
    allocations_left = -1;
    assert_true(rc == 0 || (rc == -ENOMEM && !text && error.text[0]));
  }
  assert_true(n > 3);
  assert_int_equal(lade_graph_save(graph, in_scratch("graph.json"), &error), 0);
  allocations_left = 1;
  assert_int_equal(lade_graph_save(graph, in_scratch("graph.json"), &error), -ENOMEM);
  allocations_left = -1;
  lade_graph_destroy(graph);
  json_set_alloc_funcs(__wrap_malloc, free);
  for (n = 1, rc = -ENOMEM; rc; n++) {
    graph = NULL;
    allocations_left = n;
    rc = lade_graph_load(in_scratch("graph.json"), &error, &graph);
    allocations_left = -1;
    /* jansson's lexer reports a failed allocation as an invalid token */
    assert_true(rc == 0 || ((rc == -ENOMEM || rc == -EBADMSG) && !graph && error.text[0]));
  }
  json_set_alloc_funcs(malloc, free);
  assert_true(n > 100);
  assert_int_equal(lade_graph_write(graph, &error, &again, &n_again), 0);
  assert_int_equal(n_again, n_bytes);
  assert_memory_equal(again, text, n_bytes);
  lade_graph_destroy(graph);
  free(again);
  free(text);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_file_of_required_fields_has_the_defaults),
      cmocka_unit_test(every_field_is_read_in_any_order),
      cmocka_unit_test(fields_of_the_file_are_checked),
      cmocka_unit_test(fields_of_a_storage_are_checked),
      cmocka_unit_test(fields_of_an_op_are_checked),
      cmocka_unit_test(operands_are_storages_or_ranges_of_them),
      cmocka_unit_test(texts_that_are_no_json_are_refused_with_their_place),
      cmocka_unit_test(damaged_texts_never_give_a_bad_graph),
      cmocka_unit_test(the_text_of_a_graph_has_a_line_for_each_storage_and_op),
      cmocka_unit_test(drawn_graphs_read_back_equal_from_their_files),
      cmocka_unit_test(open_graphs_and_places_that_take_no_file_are_refused),
      cmocka_unit_test(files_that_cannot_be_read_are_refused),
      cmocka_unit_test(standard_input_is_read_to_its_end_from_a_pipe),
      cmocka_unit_test(without_memory_nothing_is_read_or_written),
  };
  return cmocka_run_group_tests(tests, scratch_setup_in_memory, scratch_teardown);
}
