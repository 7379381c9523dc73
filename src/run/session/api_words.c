/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors in the library's words. A session serves the command and linked programs. Its messages name the command's
 * options, as users of the command know them; at the public interface each option becomes the parameter that it sets.
 *
 * The opposite was rejected: parameters are words such as "store" and "seq" that sentences also have, while no
 * sentence has "--store" in another meaning. A word in dashes that is no option of a run stays as it is.
 */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "run/session/api_internal.h"

/* Options whose parameter has another name; the others differ in dashes only. */
static const struct {
  const char *option, *parameter;
} others[] = {{"host-budget", "host_budget_bytes"},
              {"store-budget", "store_budget_bytes"},
              {"eval-iters", "eval_batches"},       {"link-rate", "link_bytes_per_s"},
              {"link-latency", "link_latency_ns"},  {"recompute", "recipe"},
              {"residency", "residency_file"},      {"threads", "n_threads"}};

static const char *const same[] = {
    "batch", "beta1", "beta2", "budget", "clip", "data", "device", "dp", "dropout", "dtype", "durable", "eps",
    "gelu-fusion", "grad-dtype", "init", "layers", "lr", "machine", "mask-documents", "master", "micro-batch",
    "min-lr", "model", "moments", "optimizer-in-backward", "order", "pp", "resume", "save", "seed", "separator",
    "seq", "sequence-parallel", "steps", "store", "tp", "valid", "valid-fraction", "warmup", "weight-decay", "zero"};

/* Write the parameter of the option of @n letters at @name into @word, of 32 bytes. False: it is no option of a run. */
static bool parameter_find(const char *name, size_t n, char *word)
{
  for (size_t i = 0; i < LADE_COUNT(others); i++) {
    if (strlen(others[i].option) == n && memcmp(others[i].option, name, n) == 0)
      return snprintf(word, 32, "%s", others[i].parameter) > 0;
  }
  for (size_t i = 0; i < LADE_COUNT(same); i++) {
    if (strlen(same[i]) != n || memcmp(same[i], name, n) != 0)
      continue;
    snprintf(word, 32, "%s", same[i]);
    for (char *at = word; *at; at++)
      *at = *at == '-' ? '_' : *at;
    return true;
  }
  return false;
}

void lade_api_words(const char *text, char *ret_words, size_t words_bytes)
{
  size_t used = 0;
  char word[32];
  while (*text && used + 1 < words_bytes) {
    const bool is_option = text[0] == '-' && text[1] == '-';
    const size_t n = is_option ? strspn(text + 2, "abcdefghijklmnopqrstuvwxyz0123456789-") : 0;
    if (n && parameter_find(text + 2, n, word)) {
      used += (size_t)snprintf(ret_words + used, words_bytes - used, "%s", word);
      used = LADE_MIN(used, words_bytes - 1);
      text += 2 + n;
    } else {
      ret_words[used++] = *text++;
    }
  }
  ret_words[used] = 0;
}

int lade_api_error(int status, struct lade_error *error)
{
  if (!error || !status)
    return status;
  struct lade_error own = *error;
  own.text[sizeof(own.text) - 1] = 0;
  lade_api_words(own.text, error->text, sizeof(error->text));
  return status;
}
