/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One harness for every kernel. An op is described once (struct op: how to fill its arguments for a dtype and a shape,
 * which pointers are inputs and outputs, how exact the result must be). The harness calls the plain reference and every
 * variant on hostile inputs and compares them; `--bench` times the same calls.
 *
 * To add an op: write a build function as in ops_*.c, list it in an array of struct op, and add that array to op_sets
 * in test_kernels.c.
 */
#ifndef LADE_TESTS_HARNESS_H
#define LADE_TESTS_HARNESS_H

#include "kernels/kernels.h"
#include "levels.h"

enum role { ROLE_IN, ROLE_OUT, ROLE_INOUT };
enum fill {
  FILL_VALUE,    /* as the pattern says */
  FILL_POSITIVE, /* random in 0.5..2, whatever the pattern: rstd and the like */
  FILL_SQUARE,   /* like VALUE, not negative */
  FILL_INDEX,    /* random in 0..limit-1 */
  FILL_NONE      /* the op's setup writes it */
};
enum pattern { PATTERN_RANDOM, PATTERN_ZERO, PATTERN_MAX, PATTERN_MIN, PATTERN_DENORMAL, N_PATTERNS };

struct operand {
  size_t field[2]; /* offsets in the arguments: two if an output is an input's memory */
  int n_fields;
  enum role role;
  enum fill fill;
  enum lade_dtype dtype;
  int64_t n_elements;
  double limit;           /* FILL_INDEX: the end; FILL_VALUE: magnitude of MIN and MAX, 0: the dtype's largest */
  double ulps, relative;  /* of an output: |got - want| <= ulps of want + relative * largest |want|; 0, 0: bits */
  double scale;           /* lower bound of "largest": the size of a sum's terms, which may cancel */
  void *block;            /* the fields from here on belong to the harness */
  void *data;
  void *start;            /* contents of data before the call */
};

#define CALL_OPERANDS 16
struct call {
  enum lade_kernel kernel;
  enum lade_dtype dtype;
  bool is_bench;
  union {
    void *align;
    char bytes[256];
  } args;
  struct operand operands[CALL_OPERANDS];
  int n_operands;
  size_t workspace_field; /* 0: none (no struct begins with it) */
  void (*setup)(struct call *call, struct lade_step *step); /* after the fill, before the call; may be NULL */
  double traffic_bytes;   /* least memory traffic of the call; 0: no bandwidth line */
};

struct op {
  const char *name;
  enum lade_kernel kernel;
  /*
   * Fill @call for shape @i_shape (the bench's own if is_bench); false past the last one or if dtype is not supported.
   */
  bool (*build)(struct call *call, int i_shape);
};

struct op_set {
  const struct op *ops;
  int n_ops;
};
extern const struct op_set row_ops, element_ops, optimizer_ops;

/* Declare the pointer at @field (inside call->args) as an operand; the caller may adjust the result. */
struct operand *call_in(struct call *call, const void *field, enum lade_dtype dtype, int64_t n_elements);
struct operand *call_out(struct call *call, const void *field, enum lade_dtype dtype, int64_t n_elements, double ulps,
                         double relative);
/* Declare an output that starts as an input; @also (may be NULL) is a second pointer to the same memory. */
struct operand *call_inout(struct call *call, const void *field, const void *also, enum lade_dtype dtype,
                           int64_t n_elements, double ulps, double relative);
void call_workspace(struct call *call, const void *field);

/* Return the accumulator's dtype, and the exactness of a value of @dtype that was computed in it and rounded once. */
enum lade_dtype accumulator_of(enum lade_dtype dtype);
double element_get(enum lade_dtype dtype, const void *data, int64_t i);
void element_set(enum lade_dtype dtype, void *data, int64_t i, double value);

/* Return a number uniform in -1..1; the generator is the caller's. */
double random_next(uint64_t *state);

/* Check the property of one op at one seed; cmocka assertions. */
void op_check(const struct op *op, uint64_t seed);
/* Print one line per variant. */
void op_bench(const struct op *op);
/* Time a copy that reads and writes @bytes in all, in pieces of the tasks' size, on @pool. Return seconds. */
double copy_seconds(lade_pool *pool, double bytes);

/* Allocate and fill the call's buffers; released with call_finish. */
void call_init(struct call *call, enum pattern pattern, uint64_t seed, struct lade_step *step);
void call_reset(struct call *call);
void call_run(struct call *call, const struct lade_kernels *kernels, lade_pool *pool, const struct lade_step *step);
void call_finish(struct call *call);
struct lade_step step_make(uint64_t seed);

#endif
