/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Echoes of foreign text.
 *
 * A JSON value is echoed through jansson's own encoder, which escapes control characters and all letters past ASCII.
 * The encoder stops when the echo is full, because a value may have the size of its file.
 */
#include "base/echo.h"

#include <string.h>

#include "base/base.h"

#define JSON_MAX 47 /* bytes of the echo of a value, dots included */
#define DOTS "..."

struct lade_echo lade_echo(const char *text)
{
  struct lade_echo echo;
  size_t n = 0;
  for (; n < LADE_ECHO_MAX && text[n]; n++)
    echo.text[n] = (unsigned char)text[n] < ' ' || text[n] == 127 ? '?' : text[n];
  const bool is_cut = text[n];
  while (is_cut && n > LADE_ECHO_MAX - 4 && ((unsigned char)text[n] & 0xc0) == 0x80)
    n--; /* the echo would end in the middle of a letter */
  strcpy(echo.text + n, is_cut ? DOTS : "");
  return echo;
}

/* Append to the echo @data. Return -1, which ends the encoding, if it is full. */
static int echo_append(const char *bytes, size_t n_bytes, void *data)
{
  struct lade_echo *echo = data;
  const size_t used = strlen(echo->text), n = LADE_MIN(n_bytes, JSON_MAX - used);
  memcpy(echo->text + used, bytes, n);
  echo->text[used + n] = 0;
  if (n == n_bytes)
    return 0;
  strcpy(echo->text + JSON_MAX - strlen(DOTS), DOTS);
  return -1;
}

struct lade_echo lade_json_echo(const json_t *value)
{
  struct lade_echo echo = {{0}};
  if (!value)
    strcpy(echo.text, "missing");
  else if (json_dump_callback(value, echo_append, &echo, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII) &&
           !echo.text[0])
    strcpy(echo.text, "something else"); /* there may be no memory for the encoding */
  return echo;
}
