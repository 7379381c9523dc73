/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the command ends: one line on stderr, one code to the shell.
 *
 * The library answers with negative errnos (include/lade/types.h says what the ones with a meaning of their own
 * mean); scripts see eight codes. What a person named wrongly, a file that is not there included, is a mistake
 * in usage; what failed on good input is not.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/verbs.h"

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
  case ENAMETOOLONG:
    return LADE_EXIT_USAGE;
  case EOVERFLOW:
    return LADE_EXIT_DOES_NOT_FIT;
  case ENOMEM:
  case EAGAIN: /* a thread was refused */
    return LADE_EXIT_OUT_OF_MEMORY;
  case EIO:
  case EINTR: /* again and again */
  case EROFS:
  case EBADMSG:
  case ENOSPC:
  case EDQUOT:
  case EFBIG:
    return LADE_EXIT_IO;
  case ENODEV:
  case ENOSYS:
    return LADE_EXIT_MISSING;
  default: /* EDOM among them: a loss that is not finite */
    return LADE_EXIT_FAILED;
  }
}

void message_print(const char *prefix, const char *text)
{
  fprintf(stderr, "lade %s: ", prefix);
  for (; *text; text++)
    fputc((unsigned char)*text < ' ' || *text == 127 ? '?' : *text, stderr);
  fputc('\n', stderr);
}

int exit_fail(const char *verb, int status, const struct lade_error *error)
{
  message_print(verb, error && error->text[0] ? error->text : strerror(-status));
  return exit_code(status);
}
