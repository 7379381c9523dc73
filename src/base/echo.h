/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign text in messages: names and values of files that others wrote. An echo is short and never breaks the line.
 */
#ifndef LADE_ECHO_H
#define LADE_ECHO_H

#include <jansson.h>

#define LADE_ECHO_MAX 92 /* bytes of a text */

struct lade_echo {
  char text[LADE_ECHO_MAX + sizeof("...")];
};

/* Return @text with control characters as question marks, cut after LADE_ECHO_MAX bytes. Any thread. */
struct lade_echo lade_echo(const char *text);

/* Return @value as in its file, compact and in ASCII, cut after 44 bytes; "missing" for NULL. Any thread. */
struct lade_echo lade_json_echo(const json_t *value);

#endif
