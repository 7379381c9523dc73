/* SPDX-License-Identifier: Apache-2.0 */
/* Messages are checked by the names and numbers in them, and not by their wording. */
#ifndef LADE_TESTS_NAMES_H
#define LADE_TESTS_NAMES_H

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include <cmocka.h>

static inline bool is_name_letter(char c)
{
  return isalnum((unsigned char)c) || c == '_';
}

/* True if @text has @name as a whole word or words: 4 is not in "14", nor tp in "http". */
static inline bool names_has(const char *text, const char *name)
{
  const size_t n = strlen(name);
  for (const char *at = text; (at = strstr(at, name)); at++) {
    const bool begins = at == text || !is_name_letter(at[-1]) || !is_name_letter(name[0]);
    const bool ends = !is_name_letter(at[n]) || !is_name_letter(name[n - 1]);
    if (begins && ends)
      return true;
  }
  return false;
}

/* Fail the test at @line of @file unless @text is one line that has all @names, which end with NULL. */
static inline void names_verify(const char *text, const char *const *names, const char *file, int line)
{
  for (; *names; names++) {
    if (!names_has(text, *names) || strchr(text, '\n')) {
      print_error("no '%s' in one line: %s\n", *names, text);
      _fail(file, line);
    }
  }
}

#define NAMES(...) (const char *const[]){__VA_ARGS__, NULL}
#define assert_names(text, ...) names_verify(text, NAMES(__VA_ARGS__), __FILE__, __LINE__)

#endif
