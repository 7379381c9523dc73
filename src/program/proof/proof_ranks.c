/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof's first part for several ranks: the operands of collectives, and the versions of summed gradients. The
 * layout determines the collectives. Versions of a gradient, or of its block, count these changes in order:
 *
 *   additions of this rank; the sum with those that hold parts of it (tensor parallel); the sum over data parallel
 *   ranks, or over replicas of shards; the sum over both ends of a pipeline
 *
 * With sums in BF16 each sum over data parallel ranks or replicas is three instructions: narrow to a value of its own,
 * sum, and widen to the version that an F32 sum makes.
 */
#include "program/proof/proof_expect.h"

static const struct lade_value nothing = {-1, 0, 0};

/* ---- expectations ---- */

uint64_t proof_value_bytes(const struct proof *proof, int tensor)
{
  if (tensor == lade_value_scalar(proof->graph, LADE_SCALAR_PARTIALS))
    return (uint64_t)proof->partial_at[proof->graph->n_params] * sizeof(double);
  return lade_held_bytes(proof->graph, proof->program->layout, tensor);
}

static void expect(struct expectation *e, const struct expected *operand)
{
  LADE_ASSERT(e->n < MAX_EXPECTED);
  e->operands[e->n++] = *operand;
}

void expect_scratch(struct expectation *e, unsigned spaces, uint64_t bytes)
{
  expect(e, &(struct expected){LADE_ROLE_SCRATCH, LADE_MAKES, (uint8_t)spaces, nothing, nothing, bytes});
}

void expect_read(const struct proof *proof, struct expectation *e, int role, unsigned spaces, struct lade_value value)
{
  expect(e, &(struct expected){(uint8_t)role, LADE_READS, (uint8_t)spaces, value, nothing,
                               proof_value_bytes(proof, value.tensor)});
}

void expect_make(const struct proof *proof, struct expectation *e, int role, unsigned spaces, struct lade_value value)
{
  expect(e, &(struct expected){(uint8_t)role, LADE_MAKES, (uint8_t)spaces, nothing, value,
                               proof_value_bytes(proof, value.tensor)});
}

void expect_change(const struct proof *proof, struct expectation *e, int role, unsigned spaces, int tensor,
                   int version)
{
  expect(e, &(struct expected){(uint8_t)role, LADE_READS_AND_MAKES, (uint8_t)spaces, value_of(tensor, 0, version),
                               value_of(tensor, 0, version + 1), proof_value_bytes(proof, tensor)});
}

/* ---- existing collectives ---- */

bool proof_axis_is_summed(const struct proof *proof, const struct lade_instr *instr)
{
  int level = lade_sums_level((enum lade_axis)instr->axis);
  return level >= 0 && lade_sums_size(proof->program->layout, level) > 1;
}

/*
 * Return the axis over which parts of the gradient of @param are added up: rows after the first over ranks with the
 * same KV heads.
 */
static enum lade_axis parts_axis(const struct proof *proof, int param)
{
  return proof->graph->params[param].first_shared_row > 0 ? LADE_AXIS_KV : LADE_AXIS_TP;
}

bool proof_collective_exists(const struct proof *proof, const struct lade_instr *instr)
{
  const bool is_training = proof->program->is_training, is_of_loss = instr->param < 0;
  switch (instr->collective) {
  case LADE_ALL_REDUCE:
    if (instr->axis == LADE_AXIS_EMBED)
      return is_training && instr->param >= 0 && instr->param < proof->graph->n_params &&
             proof->graph->params[instr->param].is_at_both_ends;
    if (lade_axis_has_parts((enum lade_axis)instr->axis))
      return is_training && instr->param >= 0 && instr->param < proof->graph->n_params &&
             has_parts(proof, instr->param) && instr->axis == parts_axis(proof, instr->param);
    return (is_training || is_of_loss) &&
           instr->axis == (is_sharded(proof) && !is_of_loss ? LADE_AXIS_REPLICATE : LADE_AXIS_DP);
  case LADE_REDUCE_SCATTER:
    return is_training && is_sharded(proof) && instr->param >= 0 && instr->axis == LADE_AXIS_SHARD;
  case LADE_ALL_GATHER:
    if (instr->param < 0)
      return is_training && instr->microbatch == 0 && proof_axis_is_summed(proof, instr);
    return is_sharded(proof) && instr->axis == LADE_AXIS_SHARD && instr->microbatch == 0;
  default:
    return false;
  }
}

/* ---- collectives ---- */

/*
 * Return the version of a gradient, or of its block, that a sum over data parallel ranks or replicas of shards reads.
 */
static int version_to_sum(const struct proof *proof, int param)
{
  return (is_sharded(proof) ? block_added(proof) : grad_added(proof, param)) + has_parts(proof, param);
}

/* Return the tensor of the gradient, or of this rank's block of it. */
static int grad_or_block(const struct proof *proof, int param)
{
  return is_sharded(proof) ? lade_value_block(proof->graph, param, LADE_BLOCK_GRAD) : proof->graph->params[param].grad;
}

/* Return the BF16 value of the same. A block has earlier versions, those of microbatches from other ranks. */
static struct lade_value narrow_to_sum(const struct proof *proof, int param)
{
  enum lade_block kind = is_sharded(proof) ? LADE_BLOCK_NARROW : LADE_BLOCK_NARROW_WHOLE;
  return (struct lade_value){lade_value_block(proof->graph, param, kind), 0, is_sharded(proof)};
}

/*
 * Expect a sum in place: of a loss, of a gradient with all additions of this rank, or of a block over its replicas.
 * Parts of tensor parallel ranks are summed first, and a tied table's gradient over both ends of the pipeline last.
 */
static void all_reduce_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const unsigned device = ON(LADE_DEVICE);
  const int param = instr->param;
  if (param < 0) {
    expect_change(proof, e, LADE_ROLE_SRC, device, proof->graph->loss, 0);
    e->operands[0].reads.microbatch = e->operands[0].makes.microbatch = instr->microbatch;
    return;
  }
  const int to_sum = version_to_sum(proof, param), n_done = is_sharded(proof) ? block_complete(proof, param)
                                                                              : grad_complete(proof, param);
  const struct lade_value narrow = narrow_to_sum(proof, param);
  if (instr->axis == LADE_AXIS_EMBED)
    expect_change(proof, e, LADE_ROLE_SRC, device, grad_or_block(proof, param), n_done - 1);
  else if (lade_axis_has_parts((enum lade_axis)instr->axis))
    expect_change(proof, e, LADE_ROLE_SRC, device, grad_or_block(proof, param), to_sum - 1);
  else if (is_narrow(proof))
    expect_change(proof, e, LADE_ROLE_SRC, device, narrow.tensor, narrow.version);
  else
    expect_change(proof, e, LADE_ROLE_SRC, device, grad_or_block(proof, param), to_sum);
}

/* Return the value made from the gradient of @microbatch: the first makes the block, later ones are added to it. */
static struct lade_value block_made(const struct proof *proof, int param, int microbatch)
{
  if (microbatch == 0)
    return (struct lade_value){lade_value_block(proof->graph, param, LADE_BLOCK_GRAD), 0, 1};
  return (struct lade_value){lade_value_block(proof->graph, param, LADE_BLOCK_INCOMING), (int16_t)microbatch, 0};
}

/* Return the gradient of all microbatches, or of @microbatch, as it is sent to other ranks. */
static struct lade_value grad_sent(const struct proof *proof, int param, int microbatch)
{
  int version = is_sharded(proof) ? grad_added(proof, param) : version_to_sum(proof, param);
  if (sums_each(proof))
    version = (microbatch + 1) * proof->n_adds[param];
  return (struct lade_value){proof->graph->params[param].grad, 0, (int16_t)version};
}

/* Expect the gradient of all microbatches, or of each, and its block. */
static void reduce_scatter_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const int param = instr->param, m = sums_each(proof) ? instr->microbatch : 0;
  struct lade_value src = grad_sent(proof, param, m), dst = block_made(proof, param, m);
  if (is_narrow(proof)) {
    src = (struct lade_value){lade_value_block(proof->graph, param, LADE_BLOCK_NARROW_WHOLE), (int16_t)m, 0};
    dst = (struct lade_value){lade_value_block(proof->graph, param, LADE_BLOCK_NARROW), (int16_t)m, 0};
  }
  expect_read(proof, e, LADE_ROLE_SRC, ON(LADE_DEVICE), src);
  expect_make(proof, e, LADE_ROLE_DST, ON(LADE_DEVICE), dst);
}

/*
 * Expect a cast. To BF16: the gradient before it goes to other ranks, or a block before its sum over replicas. Back:
 * the sum of either. The value that the instruction reads says which; the walk shows that it is there.
 */
void cast_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const int param = instr->param, m = sums_each(proof) ? instr->microbatch : 0;
  const struct lade_value sent = grad_sent(proof, param, m), to_sum = narrow_to_sum(proof, param);
  const int whole = lade_value_block(proof->graph, param, LADE_BLOCK_NARROW_WHOLE);
  const int block = lade_value_block(proof->graph, param, LADE_BLOCK_NARROW), sum = grad_or_block(proof, param);
  const struct lade_value found = instr->n_operands ? proof->program->operands[instr->first_operand].reads : nothing;
  struct lade_value src = sent, dst = {whole, (int16_t)m, 0};
  if (found.tensor == to_sum.tensor && found.version == to_sum.version + 1) {
    src = (struct lade_value){to_sum.tensor, 0, (int16_t)(to_sum.version + 1)};
    dst = (struct lade_value){sum, 0, (int16_t)(version_to_sum(proof, param) + 1)};
  } else if (found.tensor == block) {
    src = (struct lade_value){block, (int16_t)m, 0};
    dst = block_made(proof, param, m);
  } else if (found.tensor == sum && is_sharded(proof)) {
    src = (struct lade_value){sum, 0, (int16_t)version_to_sum(proof, param)};
    dst = to_sum;
  }
  expect_read(proof, e, LADE_ROLE_SRC, ON(LADE_DEVICE), src);
  expect_make(proof, e, LADE_ROLE_DST, ON(LADE_DEVICE), dst);
}

/* Expect a gather: a working copy from its blocks; or every rank's sum of squares. */
static void all_gather_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const struct lade_model_graph *graph = proof->graph;
  const int param = instr->param;
  if (param < 0) {
    int level = lade_sums_level((enum lade_axis)instr->axis);
    expect_read(proof, e, LADE_ROLE_SRC, ON(LADE_DEVICE),
                value_of(lade_value_scalar(graph, LADE_SCALAR_SUM), 0, level));
    expect_make(proof, e, LADE_ROLE_DST, ON(LADE_DEVICE),
                value_of(lade_value_scalar(graph, (enum lade_scalar)(LADE_SCALAR_SUMS + level)), 0, 0));
    return;
  }
  expect_read(proof, e, LADE_ROLE_SRC, ON(LADE_DEVICE),
              value_of(lade_value_block(graph, param, LADE_BLOCK_WEIGHT), 0, 0));
  expect_make(proof, e, LADE_ROLE_DST, ON(LADE_DEVICE), value_of(graph->params[param].tensor, 0, 0));
}

void collective_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  if (instr->collective == LADE_ALL_REDUCE)
    all_reduce_expect(proof, instr, e);
  else if (instr->collective == LADE_REDUCE_SCATTER)
    reduce_scatter_expect(proof, instr, e);
  else
    all_gather_expect(proof, instr, e);
}

void add_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const struct lade_model_graph *graph = proof->graph;
  const int m = instr->microbatch;
  expect_read(proof, e, LADE_ROLE_SRC, ON(LADE_DEVICE),
              value_of(lade_value_block(graph, instr->param, LADE_BLOCK_INCOMING), m, 0));
  expect_change(proof, e, LADE_ROLE_DST, ON(LADE_DEVICE), lade_value_block(graph, instr->param, LADE_BLOCK_GRAD), m);
}

void sum_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const int level = lade_sums_level((enum lade_axis)instr->axis);
  sums_expect(proof, level, e);
  expect_make(proof, e, LADE_ROLE_DST, ON(LADE_DEVICE),
              value_of(lade_value_scalar(proof->graph, LADE_SCALAR_SUM), 0, level));
}

/* ---- sums of squares ---- */

void sums_expect(const struct proof *proof, int level, struct expectation *e)
{
  const struct lade_layout *layout = proof->program->layout;
  while (level > 0 && lade_sums_size(layout, level - 1) == 1)
    level--;
  int scalar = level > 0 ? LADE_SCALAR_SUMS + level - 1 : LADE_SCALAR_PARTIALS;
  expect_read(proof, e, LADE_ROLE_SRC, ON(LADE_DEVICE),
              value_of(lade_value_scalar(proof->graph, (enum lade_scalar)scalar), 0, 0));
  if (level == 0)
    e->operands[0].bytes = (uint64_t)lade_summed_partials(proof->graph, layout) * sizeof(double);
}
