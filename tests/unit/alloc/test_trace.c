/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces: lifetimes and calls become the same events, in every format. Invalid input is refused with its line or entry
 * and the reason. Snapshots are made here, opcode by opcode, and by the cache itself; the public ones are read if the
 * data folder exists.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "alloc/trace.h"
#include "base/file.h"
#include "lade/cache.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/names.h"
#include "tests/support/scratch.h"

#define HEAD "id,lower,upper,size\n"

static struct lade_error error;

static int read_text(const char *text, size_t n, struct lade_trace *ret_trace)
{
  error.text[0] = 0;
  return lade_trace_read("t", text, n, &error, ret_trace);
}

static struct lade_trace accepted(const char *text)
{
  struct lade_trace trace = {0};
  if (read_text(text, strlen(text), &trace))
    fail_msg("%s", error.text);
  return trace;
}

/* @text is refused in one line that begins with the place and has all @names, which end with NULL. */
static void refused(const char *text, const char *place, const char *const *names)
{
  struct lade_trace trace = {0};
  char start[64];
  assert_int_equal(read_text(text, strlen(text), &trace), -EBADMSG);
  assert_null(trace.blocks.items);
  snprintf(start, sizeof(start), "t: %s: ", place);
  if (strncmp(error.text, start, strlen(start)) != 0)
    fail_msg("'%s' does not begin with '%s'", error.text, start);
  names_verify(error.text, names, __FILE__, __LINE__);
}

/* Check the events, written as text: a block's number, with - before it at its end. */
static void events_are(const struct lade_trace *trace, const char *expected)
{
  char text[256] = "";
  for (int i = 0; i < trace->events.n; i++)
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s%d", i ? " " : "",
             trace->events.items[i].is_free ? "-" : "", trace->events.items[i].block);
  assert_string_equal(text, expected);
}

/* ---- CSV ---- */

static void test_lifetimes_become_calls_with_ends_before_beginnings(void **state)
{
  struct lade_trace trace = accepted(HEAD "a,0,4,10\nb1,4,8,20\r\nlonger id,2,4,5\nd,0,9,1");
  events_are(&trace, "0 3 2 -0 -2 1 -1 -3");
  assert_int_equal(trace.peak_live_bytes, 21);
  assert_int_equal(trace.peak_event, 5);
  assert_int_equal(trace.n_queues, 1);
  assert_false(trace.has_recorded);
  assert_string_equal(trace.place_word, "line");
  assert_int_equal(trace.blocks.items[2].place, 4);
  assert_int_equal(trace.blocks.items[2].first, 2);
  assert_int_equal(trace.blocks.items[2].last, 4);
  lade_trace_destroy(&trace);
}

static void test_the_byte_order_mark_of_a_spreadsheet_is_no_letter(void **state)
{
  struct lade_trace trace = accepted("\xEF\xBB\xBF" HEAD "a,0,4,10\n");
  assert_int_equal(trace.peak_live_bytes, 10);
  assert_int_equal(trace.blocks.items[0].place, 2);
  lade_trace_destroy(&trace);
  trace = accepted("\xEF\xBB\xBFlade-trace 1\nalloc 5 1 100 0\n");
  assert_int_equal(trace.peak_live_bytes, 100);
  lade_trace_destroy(&trace);
  refused("\xEF\xBB\xBF", "there is nothing in it", NAMES("id,lower,upper,size"));
  refused("\xEF\xBB\xBF\xEF\xBB\xBF" HEAD "a,0,4,10\n", "line 1", NAMES("begins no trace"));
}

static void test_bad_lines_of_a_csv_are_refused_with_their_reason(void **state)
{
  refused("", "there is nothing in it", NAMES("id,lower,upper,size"));
  refused("\n", "there is nothing in it", NAMES("id,lower,upper,size"));
  refused("\n" HEAD, "line 1 is empty", NAMES("id,lower,upper,size"));
  refused("1,2,3,4\n", "line 1", NAMES("'1,2,3,4'"));
  refused("id,start,end,size\n", "line 1", NAMES("id,lower,upper,size"));
  refused(HEAD "1,0,4,-5\n", "line 2", NAMES("size", "'-5'"));
  refused(HEAD "1,-1,4,5\n", "line 2", NAMES("lower", "'-1'"));
  refused(HEAD "1,0,4,5\n2,0, 4,5\n", "line 3", NAMES("upper", "' 4'"));
  refused(HEAD "1,0,+4,5\n", "line 2", NAMES("upper", "'+4'"));
  refused(HEAD "1,0,4,0x5\n", "line 2", NAMES("size", "'0x5'"));
  refused(HEAD "1,0,4,5.0\n", "line 2", NAMES("size", "'5.0'"));
  refused(HEAD "1,0,4,\n", "line 2", NAMES("size", "''"));
  refused(HEAD "1,0,4,0\n", "line 2", NAMES("size", "0", "1152921504606846976"));
  refused(HEAD "1,0,4,1152921504606846977\n", "line 2", NAMES("size", "1152921504606846977"));
  refused(HEAD "1,0,4,99999999999999999999999999\n", "line 2", NAMES("size", "999999999999999999999999"));
  refused(HEAD "1,0,18446744073709551617,9\n", "line 2", NAMES("upper", "18446744073709551617"));
  refused(HEAD "1,0,1,1152921504606846976\n2,1,2,1\n", "line 3", NAMES("size 1", "2^60"));
  refused(HEAD "1,4,4,5\n", "line 2", NAMES("from 4 to 4"));
  refused(HEAD "1,5,4,5\n", "line 2", NAMES("from 5 to 4"));
  refused(HEAD "1,0,4\n", "line 2", NAMES("fewer", "fields"));
  refused(HEAD "\n", "line 2", NAMES("fewer", "fields"));
  refused(HEAD "1,0,4,5,6\n", "line 2", NAMES("more", "fields"));
  refused(HEAD ",0,4,5\n", "line 2", NAMES("id", "''"));
  refused(HEAD "b\x1b[31m\n,0,4,5\n", "line 2", NAMES("fewer"));
  refused(HEAD "1,0,4\x1b[31m,5\n", "line 2", NAMES("upper", "'4?[31m'"));
  refused(HEAD "a\t,0,4,5\n", "line 2", NAMES("id", "'a?'", "1 to 64"));
  refused(HEAD "1,0,4,5\n\x7f,0,4,5\n", "line 3", NAMES("id", "'?'"));
}

static void test_an_id_that_stands_twice_is_refused_whether_it_overlaps_or_not(void **state)
{
  refused(HEAD "7,0,4,5\n8,0,1,1\n7,2,6,5\n", "line 4", NAMES("id 7", "line 2"));
  refused(HEAD "7,0,4,5\n7,4,6,5\n", "line 3", NAMES("id 7", "line 2"));
  /* The first in the file's order, with the nearest before it. */
  refused(HEAD "a,0,1,1\nb,0,1,1\nb,1,2,1\na,1,2,1\nb,2,3,1\n", "line 4", NAMES("id b", "line 3"));
}

static void test_a_trace_without_an_allocation_is_refused(void **state)
{
  struct lade_trace trace = {0};
  assert_int_equal(read_text(HEAD, strlen(HEAD), &trace), -EBADMSG);
  assert_names(error.text, "t:", "allocation");
  assert_int_equal(read_text("lade-trace 1\n# nothing\n", 23, &trace), -EBADMSG);
  assert_names(error.text, "t:", "allocation");
}

static void test_a_zero_byte_in_a_text_is_a_letter_that_does_not_belong_there(void **state)
{
  static const char text[] = HEAD "1,0,4\0,5\n", id[] = HEAD "1\0,0,4,5\n";
  struct lade_trace trace = {0};
  assert_int_equal(read_text(text, sizeof(text) - 1, &trace), -EBADMSG);
  assert_names(error.text, "t: line 2:", "upper", "'4?'");
  assert_int_equal(read_text(id, sizeof(id) - 1, &trace), -EBADMSG);
  assert_names(error.text, "t: line 2:", "id", "'1?'");
}

/* ---- lines ---- */

static void test_calls_in_lines_keep_their_order_and_ids_may_come_again(void **state)
{
  struct lade_trace trace = accepted("lade-trace 1\n# a comment\nalloc 5 1 100 0\nalloc 5 2 50 3\nfree 6 1\n"
                                     "alloc 6 1 10 61\nfree 6 2\n");
  events_are(&trace, "0 1 -0 2 -1");
  assert_int_equal(trace.peak_live_bytes, 150);
  assert_int_equal(trace.n_queues, 62);
  assert_int_equal(trace.blocks.items[1].queue, 3);
  assert_int_equal(trace.blocks.items[2].place, 6);
  assert_int_equal(trace.blocks.items[2].first, 3);
  assert_int_equal(trace.blocks.items[2].last, 5); /* its lifetime has no end */
  assert_true(trace.blocks.items[2].upper == LADE_TRACE_OPEN);
  assert_int_equal(trace.events.items[2].time, 6);
  lade_trace_destroy(&trace);
}

static void test_bad_lines_of_calls_are_refused_with_their_reason(void **state)
{
  refused("lade-trace 2\n", "line 1", NAMES("lade-trace 1"));
  refused("lade-trace \n", "line 1", NAMES("lade-trace 1"));
  refused("lade-trace 1\nmalloc 0 1 2 0\n", "line 2", NAMES("'malloc'", "alloc", "free"));
  refused("lade-trace 1\n\n", "line 2", NAMES("''", "alloc", "free"));
  refused("lade-trace 1\nalloc 0 1 2\n", "line 2", NAMES("fewer", "alloc TIME ID BYTES QUEUE"));
  refused("lade-trace 1\nalloc 0 1 2 0 0\n", "line 2", NAMES("more", "alloc"));
  refused("lade-trace 1\nfree 0\n", "line 2", NAMES("fewer", "free TIME ID"));
  refused("lade-trace 1\nfree 0 1 1\n", "line 2", NAMES("more", "free"));
  refused("lade-trace 1\nalloc 0 1 0 0\n", "line 2", NAMES("size", "0"));
  refused("lade-trace 1\nalloc 0 1 -1 0\n", "line 2", NAMES("size", "'-1'"));
  refused("lade-trace 1\nalloc 0  1 1 0\n", "line 2", NAMES("more", "alloc"));
  refused("lade-trace 1\nalloc 0 1 1 62\n", "line 2", NAMES("queue", "62", "0 to 61"));
  refused("lade-trace 1\nalloc 9 1 1 0\nalloc 8 2 1 0\n", "line 3", NAMES("time", "from 9 to 8"));
  refused("lade-trace 1\nalloc 0 1 1 0\nalloc 0 1 1 0\n", "line 3", NAMES("id 1", "live", "line 2"));
  refused("lade-trace 1\nalloc 0 1 1 0\nfree 0 2\n", "line 3", NAMES("id 2"));
  refused("lade-trace 1\nalloc 0 1 1 0\nfree 0 1\nfree 0 1\n", "line 4", NAMES("id 1", "freed", "line 3"));
  refused("lade-trace 1\nalloc 0 1 1152921504606846976 0\nalloc 0 2 1 0\n", "line 3", NAMES("2^60"));
}

/* ---- snapshots ---- */

/* A pickle under construction. */
static struct {
  char bytes[16384];
  size_t n;
} made;

static void ops(const char *bytes, size_t n)
{
  assert_true(made.n + n <= sizeof(made.bytes));
  memcpy(made.bytes + made.n, bytes, n);
  made.n += n;
}

#define OPS(literal) ops(literal, sizeof(literal) - 1)

static void text(const char *value)
{
  char head[2] = {'\x8c', (char)strlen(value)};
  ops(head, 2);
  ops(value, strlen(value));
}

static void number(uint64_t value)
{
  char bytes[11] = {'\x8a', 9};
  for (int i = 0; i < 8; i++)
    bytes[2 + i] = (char)(value >> (8 * i));
  ops(bytes, sizeof(bytes));
}

static void pair(const char *key, uint64_t value)
{
  text(key);
  number(value);
}

struct event {
  const char *action;
  uint64_t address, bytes, stream;
};

struct old_block {
  const char *state;
  uint64_t bytes, requested_bytes;
  int64_t skipped_bytes; /* between the previous block and this one */
};

static void event_make(const struct event *event)
{
  OPS("}(");
  text("action");
  text(event->action);
  pair("addr", event->address);
  pair("size", event->bytes);
  pair("stream", event->stream);
  pair("time_us", 1000);
  OPS("u");
}

/* Make a snapshot of one segment at address 4096, with contiguous blocks, and one history. Both end with zeros. */
static void snapshot_make(const struct event *events, const struct old_block *blocks)
{
  uint64_t total_bytes = 0, at = 4096;
  for (const struct old_block *block = blocks; block->state; block++)
    total_bytes += block->bytes;
  made.n = 0;
  OPS("\x80\x04}(");
  text("segments");
  OPS("](}(");
  pair("address", at);
  pair("total_size", total_bytes);
  pair("stream", 0);
  text("blocks");
  OPS("](");
  for (const struct old_block *block = blocks; block->state; at += block->bytes, block++) {
    OPS("}(");
    at += (uint64_t)block->skipped_bytes;
    pair("address", at);
    pair("size", block->bytes);
    pair("requested_size", block->requested_bytes);
    text("state");
    text(block->state);
    OPS("u");
  }
  OPS("eue");
  text("device_traces");
  OPS("](](");
  for (const struct event *event = events; event->action; event++)
    event_make(event);
  OPS("eeu.");
  made.bytes[made.n] = 0;
}

static const struct old_block no_blocks[] = {{0}};

static void snapshot_refused(const struct event *events, const struct old_block *blocks, const char *words)
{
  struct lade_trace trace = {0};
  snapshot_make(events, blocks);
  assert_int_equal(read_text(made.bytes, made.n, &trace), -EBADMSG);
  if (!strstr(error.text, words) || strncmp(error.text, "t: ", 3) != 0)
    fail_msg("'%s' does not say '%s'", error.text, words);
}

static void test_a_snapshot_begins_with_the_blocks_that_are_older_than_its_history(void **state)
{
  const struct event events[] = {
      {"segment_alloc", 0x100000, 2048, 0}, {"alloc", 0x100000, 700, 7},  {"free_requested", 5120, 900, 0},
      {"free_completed", 5120, 900, 0},     {"alloc", 0x100400, 1000, 0}, {"free_requested", 0x100000, 700, 7},
      {"segment_free", 0x200000, 8192, 0},  {"snapshot", 0, 0, 0},        {"free_completed", 0x100000, 700, 7}, {0}};
  const struct old_block blocks[] = {{"active_allocated", 1024, 1000}, {"inactive", 1024, 9999},
                                     {"active_pending_free", 512, 0}, {0}};
  struct lade_trace trace = {0};
  snapshot_make(events, blocks);
  if (read_text(made.bytes, made.n, &trace))
    fail_msg("%s", error.text);
  /* At 4096 and 6144 from the segments, at 5120 because it is freed; then the two of the history. */
  events_are(&trace, "0 1 2 3 -1 4 -3");
  assert_int_equal(trace.blocks.items[0].bytes, 1000);
  assert_int_equal(trace.blocks.items[1].bytes, 900);
  assert_int_equal(trace.blocks.items[2].bytes, 512);
  assert_int_equal(trace.blocks.items[2].place, 0);
  assert_int_equal(trace.blocks.items[3].place, 2);
  assert_int_equal(trace.blocks.items[3].queue, 0); /* streams in the order in which they appear */
  assert_int_equal(trace.blocks.items[0].queue, 1);
  assert_int_equal(trace.n_queues, 2);
  assert_int_equal(trace.peak_live_bytes, 1000 + 512 + 700 + 1000);
  assert_string_equal(trace.place_word, "entry");
  /* 2560 at the end, 8192 more before the last segment was released. */
  assert_true(trace.has_recorded);
  assert_int_equal(trace.recorded_reserved_bytes, 2560 + 8192);
  lade_trace_destroy(&trace);
}

static void test_snapshots_that_contradict_themselves_are_refused(void **state)
{
  const struct event twice[] = {{"alloc", 4096, 8, 0}, {"alloc", 4096, 8, 0}, {0}};
  snapshot_refused(twice, no_blocks, "t: entry 2: address 0x1000 is live since entry 1");
  const struct event freed[] = {{"free_completed", 4096, 8, 0}, {"snapshot", 0, 0, 0}, {"free_completed", 4096, 8, 0},
                                {0}};
  snapshot_refused(freed, no_blocks, "t: entry 3: address 0x1000 was freed in entry 1 already");
  const struct event meeting[] = {{"alloc", 4096, 1024, 0}, {"alloc", 5000, 8, 0}, {0}};
  snapshot_refused(meeting, no_blocks, "t: the block of entry 2 at 0x1388 overlaps the block of entry 1 at 0x1000, ");
  const struct event older[] = {{"alloc", 5000, 8, 0}, {0}};
  const struct old_block live[] = {{"active_allocated", 1024, 1024}, {0}};
  snapshot_refused(older, live, "t: the block of entry 1 at 0x1388 overlaps the block from before the history at");
  const struct old_block same[] = {{"inactive", 1024, 0}, {"active_allocated", 8, 8, -1024}, {0}};
  snapshot_refused(older, same, "t: segment 1: the block of 8 bytes at 0x1000 is not between");
  const struct old_block past[] = {{"inactive", 1024, 0}, {"active_allocated", 8, 8, 1}, {0}};
  snapshot_refused(older, past, "t: segment 1: the block of 8 bytes at 0x1401 is not between");
  const struct event negative[] = {{"alloc", 5000, 8, 0}, {"segment_free", 0, 8, 0}, {"segment_alloc", 0, 16, 0}, {0}};
  const struct old_block small[] = {{"inactive", 8, 0}, {0}};
  snapshot_refused(negative, small, "gives back more segments than there were");
}

static void test_bad_fields_of_a_snapshot_are_refused_with_their_entry(void **state)
{
  snapshot_refused((struct event[]){{"alloc", 4096, 0, 0}, {0}}, no_blocks, "t: entry 1: size: expected a whole");
  snapshot_refused((struct event[]){{"alloc", 4096, UINT64_MAX, 0}, {0}}, no_blocks, "t: entry 1: size: expected");
  snapshot_refused((struct event[]){{"alloc", (uint64_t)1 << 62, 1, 0}, {0}}, no_blocks, "t: entry 1: addr: expected");
  snapshot_refused((struct event[]){{"alloc", 0, (uint64_t)1 << 60, 0}, {"alloc", 1, 1, 0}, {0}}, no_blocks,
                   "t: entry 2: with size 1 all sizes sum past 2^60 bytes");
  snapshot_refused((struct event[]){{"segment_map", 0, (uint64_t)1 << 60, 0},
                                    {"segment_map", 0, (uint64_t)1 << 60, 0}, {0}}, no_blocks,
                   "t: entry 2: segments sum past 2^60 bytes");
  snapshot_refused((struct event[]){{"alloc", 4096, 8, 0}, {"retry", 0, 0, 0}, {0}}, no_blocks,
                   "t: entry 2: an action that snapshots of this format do not have");
  const struct event one[] = {{"alloc", 64, 8, 0}, {0}};
  snapshot_refused(one, (struct old_block[]){{"lost", 8, 8}, {0}}, "t: segment 1: a block in a state");
  snapshot_refused(one, (struct old_block[]){{"active_allocated", 8, 9}, {0}}, "t: segment 1: requested_size: expec");
  snapshot_refused((struct event[]){{0}}, no_blocks, "t: the snapshot has no history; call torch.cuda.memory._record");
  struct event many[64] = {0};
  for (int i = 0; i < 63; i++)
    many[i] = (struct event){"alloc", 4096 + 8 * (uint64_t)i, 8, (uint64_t)i};
  snapshot_refused(many, no_blocks, "t: entry 63: more than 62 streams");
}

static void pickle_refused(const char *words)
{
  struct lade_trace trace = {0};
  made.bytes[made.n] = 0;
  assert_int_equal(read_text(made.bytes, made.n, &trace), -EBADMSG);
  if (!strstr(error.text, words))
    fail_msg("'%s' does not say '%s'", error.text, words);
}

static void test_pickles_that_are_no_snapshots_are_refused(void **state)
{
  made.n = 0;
  OPS("\x80\x04].");
  pickle_refused("t: a pickle, but no memory snapshot: expected a dict");
  made.n = 0;
  OPS("\x80\x04}.");
  pickle_refused("device_traces is missing");
  made.n = 0;
  OPS("\x80\x04}\x8c\x0d""device_tracesNs.");
  pickle_refused("device_traces: expected a list");
  made.n = 0;
  OPS("\x80\x04}\x8c\x0d""device_traces](Nes.");
  pickle_refused("device_traces: expected a list");
  made.n = 0;
  OPS("\x80\x04}\x8c\x0d""device_traces](](Nees.");
  pickle_refused("t: entry 1: expected a dict with the key action");
  made.n = 0;
  OPS("\x80\x04}\x8c\x0d""device_traces](](}ees.");
  pickle_refused("t: entry 1: action is missing");
  made.n = 0;
  OPS("\x80\x04}\x8c\x0d""device_traces](](}(\x8c\x06""action\x8c\x05""alloc\x8c\x04""addrJ\xff\xff\xff\xffuees.");
  pickle_refused("t: entry 1: addr: expected a whole number from 0 to");
  made.n = 0;
  OPS("\x80\x04}\x8c\x0d""device_traces](](}(\x8c\x06""action\x8c\x03""oom\x8c\x06""actionNuees.");
  pickle_refused("t: entry 1: the key action stands there twice");
  made.n = 0;
  OPS("\x80\x04}\x8c\x0d""device_traces](](}(\x8c\x06""action\x8c\x03""oomuees.");
  pickle_refused("t: segments is missing");
}

/* A history of two million references to one event is read in a moment, and then refused. */
static void test_a_history_that_is_one_shared_entry_is_refused(void **state)
{
  static char bytes[1 << 20];
  made.n = 0;
  OPS("\x80\x04}(");
  text("device_traces");
  OPS("](](}(");
  for (int i = 0; i < 100; i++)
    OPS("NN");
  text("action");
  text("oom");
  OPS("u\x94");
  memcpy(bytes, made.bytes, made.n);
  size_t n = made.n;
  for (; n < sizeof(bytes) - 16; n += 2)
    memcpy(bytes + n, "h\x00", 2);
  memcpy(bytes + n, "eeu.", 5);
  struct lade_trace trace = {0};
  assert_int_equal(read_text(bytes, n + 4, &trace), -EBADMSG);
  assert_non_null(strstr(error.text, "refers to the same data more often than a snapshot does"));
}

static void segment_make(uint64_t device, uint64_t address, uint64_t bytes)
{
  OPS("}(");
  pair("device", device);
  pair("address", address);
  pair("total_size", bytes);
  text("blocks");
  OPS("]u");
}

static void test_segments_that_overlap_are_refused(void **state)
{
  static const uint64_t second[] = {8192, 8192 + 4096, 4096 + 1};
  for (size_t i = 0; i < LADE_COUNT(second); i++) {
    made.n = 0;
    OPS("\x80\x04}(");
    text("device_traces");
    OPS("](](");
    event_make(&(struct event){"alloc", 64, 8, 0});
    OPS("ee");
    text("segments");
    OPS("](");
    segment_make(0, second[i], 4096);
    segment_make(0, 8192, 0); /* empty, and so without an address */
    segment_make(1, 8192, 4096); /* in another device's memory */
    segment_make(0, 8192, 4096);
    OPS("eu.");
    struct lade_trace trace = {0};
    if (second[i] == 8192 + 4096)
      assert_int_equal(read_text(made.bytes, made.n, &trace), 0);
    else
      pickle_refused("t: segment 4: it overlaps segment 1 at 0x2000");
    lade_trace_destroy(&trace);
  }
}

static void test_the_longest_history_of_several_devices_is_read(void **state)
{
  made.n = 0;
  OPS("\x80\x04}(");
  text("device_traces");
  OPS("](](");
  event_make(&(struct event){"alloc", 4096, 8, 0});
  OPS("e](");
  event_make(&(struct event){"alloc", 4096, 16, 0});
  event_make(&(struct event){"alloc", 8192, 16, 0});
  OPS("e]e");
  text("segments");
  OPS("](");
  for (uint64_t device = 0; device < 2; device++)
    segment_make(device, 1 << 20, 100 + device);
  OPS("eu.");
  made.bytes[made.n] = 0;
  struct lade_trace trace = {0};
  if (read_text(made.bytes, made.n, &trace))
    fail_msg("%s", error.text);
  assert_int_equal(trace.device, 1);
  assert_int_equal(trace.n_devices, 2);
  assert_int_equal(trace.peak_live_bytes, 32);
  assert_int_equal(trace.recorded_reserved_bytes, 101);
  lade_trace_destroy(&trace);
}

static void test_snapshots_of_the_cache_are_read_back(void **state)
{
  struct lade_device_params device_params = {sizeof(device_params), "dry", (uint64_t)1 << 30};
  struct lade_cache_params params = {.struct_size = sizeof(params), .n_trace_entries = 64};
  lade_queue *queues[2];
  lade_cache *cache;
  void *blocks[4];
  assert_int_equal(lade_device_open(&device_params, NULL, &params.device), 0);
  assert_int_equal(lade_cache_create(&params, NULL, &cache), 0);
  for (int i = 0; i < 2; i++)
    assert_int_equal(lade_queue_create(params.device, LADE_QUEUE_COMPUTE, &queues[i]), 0);
  for (int i = 0; i < 4; i++) {
    struct lade_cache_request request = {sizeof(request), (uint64_t)(i + 1) << 20, queues[i % 2], 0, "a.c:1"};
    assert_int_equal(lade_cache_alloc(cache, &request, NULL, &blocks[i]), 0);
  }
  assert_int_equal(lade_cache_free(cache, blocks[2], NULL, NULL), 0);
  assert_int_equal(lade_cache_free(cache, blocks[0], NULL, NULL), 0);
  assert_int_equal(lade_cache_write_snapshot(cache, in_scratch("cache.pickle"), NULL), 0);
  struct lade_cache_stats stats = {.struct_size = sizeof(stats)};
  lade_cache_get_stats(cache, &stats);
  struct lade_trace trace = {0};
  if (lade_trace_load(in_scratch("cache.pickle"), &error, &trace))
    fail_msg("%s", error.text);
  events_are(&trace, "0 1 2 3 -2 -0");
  assert_int_equal(trace.peak_live_bytes, 10 << 20);
  assert_int_equal(trace.n_queues, 2);
  assert_int_equal(trace.recorded_reserved_bytes, stats.reserved_bytes.peak);
  lade_trace_destroy(&trace);
  lade_cache_destroy(cache);
  for (int i = 0; i < 2; i++)
    lade_queue_destroy(queues[i]);
  lade_device_close(params.device);
}

static const char *data_path(const char *folder, const char *name, const char *end)
{
  static char path[512];
  const char *root = getenv("LADE_SHARED");
  snprintf(path, sizeof(path), "%s/%s%s%s", root ? root : LADE_SOURCE_ROOT "/../shared/data", folder, name, end);
  return path;
}

/* Check that a snapshot and the CSV that another tool made from it describe the same events. */
static void test_the_public_snapshots_are_read_as_others_read_them(void **state)
{
  static const struct {
    const char *name;
    int n_blocks;
    uint64_t peak_live_bytes, recorded_reserved_bytes;
  } files[] = {{"medium_256_training", 7288, 9103544320, 9265217536},
               {"medium_512_inference", 1889, 1949343744, 1981808640}};
  for (size_t i = 0; i < LADE_COUNT(files); i++) {
    struct lade_trace snapshot = {0}, csv = {0};
    if (access(data_path("snapshots/", files[i].name, ".pickle"), R_OK))
      skip();
    assert_int_equal(lade_trace_load(data_path("snapshots/", files[i].name, ".pickle"), &error, &snapshot), 0);
    assert_int_equal(lade_trace_load(data_path("packing/torch_", files[i].name, ".csv"), &error, &csv), 0);
    assert_int_equal(snapshot.blocks.n, files[i].n_blocks);
    assert_int_equal(csv.blocks.n, files[i].n_blocks);
    assert_int_equal(snapshot.recorded_reserved_bytes, files[i].recorded_reserved_bytes);
    /* The CSV gives two blocks that outlive the history their rounded sizes, each 983,040 bytes more than requested. */
    assert_int_equal(snapshot.peak_live_bytes, files[i].peak_live_bytes);
    assert_int_equal(snapshot.peak_live_bytes, csv.peak_live_bytes - 2 * 983040);
    lade_trace_destroy(&snapshot);
    lade_trace_destroy(&csv);
  }
}

/* ---- memory ---- */

static void allocations_fail(const char *bytes, size_t n)
{
  int code = -ENOMEM, i = 1;
  for (; code; i++) {
    struct lade_trace trace = {0};
    allocations_left = i;
    code = read_text(bytes, n, &trace);
    allocations_left = -1;
    if (code && code != -ENOMEM)
      fail_msg("allocation %d: %s", i, error.text);
    assert_int_equal(code == 0, trace.blocks.n > 0);
    assert_int_equal(code == 0, error.text[0] == 0);
    lade_trace_destroy(&trace);
  }
  assert_true(i > 3);
}

static void test_an_allocation_that_fails_is_an_error_without_a_leak(void **state)
{
  static const char csv[] = HEAD "1,0,4,10\n2,4,8,20\n3,2,4,5\n", lines[] = "lade-trace 1\nalloc 5 1 100 0\nfree 6 1\n";
  allocations_fail(csv, sizeof(csv) - 1);
  allocations_fail(lines, sizeof(lines) - 1);
  snapshot_make((struct event[]){{"alloc", 0x100000, 700, 7}, {"free_completed", 5120, 900, 0}, {0}},
                (struct old_block[]){{"active_allocated", 1024, 1000}, {0}});
  allocations_fail(made.bytes, made.n);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lifetimes_become_calls_with_ends_before_beginnings),
      cmocka_unit_test(test_the_byte_order_mark_of_a_spreadsheet_is_no_letter),
      cmocka_unit_test(test_bad_lines_of_a_csv_are_refused_with_their_reason),
      cmocka_unit_test(test_an_id_that_stands_twice_is_refused_whether_it_overlaps_or_not),
      cmocka_unit_test(test_a_trace_without_an_allocation_is_refused),
      cmocka_unit_test(test_a_zero_byte_in_a_text_is_a_letter_that_does_not_belong_there),
      cmocka_unit_test(test_calls_in_lines_keep_their_order_and_ids_may_come_again),
      cmocka_unit_test(test_bad_lines_of_calls_are_refused_with_their_reason),
      cmocka_unit_test(test_a_snapshot_begins_with_the_blocks_that_are_older_than_its_history),
      cmocka_unit_test(test_snapshots_that_contradict_themselves_are_refused),
      cmocka_unit_test(test_bad_fields_of_a_snapshot_are_refused_with_their_entry),
      cmocka_unit_test(test_pickles_that_are_no_snapshots_are_refused),
      cmocka_unit_test(test_a_history_that_is_one_shared_entry_is_refused),
      cmocka_unit_test(test_segments_that_overlap_are_refused),
      cmocka_unit_test(test_the_longest_history_of_several_devices_is_read),
      cmocka_unit_test_setup_teardown(test_snapshots_of_the_cache_are_read_back, scratch_setup, scratch_teardown),
      cmocka_unit_test(test_the_public_snapshots_are_read_as_others_read_them),
      cmocka_unit_test(test_an_allocation_that_fails_is_an_error_without_a_leak),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
