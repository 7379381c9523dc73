/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade sample`: text from a model over bytes, one token after another.
 *
 * The next byte is drawn from softmax(logits / temperature) over the top-k likeliest. Draws are Philox words of (seed,
 * position), so that the same checkpoint, prompt and seed print the same text. When the text grows past the model's
 * context, the model sees its newest part.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/philox.h"
#include "run/checkpoint.h"
#include "run/forward.h"
#include "tools/cli/options.h"
#include "tools/cli/signals.h"
#include "tools/cli/verbs.h"

#define BYTES_VOCABULARY 256

struct sampler {
  struct options options;
  struct lade_model model;
  struct lade_kernels kernels;
  lade_pool *pool;
  lade_forward *forward;
  int64_t seq_len;    /* tokens that the model sees at once */
  int32_t *tokens; /* prompt and text */
  int64_t n_tokens;
  struct lade_error error;
};

/* Find the directory of the files: the newest checkpoint in the given directory, or that directory itself. */
static int path_find(struct sampler *sample, char *path, size_t path_bytes)
{
  const char *dir = sample->options.checkpoint;
  int status = lade_checkpoint_find(dir, path, path_bytes, &sample->error);
  if (status != -ENOENT)
    return status;
  char config[4200];
  snprintf(config, sizeof(config), "%s/config.json", dir);
  if (access(config, R_OK))
    return status;
  snprintf(path, path_bytes, "%s", dir);
  sample->error = (struct lade_error){0};
  return 0;
}

static int model_load(struct sampler *sample, const char *path)
{
  char config[4200];
  snprintf(config, sizeof(config), "%s/config.json", path);
  int status = lade_model_load(config, &sample->model, &sample->error);
  if (!status && sample->model.vocabulary != BYTES_VOCABULARY)
    status = lade_error_set(&sample->error, -EINVAL, "%s: a model with a vocabulary of %lld; only models of bytes, "
                            "trained on raw text, can be sampled", path, (long long)sample->model.vocabulary);
  return status;
}

static int forward_make(struct sampler *sample, const char *path)
{
  const struct options *options = &sample->options;
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&sample->kernels, &cpu);
  int status = lade_pool_create(options->session.n_threads, &sample->pool);
  if (status)
    return lade_error_set(&sample->error, status, "threads were refused: %s", strerror(-status));
  int64_t n_most = (int64_t)strlen(options->prompt) + options->n_tokens;
  sample->seq_len = LADE_MIN(sample->model.context, n_most);
  struct lade_forward_params how = {.struct_size = sizeof(how), .model = &sample->model, .seq_len = sample->seq_len,
                                    .kernels = &sample->kernels, .pool = sample->pool};
  status = lade_forward_create(&how, &sample->error, &sample->forward);
  if (status)
    return status;
  struct lade_values values = lade_forward_values(sample->forward);
  return lade_checkpoint_init(&values, path, NULL, &sample->error);
}

static int tokens_make(struct sampler *sample)
{
  const char *prompt = sample->options.prompt;
  size_t n_prompt = strlen(prompt);
  if (n_prompt == 0)
    return lade_error_set(&sample->error, -EINVAL, "--prompt is empty; expected at least one byte");
  sample->tokens = calloc(n_prompt + (size_t)sample->options.n_tokens, sizeof(*sample->tokens));
  if (!sample->tokens)
    return lade_error_set(&sample->error, -ENOMEM, "no memory for %lld tokens", (long long)sample->options.n_tokens);
  for (size_t i = 0; i < n_prompt; i++)
    sample->tokens[i] = (unsigned char)prompt[i];
  sample->n_tokens = (int64_t)n_prompt;
  return 0;
}

/* ---- sampling ---- */

static int float_descending(const void *a, const void *b)
{
  float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y);
}

/* Return the smallest logit within the top-k. */
static float threshold_find(const float *logits, int64_t top_k)
{
  float sorted[BYTES_VOCABULARY];
  if (top_k == 0 || top_k >= BYTES_VOCABULARY)
    return -INFINITY;
  memcpy(sorted, logits, sizeof(sorted));
  qsort(sorted, BYTES_VOCABULARY, sizeof(*sorted), float_descending);
  return sorted[top_k - 1];
}

static int likeliest(const float *logits)
{
  int best = 0;
  for (int i = 1; i < BYTES_VOCABULARY; i++)
    best = logits[i] > logits[best] ? i : best;
  return best;
}

/* Return the token at which the cumulative probability passes @u in [0, 1). */
static int token_choose(const float *logits, double temperature, int64_t top_k, double u)
{
  double weights[BYTES_VOCABULARY], sum = 0;
  int best = likeliest(logits);
  float least = threshold_find(logits, top_k);
  if (temperature <= 0)
    return best;
  for (int i = 0; i < BYTES_VOCABULARY; i++) {
    weights[i] = logits[i] >= least ? exp(((double)logits[i] - (double)logits[best]) / temperature) : 0;
    sum += weights[i];
  }
  double left = u * sum;
  for (int i = 0; i < BYTES_VOCABULARY; i++) {
    left -= weights[i];
    if (left < 0)
      return i;
  }
  return best; /* reached by rounding alone */
}

static int token_next(struct sampler *sample, int *ret_token)
{
  float logits[BYTES_VOCABULARY] __attribute__((aligned(64)));
  const struct options *options = &sample->options;
  int64_t n = LADE_MIN(sample->n_tokens, sample->seq_len);
  int status = lade_forward_logits(sample->forward, sample->tokens + sample->n_tokens - n, n, logits);
  if (status)
    return lade_error_set(&sample->error, status, "the model cannot process the prompt");
  if (!isfinite(logits[likeliest(logits)]))
    return lade_error_set(&sample->error, -EDOM, "the model's logits are not finite");
  uint32_t word = lade_philox_word(options->session.seed, 0, UINT32_MAX, (uint64_t)sample->n_tokens);
  *ret_token = token_choose(logits, options->temperature, options->top_k, word * 0x1p-32);
  return 0;
}

static int text_print(struct sampler *sample)
{
  fputs(sample->options.prompt, stdout);
  for (int64_t i = 0; i < sample->options.n_tokens && !signals_get() && !ferror(stdout); i++) {
    int token = 0, status = token_next(sample, &token);
    if (status)
      return status;
    sample->tokens[sample->n_tokens++] = token;
    putchar(token);
    fflush(stdout);
  }
  putchar('\n');
  return 0;
}

static int sample_run(struct sampler *sample)
{
  char path[4096];
  int status = path_find(sample, path, sizeof(path));
  if (!status)
    status = model_load(sample, path);
  if (!status)
    status = tokens_make(sample);
  if (!status)
    status = forward_make(sample, path);
  return status ? status : text_print(sample);
}

int sample_main(int argc, char **argv)
{
  struct sampler sample = {.n_tokens = 0};
  int code = options_read(VERB_SAMPLE, argc, argv, &sample.options);
  if (code == OPTIONS_GO) {
    signals_init();
    int status = sample_run(&sample);
    code = status ? exit_fail("sample", status, &sample.error) : signals_get() ? 128 + signals_get() : LADE_EXIT_DONE;
  }
  lade_forward_destroy(sample.forward);
  lade_pool_destroy(sample.pool);
  free(sample.tokens);
  options_finish(&sample.options);
  return code;
}
