/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of choices among cuBLASLt's algorithms.
 *
 * The heuristic's first algorithm is not always the fastest of those that it offers. Algorithms differ in the order of
 * sums, and so in bits. A run that measured for itself would have the bits of its timings: ranks would differ, and so
 * would two runs of one command. So measuring is apart from running. `bench-gpu --choices FILE` measures the algorithms
 * of products and appends a line for each product for which another algorithm than the first is faster. A run reads the
 * file that LADE_MATMUL_CHOICES names when it opens the library, measures nothing and writes nothing.
 *
 * A line is a key and a choice, "KEY: LAYOUT DTYPE OUT M N K EPILOGUE NUMBER", with an epilogue of the table below. The
 * key names the library with its version, the GPU's model and the driver's version, because the numbers of algorithms
 * depend on all three. Lines of other keys are skipped: one file may serve several machines, and after an update of the
 * driver the heuristic's first algorithms serve until products are measured again. The last line of a product counts.
 * Empty lines and those after # are skipped.
 *
 * The hash of a run's choices is part of the library's name, and so of the numerics_key. Ranks whose files differ
 * refuse to run together, and resuming a checkpoint under other choices warns that its numbers differ. A file that
 * cannot be read, a line of another form and a number that the heuristic does not offer are errors: silence would
 * change bits.
 */
#include "kernels/cuda/matmul/matmul_choices.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHOICE_BYTES 160 /* of a line after its key */
#define MAX_NUMBER 99

static const char *const layouts[] = {[LADE_NT] = "NT", [LADE_NN] = "NN", [LADE_TN] = "TN"};
static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};

static const struct {
  const char *name;
  bool has_bias, has_gelu, makes_gelu;
} epilogues[] = {{"-", false, false, false},
                 {"bias", true, false, false},
                 {"gelu", false, true, false},
                 {"+gelu", false, false, true},
                 {"bias+gelu", true, false, true}};

bool lade_product_kind_is(const struct lade_product_kind *x, const struct lade_product_kind *y)
{
  return x->layout == y->layout && x->dtype == y->dtype && x->out == y->out && x->m == y->m && x->n == y->n &&
         x->k == y->k && x->has_bias == y->has_bias && x->has_gelu == y->has_gelu &&
         x->makes_gelu == y->makes_gelu;
}

static bool dtype_find(const char *name, enum lade_dtype *ret_dtype)
{
  for (size_t i = 0; i < LADE_COUNT(dtypes); i++)
    if (strcmp(lade_dtype_name(dtypes[i]), name) == 0) {
      *ret_dtype = dtypes[i];
      return true;
    }
  return false;
}

/* Set the epilogue of @kind by its name. False if there is none of that name. */
static bool epilogue_parse(const char *name, struct lade_product_kind *kind)
{
  for (size_t i = 0; i < LADE_COUNT(epilogues); i++)
    if (strcmp(epilogues[i].name, name) == 0) {
      kind->has_bias = epilogues[i].has_bias;
      kind->has_gelu = epilogues[i].has_gelu;
      kind->makes_gelu = epilogues[i].makes_gelu;
      return true;
    }
  return false;
}

static const char *epilogue_name(const struct lade_product_kind *kind)
{
  size_t i = 0;
  while (epilogues[i].has_bias != kind->has_bias || epilogues[i].has_gelu != kind->has_gelu ||
         epilogues[i].makes_gelu != kind->makes_gelu) {
    i++;
    LADE_ASSERT(i < LADE_COUNT(epilogues));
  }
  return epilogues[i].name;
}

/* Read the choice after a line's key. False if it has another form. */
static bool choice_parse(const char *text, struct lade_product_choice *ret)
{
  char layout[3], dtype[8], out[8], epilogue[12];
  long long m, n, k;
  int end = 0, i = 0;
  const int n_read = sscanf(text, " %2s %7s %7s %lld %lld %lld %11s %d %n", layout, dtype, out, &m, &n, &k, epilogue,
                            &ret->number, &end);
  if (n_read != 8 || text[end])
    return false;
  while (i < (int)LADE_COUNT(layouts) && strcmp(layouts[i], layout) != 0)
    i++;
  ret->kind = (struct lade_product_kind){.layout = (enum lade_matmul_layout)i, .m = m, .n = n, .k = k};
  return i < (int)LADE_COUNT(layouts) && dtype_find(dtype, &ret->kind.dtype) && dtype_find(out, &ret->kind.out) &&
         m > 0 && n > 0 && k > 0 && epilogue_parse(epilogue, &ret->kind) && ret->number >= 0 &&
         ret->number <= MAX_NUMBER;
}

static uint32_t hash_add(uint32_t hash, const char *text)
{
  for (; *text; text++) /* FNV-1a */
    hash = (hash ^ (unsigned char)*text) * 16777619u;
  return hash;
}

static void choice_print(const struct lade_product_choice *choice, char ret_text[CHOICE_BYTES])
{
  const struct lade_product_kind *kind = &choice->kind;
  snprintf(ret_text, CHOICE_BYTES, "%s %s %s %lld %lld %lld %s %d", layouts[kind->layout], lade_dtype_name(kind->dtype),
           lade_dtype_name(kind->out), (long long)kind->m, (long long)kind->n, (long long)kind->k,
           epilogue_name(kind), choice->number);
}

/* Take one line. 0, -EINVAL if it has another form, or -ENOMEM. */
static int line_take(char *line, const char *key, struct lade_product_choices *choices)
{
  struct lade_product_choice choice;
  char text[CHOICE_BYTES];
  line[strcspn(line, "#\r\n")] = 0;
  if (!line[strspn(line, " \t")])
    return 0;
  char *colon = strrchr(line, ':');
  if (!colon || !choice_parse(colon + 1, &choice))
    return -EINVAL;
  *colon = 0;
  if (strcmp(line, key) != 0)
    return 0;
  choice_print(&choice, text);
  choices->hash = hash_add(hash_add(choices->hash, text), "\n");
  return LADE_PUSH(&choices->list, choice) ? 0 : -ENOMEM;
}

int lade_product_choices_read(const char *path, const char *key, struct lade_error *error,
                              struct lade_product_choices *ret)
{
  char *line = NULL;
  size_t line_bytes = 0;
  int status = 0, n = 0;
  *ret = (struct lade_product_choices){.hash = 2166136261u};
  FILE *file = fopen(path, "r");
  if (!file)
    return lade_error_set(error, -EINVAL, "LADE_MATMUL_CHOICES: %s: %s", path, strerror(errno));
  errno = 0;
  while (!status && getline(&line, &line_bytes, file) >= 0) {
    n++;
    status = line_take(line, key, ret);
  }
  if (!status && errno == ENOMEM)
    status = -ENOMEM;
  free(line);
  if (!status && ferror(file)) {
    lade_error_set(error, -EINVAL, "LADE_MATMUL_CHOICES: %s: %s", path, strerror(errno));
    status = -EINVAL;
  } else if (status == -EINVAL) {
    lade_error_set(error, status, "LADE_MATMUL_CHOICES: %s, line %d: no choice of a product's algorithm, as "
                   "bench-gpu --choices writes them", path, n);
  } else if (status) {
    lade_error_set(error, status, "no memory for the choices of products");
  }
  fclose(file);
  return status;
}

void lade_product_choices_finish(struct lade_product_choices *choices)
{
  LADE_ARRAY_FREE(&choices->list);
}

int lade_product_choices_find(const struct lade_product_choices *choices, const struct lade_product_kind *kind)
{
  for (int i = choices->list.n - 1; i >= 0; i--)
    if (lade_product_kind_is(&choices->list.items[i].kind, kind))
      return choices->list.items[i].number;
  return 0;
}

int lade_product_choice_write(FILE *file, const char *key, const struct lade_product_choice *choice)
{
  char text[CHOICE_BYTES];
  choice_print(choice, text);
  return fprintf(file, "%s: %s\n", key, text) < 0 || fflush(file) ? -EIO : 0;
}
