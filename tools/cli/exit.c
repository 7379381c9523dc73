/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of the command: one line on stderr, one code to the shell.
 *
 * The library returns negative errnos; include/lade/types.h lists those with a meaning of their own. Scripts see eight
 * codes. A wrong name that the user gave, also of a missing file, is a usage mistake. A failure on good input is not.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tools/cli/verbs.h"

enum lade_exit exit_code(int status)
{
  switch (-status) {
  case 0:
    return LADE_EXIT_DONE;
  case EINVAL:
  case ENOENT:
  case ENOTDIR:
  case EISDIR:
  case EACCES:
  case EPERM:
  case ERANGE:
  case ENODATA:
  case ELOOP:
  case ENAMETOOLONG:
    return LADE_EXIT_USAGE;
  case EOVERFLOW:
    return LADE_EXIT_DOES_NOT_FIT;
  case ENOMEM:
  case EAGAIN: /* the machine refused a thread */
    return LADE_EXIT_OUT_OF_MEMORY;
  case EIO:
  case EINTR: /* interrupted at every retry */
  case EROFS:
  case EBADMSG:
  case ENOSPC:
  case EDQUOT:
  case EFBIG:
    return LADE_EXIT_IO;
  case ENODEV:
  case ENOSYS:
    return LADE_EXIT_MISSING;
  default: /* includes EDOM: a loss that is not finite */
    return LADE_EXIT_FAILED;
  }
}

/* True if a control character begins at @at: of ASCII, U+0080 to U+009F in UTF-8, or a lone byte 0x80 to 0x9F. */
static bool is_control(const char *text, const char *at)
{
  const unsigned char byte = (unsigned char)*at, before = at > text ? (unsigned char)at[-1] : 0;
  return byte < ' ' || byte == 127 || (byte == 0xc2 && (unsigned char)at[1] >= 0x80 && (unsigned char)at[1] < 0xa0) ||
         (byte >= 0x80 && byte < 0xa0 && (before < 0x80 || before == 0xc2));
}

/* Write the printed form of the byte at @at into @ret_text. Return its length in bytes. */
static int byte_escape(const char *text, const char *at, char quote, char ret_text[8])
{
  if (*at == '\n')
    return snprintf(ret_text, 8, "\\n");
  if (is_control(text, at))
    return snprintf(ret_text, 8, "\\%03o", (unsigned)(unsigned char)*at);
  return snprintf(ret_text, 8, "%s%c", quote && (*at == quote || *at == '\\') ? "\\" : "", *at);
}

bool text_has_control(const char *text)
{
  const char *at = text;
  while (*at && !is_control(text, at))
    at++;
  return *at;
}

void text_put(FILE *file, const char *text, char quote)
{
  char shown[8];
  for (const char *at = text; *at; at++) {
    byte_escape(text, at, quote, shown);
    fputs(shown, file);
  }
}

const char *text_escape(const char *text, char *buffer, size_t buffer_bytes)
{
  char shown[8];
  size_t used = 0;
  for (const char *at = text; *at; at++) {
    const size_t n = (size_t)byte_escape(text, at, 0, shown);
    if (used + n >= buffer_bytes)
      break;
    memcpy(buffer + used, shown, n);
    used += n;
  }
  buffer[used] = 0;
  return buffer;
}

void message_print(const char *prefix, const char *text)
{
  fprintf(stderr, "lade %s: ", prefix);
  text_put(stderr, text, 0);
  fputc('\n', stderr);
}

int exit_fail(const char *verb, int status, const struct lade_error *error)
{
  message_print(verb, error && error->text[0] ? error->text : strerror(-status));
  return exit_code(status);
}
