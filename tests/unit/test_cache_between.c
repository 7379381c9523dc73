/* SPDX-License-Identifier: Apache-2.0 */
/* What no other test of the cache would think of: texts that break lines. */
#include "../conform/cache_target.h"

enum { LIMIT_CHUNKS = 4 };

static int lines_count(const char *text)
{
  int n = 0;
  for (; *text; text++)
    n += *text == '\n';
  return n;
}

/* Names of tags and places are the program's: they break no line, and no letter of theirs is cut in two. */
static void names_break_no_line(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = LIMIT_CHUNKS * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  const char *const place = "a\nb\r\"\x1b[31m.c:1", *const cut = "0123456789012345678901234567890123456789\u00fc\u00fc:1";
  struct lade_error error = {0};
  char pages[2][4096];
  int tag = 0;
  assert_int_equal(lade_cache_tag_add(bed.cache, "tag\n\t\x7f", &tag), 0);
  struct lade_cache_request request = {sizeof(request), 3 * CHUNK, bed.queues[0], 0, "plain"};
  void *block = NULL;
  for (int i = 0; i < 2; i++) {
    assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &block), 0);
    assert_int_equal(lade_cache_alloc(bed.cache, &request, &error, &block), -ENOMEM);
    assert_null(strpbrk(error.text, "\n\r\t\x1b\x7f"));
    assert_true(lade_cache_report(bed.cache, pages[i], sizeof(pages[i])) < sizeof(pages[i]));
    assert_null(strpbrk(pages[i], "\r\t\x1b\x7f"));
    must_free(bed.cache, block);
    request.tag = tag;
    request.place = place;
  }
  assert_int_equal(lines_count(pages[0]), lines_count(pages[1]));
  assert_non_null(strstr(pages[1], "a?b?\"?[31m.c:1"));
  request.place = cut;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &block), 0);
  lade_cache_report(bed.cache, pages[0], sizeof(pages[0]));
  assert_non_null(strstr(pages[0], "0123456789\u00fc  "));
  must_free(bed.cache, block);
  bed_close(&bed);
}

int main(int argc, char **argv)
{
  struct CMUnitTest tests[] = {cmocka_unit_test(names_break_no_line)};
  return target_run(1, argv, tests, LADE_COUNT(tests));
}
