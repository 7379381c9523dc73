/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the fakes, and their calls: how many there were, and which fail. Every call of a driver passes here, so a
 * function is found by the address of its name. Names are compared only for queries.
 */
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static uint64_t *number_find(struct control *control, const char *key, size_t n)
{
  const struct setting shared[] = {
      {"nth", &control->nth}, {"code", &control->code}, {"forever", &control->forever}, {NULL, NULL}};
  const struct setting *const lists[] = {shared, control->settings};
  for (size_t i = 0; i < LADE_COUNT(lists); i++)
    for (const struct setting *one = lists[i]; one->key; one++)
      if (strlen(one->key) == n && memcmp(one->key, key, n) == 0)
        return one->at;
  return NULL;
}

/* Apply one "key=value" of @n bytes. */
static int setting_take(struct control *control, const char *text, size_t n)
{
  const char *equals = memchr(text, '=', n);
  if (!equals)
    return -1;
  size_t n_key = (size_t)(equals - text);
  if (n_key == 4 && memcmp(text, "fail", 4) == 0) {
    snprintf(control->fail, sizeof(control->fail), "%.*s", (int)(n - n_key - 1), equals + 1);
    return 0;
  }
  uint64_t *at = number_find(control, text, n_key);
  if (!at)
    return -1;
  *at = strtoull(equals + 1, NULL, 10);
  return 0;
}

int control_set(struct control *control, const char *text)
{
  int status = 0;
  for (int i = 0; i < MAX_FUNCTIONS; i++)
    control->functions[i].n = 0;
  control->n_calls = control->n_failed = 0;
  while (*text && !status) {
    size_t n = strcspn(text, ",");
    status = setting_take(control, text, n);
    text += n + (text[n] == ',');
  }
  return status;
}

void control_load(const char *variable, int (*set)(const char *text))
{
  const char *text = getenv(variable);
  if (text && set(text)) {
    fprintf(stderr, "fake driver: %s has a key that is not known: %s\n", variable, text);
    abort();
  }
}

int control_enter(struct control *control, const char *function)
{
  int i = 0;
  while (i < MAX_FUNCTIONS && control->functions[i].name && control->functions[i].name != function)
    i++;
  LADE_ASSERT(i < MAX_FUNCTIONS);
  control->functions[i].name = function;
  uint64_t n = ++control->functions[i].n, n_any = ++control->n_calls;
  bool is_any = strcmp(control->fail, "any") == 0;
  if (!is_any && strcmp(control->fail, function) != 0)
    return 0;
  n = is_any ? n_any : n;
  if (n != control->nth && !(control->forever && n > control->nth))
    return 0;
  control->n_failed++;
  return (int)control->code;
}

uint64_t control_calls(const struct control *control, const char *function)
{
  uint64_t n = 0;
  if (strcmp(function, "any") == 0)
    return control->n_calls;
  for (int i = 0; i < MAX_FUNCTIONS && control->functions[i].name; i++)
    n += strcmp(control->functions[i].name, function) == 0 ? control->functions[i].n : 0;
  return n;
}
