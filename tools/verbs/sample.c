/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade sample`: text from a model, one token after another.
 *
 * A model with a tokenizer.json beside it has the tokens of that file, which a process of Python converts
 * (job/token_text.h). Any other model has bytes as tokens.
 *
 * The next token is drawn from softmax(logits / temperature) over the top-k likeliest. Draws are Philox words of (seed,
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
#include "run/data.h"
#include "run/forward.h"
#include "tools/cli/options.h"
#include "tools/cli/signals.h"
#include "tools/cli/verbs.h"
#include "tools/job/token_text.h"

#define BYTES_VOCABULARY 256 /* a token is a byte */

struct sampler {
  struct options options;
  struct lade_model model;
  struct lade_kernels kernels;
  lade_pool *pool;
  lade_forward *forward;
  int64_t seq_len;    /* tokens that the model sees at once */
  int32_t *tokens; /* prompt and text */
  int64_t n_tokens;
  struct token_text *text; /* NULL: tokens are bytes */
  int text_code;           /* exit code of its process */
  float *logits, *sorted;  /* [vocabulary] */
  double *weights;
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
  if (status)
    return status;
  snprintf(config, sizeof(config), "%s/" LADE_TOKENIZER_FILE, path);
  if (access(config, F_OK) == 0) {
    status = lade_checkpoint_check_tokenizer(path, &sample->error);
    return status ? status : token_text_open(config, &sample->error, &sample->text);
  }
  if (sample->model.vocabulary != BYTES_VOCABULARY)
    return lade_error_set(&sample->error, -EINVAL, "%s: a model with a vocabulary of %lld and no tokenizer.json; "
                          "without one only models of bytes, trained on raw text, can be sampled", path,
                          (long long)sample->model.vocabulary);
  return 0;
}

static int forward_make(struct sampler *sample, const char *path)
{
  const struct options *options = &sample->options;
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&sample->kernels, &cpu);
  int status = lade_pool_create(options->session.n_threads, &sample->pool);
  if (status)
    return lade_error_set(&sample->error, status, "threads were refused: %s", strerror(-status));
  int64_t n_max = sample->n_tokens + options->n_tokens;
  sample->seq_len = LADE_MIN(sample->model.context, n_max);
  struct lade_forward_params params = {.struct_size = sizeof(params), .model = &sample->model,
                                       .seq_len = sample->seq_len,
                                       .kernels = &sample->kernels, .pool = sample->pool};
  status = lade_forward_create(&params, &sample->error, &sample->forward);
  if (status)
    return status;
  struct lade_values values = lade_forward_values(sample->forward);
  return lade_checkpoint_init(&values, path, NULL, &sample->error);
}

/* Set the prompt's tokens: its bytes. */
static int bytes_read(struct sampler *sample)
{
  const char *prompt = sample->options.prompt;
  const size_t n = strlen(prompt);
  sample->tokens = calloc(n + 1, sizeof(*sample->tokens));
  if (!sample->tokens)
    return lade_error_set(&sample->error, -ENOMEM, "no memory for %zu tokens", n);
  for (size_t i = 0; i < n; i++)
    sample->tokens[i] = (unsigned char)prompt[i];
  sample->n_tokens = (int64_t)n;
  return 0;
}

static int vocabulary_check(struct sampler *sample)
{
  for (int64_t i = 0; i < sample->n_tokens; i++) {
    if (sample->tokens[i] < 0 || sample->tokens[i] >= sample->model.vocabulary)
      return lade_error_set(&sample->error, -EINVAL, "--prompt has token %d, outside of the model's vocabulary of "
                            "%lld: tokenizer.json is of another model", (int)sample->tokens[i],
                            (long long)sample->model.vocabulary);
  }
  return 0;
}

static int tokens_make(struct sampler *sample)
{
  const int64_t n_new = sample->options.n_tokens, vocabulary = sample->model.vocabulary;
  int status = !sample->options.prompt[0] ? 0 : sample->text
      ? token_text_encode(sample->text, sample->options.prompt, &sample->error, &sample->tokens, &sample->n_tokens)
      : bytes_read(sample);
  if (status)
    return status;
  if (sample->n_tokens == 0)
    return lade_error_set(&sample->error, -EINVAL, "--prompt is empty; expected at least one %s",
                          sample->text ? "token" : "byte");
  int32_t *tokens = realloc(sample->tokens, (size_t)(sample->n_tokens + n_new) * sizeof(*tokens));
  sample->tokens = tokens ? tokens : sample->tokens;
  sample->logits = aligned_alloc(64, lade_align_up((size_t)vocabulary * sizeof(float), 64));
  sample->sorted = calloc((size_t)vocabulary, sizeof(*sample->sorted));
  sample->weights = calloc((size_t)vocabulary, sizeof(*sample->weights));
  if (!tokens || !sample->logits || !sample->sorted || !sample->weights)
    return lade_error_set(&sample->error, -ENOMEM, "no memory for %lld tokens", (long long)n_new);
  return vocabulary_check(sample);
}

/* ---- sampling ---- */

static int float_descending(const void *a, const void *b)
{
  float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y);
}

/* Return the smallest logit within the top-k. */
static float threshold_find(const struct sampler *sample)
{
  const int64_t top_k = sample->options.top_k, n = sample->model.vocabulary;
  if (top_k == 0 || top_k >= n)
    return -INFINITY;
  memcpy(sample->sorted, sample->logits, (size_t)n * sizeof(*sample->sorted));
  qsort(sample->sorted, (size_t)n, sizeof(*sample->sorted), float_descending);
  return sample->sorted[top_k - 1];
}

static int32_t likeliest(const struct sampler *sample)
{
  int32_t best = 0;
  for (int32_t i = 1; i < sample->model.vocabulary; i++)
    best = sample->logits[i] > sample->logits[best] ? i : best;
  return best;
}

/* Return the token at which the cumulative probability passes @u in [0, 1). */
static int32_t token_choose(const struct sampler *sample, double u)
{
  const float *logits = sample->logits;
  const double temperature = sample->options.temperature;
  const int32_t n = (int32_t)sample->model.vocabulary, best = likeliest(sample);
  if (temperature <= 0)
    return best;
  const float min = threshold_find(sample);
  double sum = 0;
  for (int32_t i = 0; i < n; i++) {
    sample->weights[i] = logits[i] >= min ? exp(((double)logits[i] - (double)logits[best]) / temperature) : 0;
    sum += sample->weights[i];
  }
  double left = u * sum;
  for (int32_t i = 0; i < n; i++) {
    left -= sample->weights[i];
    if (left < 0)
      return i;
  }
  return best; /* reached by rounding alone */
}

static int token_next(struct sampler *sample, int32_t *ret_token)
{
  const struct options *options = &sample->options;
  int64_t n = LADE_MIN(sample->n_tokens, sample->seq_len);
  int status = lade_forward_logits(sample->forward, sample->tokens + sample->n_tokens - n, n, sample->logits);
  if (status)
    return lade_error_set(&sample->error, status, "the model cannot process the prompt");
  if (!isfinite(sample->logits[likeliest(sample)]))
    return lade_error_set(&sample->error, -EDOM, "the model's logits are not finite");
  uint32_t word = lade_philox_word(options->session.seed, 0, UINT32_MAX, (uint64_t)sample->n_tokens);
  *ret_token = token_choose(sample, word * 0x1p-32);
  return 0;
}

static void text_close(struct sampler *sample, bool has_rest)
{
  token_text_close(sample->text, has_rest, &sample->text_code);
  sample->text = NULL;
}

static int token_print(struct sampler *sample, int32_t token)
{
  if (sample->text)
    return token_text_print(sample->text, token, &sample->error);
  putchar(token);
  fflush(stdout);
  return 0;
}

static int text_print(struct sampler *sample)
{
  fputs(sample->options.prompt, stdout);
  for (int64_t i = 0; i < sample->options.n_tokens && !signals_get() && !ferror(stdout); i++) {
    int32_t token = 0;
    int status = token_next(sample, &token);
    if (status)
      return status;
    sample->tokens[sample->n_tokens++] = token;
    status = token_print(sample, token);
    if (status)
      return status;
  }
  text_close(sample, !signals_get());
  putchar('\n');
  return sample->text_code ? -ECHILD : 0;
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
    text_close(&sample, false);
    code = status == -ECHILD && sample.text_code ? sample.text_code /* its process has said why */
           : status ? exit_fail("sample", status, &sample.error) : signals_get() ? 128 + signals_get() : LADE_EXIT_DONE;
  }
  lade_forward_destroy(sample.forward);
  lade_pool_destroy(sample.pool);
  free(sample.weights);
  free(sample.sorted);
  free(sample.logits);
  free(sample.tokens);
  options_finish(&sample.options);
  return code;
}
