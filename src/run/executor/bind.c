/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Binding: every instruction of a proved program gets its kernel and the addresses of its operands, once. A buffer's
 * address is its space's base plus its offset; a range in the store stays an offset. On a dry device addresses must not
 * be dereferenced, and only copies are bound, because their bytes give their price.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run/executor/executor_internal.h"

/* The first stream of random words; the parameter's number is added. No op and no initial value uses these streams. */
#define ADAMW_STREAM 0x50000000u
#define DRY_HOST_BASE ((uintptr_t)1 << 44) /* assumed address of a dry run's host tier */

void *executor_address(const lade_executor *ex, const struct lade_program *program, int32_t buffer, uint64_t offset)
{
  const struct lade_buffer *placed = &program->buffers[buffer];
  LADE_ASSERT(placed->space != LADE_STORE);
  if (placed->space == LADE_DEVICE)
    return (void *)(uintptr_t)(ex->arena + placed->offset + offset);
  uintptr_t host = ex->is_dry ? DRY_HOST_BASE : (uintptr_t)ex->host.data;
  return (void *)(host + placed->offset + offset);
}

static const struct lade_operand *operand_find(const struct lade_program *program, const struct lade_instr *instr,
                                               int role)
{
  for (int i = 0; i < instr->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[instr->first_operand + i];
    if (operand->role == role)
      return operand;
  }
  return NULL;
}

static void *operand_address(const lade_executor *ex, const struct lade_program *program,
                             const struct lade_instr *instr, int role)
{
  const struct lade_operand *operand = operand_find(program, instr, role);
  return operand ? executor_address(ex, program, operand->buffer, operand->offset) : NULL;
}

static void compute_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                         struct kernel_call *call)
{
  const struct lade_op *op = &ex->graph->ops[instr->op];
  const int n = program->n_microbatches;
  const int first = n * lade_layout_position(program->layout, LADE_AXIS_DP); /* this rank's first, in the batch */
  struct lade_bind bind = {.accumulate = instr->accumulate, .microbatch = first + instr->microbatch,
                           .n_microbatches = n * lade_layout_size(program->layout, LADE_AXIS_DP),
                           .is_evaluation = !program->is_training};
  for (int i = 0; i < instr->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[instr->first_operand + i];
    uintptr_t address = (uintptr_t)executor_address(ex, program, operand->buffer, operand->offset);
    if (operand->role == LADE_ROLE_SCRATCH)
      bind.workspace = address;
    else if (operand->role >= LADE_ROLE_OUT)
      bind.out[operand->role - LADE_ROLE_OUT] = address;
    else
      bind.in[operand->role] = address;
  }
  lade_op_bind(ex->graph, instr->op, &bind, call->args);
  call->kernel = op->kernel;
}

static void sumsq_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                       struct kernel_call *call)
{
  struct lade_sum_squares_args args = {
      .dtype = ex->graph->grad_dtype, .n_elements = lade_norm_elements(ex->graph, program->layout, instr->param),
      .grad = operand_address(ex, program, instr, LADE_ROLE_SRC),
      .partial = operand_address(ex, program, instr, LADE_ROLE_DST)};
  struct lade_tree_sum_args none = {.sum = args.partial}; /* sum over no elements: zero */
  if (args.n_elements)
    memcpy(call->args, &args, sizeof(args));
  else
    memcpy(call->args, &none, sizeof(none));
  call->kernel = args.n_elements ? LADE_K_SUM_SQUARES : LADE_K_TREE_SUM;
}

static void sum_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                     struct kernel_call *call)
{
  struct lade_tree_sum_args args = {
      .n = (int64_t)(operand_find(program, instr, LADE_ROLE_SRC)->bytes / sizeof(double)),
      .x = operand_address(ex, program, instr, LADE_ROLE_SRC),
      .sum = operand_address(ex, program, instr, LADE_ROLE_DST)};
  memcpy(call->args, &args, sizeof(args));
  call->kernel = LADE_K_TREE_SUM;
}

static void add_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                     struct kernel_call *call)
{
  struct lade_add_args args = {.n_elements = lade_param_shard(ex->graph, program->layout, instr->param).n,
                               .x = operand_address(ex, program, instr, LADE_ROLE_SRC),
                               .y = operand_address(ex, program, instr, LADE_ROLE_DST)};
  memcpy(call->args, &args, sizeof(args));
  call->kernel = args.n_elements ? LADE_K_ADD : CALL_NOTHING;
}

/* Bind a cast between the types of its operands. It converts padding too, which is as long on both sides and unused. */
static void cast_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                      struct kernel_call *call)
{
  const struct lade_operand *src = operand_find(program, instr, LADE_ROLE_SRC);
  const struct lade_operand *dst = operand_find(program, instr, LADE_ROLE_DST);
  struct lade_cast_args args = {.from = lade_value_dtype(ex->graph, src->reads.tensor),
                                .to = lade_value_dtype(ex->graph, dst->makes.tensor),
                                .x = operand_address(ex, program, instr, LADE_ROLE_SRC),
                                .y = operand_address(ex, program, instr, LADE_ROLE_DST)};
  args.n_elements = (int64_t)(src->bytes / lade_dtype_bytes(args.from));
  memcpy(call->args, &args, sizeof(args));
  call->kernel = LADE_K_CAST;
}

static void clip_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                      struct kernel_call *call)
{
  const struct lade_operand *partials = operand_find(program, instr, LADE_ROLE_SRC);
  struct lade_clip_args args = {.n_partials = (int64_t)(partials->bytes / sizeof(double)),
                                .partial = operand_address(ex, program, instr, LADE_ROLE_SRC),
                                .clip_result = operand_address(ex, program, instr, LADE_ROLE_DST)};
  memcpy(call->args, &args, sizeof(args));
  call->kernel = LADE_K_CLIP;
}

static struct lade_adamw_args adamw_args(const lade_executor *ex, const struct lade_program *program,
                                         const struct lade_instr *instr)
{
  const struct lade_state_shard shard = lade_param_shard(ex->graph, program->layout, instr->param);
  const struct lade_param *param = &ex->graph->params[instr->param];
  const int64_t first_element = param->first_row * ex->graph->model.width + shard.first; /* first_row: tables only */
  return (struct lade_adamw_args){
      .dtype = ex->graph->dtype, .grad_dtype = ex->graph->grad_dtype,
      .moments = ex->graph->moments, .master = ex->graph->master,
      .stream = ADAMW_STREAM + (uint32_t)param->number, .n_elements = shard.n,
      .first_element = (uint64_t)first_element, .has_decay = param->has_decay,
      .clip_result = operand_address(ex, program, instr, LADE_ROLE_CLIP_RESULT)};
}

static void update_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                        struct kernel_call *call)
{
  struct lade_adamw_args args = adamw_args(ex, program, instr);
  args.weight = operand_address(ex, program, instr, LADE_ROLE_WEIGHT);
  args.grad = operand_address(ex, program, instr, LADE_ROLE_GRAD);
  args.residual = operand_address(ex, program, instr, LADE_ROLE_RESIDUAL);
  args.m = operand_address(ex, program, instr, LADE_ROLE_M);
  args.v = operand_address(ex, program, instr, LADE_ROLE_V);
  args.m_scales = operand_address(ex, program, instr, LADE_ROLE_M_SCALES);
  args.v_scales = operand_address(ex, program, instr, LADE_ROLE_V_SCALES);
  memcpy(call->args, &args, sizeof(args));
  call->kernel = args.n_elements ? LADE_K_ADAMW : CALL_NOTHING;
}

/* Return the offset of an operand in the plan's store. */
static uint64_t stored_offset(const struct lade_program *program, const struct lade_operand *operand)
{
  return program->buffers[operand->buffer].offset + operand->offset;
}

static void scales_bind(const struct lade_program *program, const struct lade_instr *instr, struct stream_call *s)
{
  for (int role = LADE_ROLE_M_SCALES; role <= LADE_ROLE_V_SCALES; role++) {
    const struct lade_operand *operand = operand_find(program, instr, role);
    if (!operand)
      continue;
    s->scales[s->n_scales++] = (struct stream_scales){
        .value = operand->reads, .store_offset = stored_offset(program, operand), .bytes = operand->bytes,
        .part = (enum lade_part)(role - LADE_ROLE_RESIDUAL)};
  }
  s->scales_bytes = lade_state_scales_bytes(program->graph, s->n_held);
}

/* Return the elements of a window: windows of about equal length, as few as the program's streaming allows. */
static int64_t stream_window(const struct lade_program *program, const struct stream_call *s)
{
  size_t element_bytes = 0;
  for (int i = 0; i < s->n_parts; i++)
    element_bytes += s->parts[i].element_bytes;
  const int64_t max = lade_stream_window_elements(&program->streaming, element_bytes);
  const int64_t n_windows = lade_div_up(s->n_held, max);
  return lade_div_up(lade_div_up(s->n_held, n_windows), LADE_STREAM_GRAIN) * LADE_STREAM_GRAIN;
}

/* Bind one operand of a streamed update. Weight and gradient may be in memory. */
static void stream_part_bind(const lade_executor *ex, const struct lade_program *program,
                             const struct lade_operand *operand, int role, struct stream_call *s)
{
  if (program->buffers[operand->buffer].space != LADE_STORE) {
    void *data = executor_address(ex, program, operand->buffer, operand->offset);
    LADE_ASSERT(role == LADE_ROLE_WEIGHT || role == LADE_ROLE_GRAD);
    if (role == LADE_ROLE_WEIGHT)
      s->args.weight = data;
    else
      s->args.grad = data;
    return;
  }
  s->part_of_role[role] = s->n_parts;
  s->parts[s->n_parts++] = (struct stream_part){
      .value = operand->reads, .store_offset = stored_offset(program, operand),
      .element_bytes = (size_t)(operand->bytes / (uint64_t)s->n_held), .role = role};
}

static int stream_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                       struct stream_call **ret_stream)
{
  struct stream_call *s = calloc(1, sizeof(*s));
  if (!s)
    return -ENOMEM;
  s->executor = ex;
  s->args = adamw_args(ex, program, instr);
  s->scratch = operand_address(ex, program, instr, LADE_ROLE_SCRATCH);
  s->scratch_bytes = operand_find(program, instr, LADE_ROLE_SCRATCH)->bytes;
  s->scratch_buffer = operand_find(program, instr, LADE_ROLE_SCRATCH)->buffer;
  s->n_held = lade_param_shard(ex->graph, program->layout, instr->param).n_padded;
  s->state_offset = ex->state_places[instr->param];
  for (int role = LADE_ROLE_WEIGHT; role <= LADE_ROLE_V; role++) {
    const struct lade_operand *operand = operand_find(program, instr, role);
    s->part_of_role[role] = -1;
    if (operand)
      stream_part_bind(ex, program, operand, role, s);
  }
  s->n_window = stream_window(program, s);
  scales_bind(program, instr, s);
  *ret_stream = s;
  return 0;
}

static void copy_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                      struct lade_copy *copy)
{
  copy->src = operand_address(ex, program, instr, LADE_ROLE_SRC);
  copy->dst = operand_address(ex, program, instr, LADE_ROLE_DST);
  copy->bytes = operand_find(program, instr, LADE_ROLE_SRC)->bytes;
  copy->predicted_ns = instr->predicted_ns + instr->shared_ns;
  copy->shared_ns = instr->shared_ns;
}

/*
 * Link transfer @at to the one before it, @before. Find the latest transfer that it must follow, among those that may
 * be in flight beside it.
 */
static void io_link(struct bound_program *bound, int at, int before)
{
  const struct lade_program *program = bound->program;
  struct io_call *io = &bound->ios[at];
  io->next = io->after = -1;
  if (before < 0 || !lade_instr_is_transfer(&program->instrs[before]))
    return;
  bound->ios[before].next = at;
  for (int n = 0, other = before; n < LADE_IO_AHEAD && other >= 0 && io->after < 0; n++) {
    if (!lade_instr_is_transfer(&program->instrs[other]))
      return;
    if (lade_program_transfers_conflict(program, other, at))
      io->after = other;
    other = bound->before[other];
  }
}

static void io_bind(lade_executor *ex, struct bound_program *bound, int at)
{
  const struct lade_program *program = bound->program;
  const struct lade_instr *instr = &program->instrs[at];
  struct io_call *io = &bound->ios[at];
  bool is_read = instr->kind == LADE_INSTR_READ;
  const struct lade_operand *stored = operand_find(program, instr, is_read ? LADE_ROLE_SRC : LADE_ROLE_DST);
  io->executor = ex;
  io->bound = bound;
  io->at = at;
  io_link(bound, at, bound->before[at]);
  io->value = is_read ? stored->reads : stored->makes;
  io->store_offset = program->buffers[stored->buffer].offset + stored->offset;
  io->transfer = (struct lade_transfer){
      .op = is_read ? LADE_STORE_READ : LADE_STORE_WRITE, .check = LADE_CHECK_STORE, .bytes = stored->bytes,
      .data = operand_address(ex, program, instr, is_read ? LADE_ROLE_DST : LADE_ROLE_SRC)};
}

/* Narrow an in-place collective over a gradient to the elements that several tensor parallel ranks have parts of. */
static void parts_bind(const lade_executor *ex, const struct lade_program *program, int param,
                       struct lade_collective *collective)
{
  const struct lade_parts parts = lade_param_parts(ex->graph, program->layout, param);
  char *first = (char *)collective->dst + (uint64_t)parts.first * lade_dtype_bytes(collective->dtype);
  collective->src = collective->dst = first;
  collective->n = (uint64_t)parts.n;
}

static void collective_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                            struct lade_collective *collective)
{
  const struct lade_operand *src = &program->operands[instr->first_operand];
  const struct lade_operand *dst = src + instr->n_operands - 1; /* in place: the same operand */
  const enum lade_dtype dtype = lade_value_dtype(ex->graph, src->reads.tensor);
  *collective = (struct lade_collective){
      .kind = (enum lade_collective_kind)instr->collective, .dtype = dtype,
      .n = LADE_MIN(src->bytes, dst->bytes) / lade_dtype_bytes(dtype), /* of the block, if one side holds the whole */
      .src = executor_address(ex, program, src->buffer, src->offset),
      .dst = executor_address(ex, program, dst->buffer, dst->offset)};
  if (instr->param >= 0 && lade_axis_has_parts((enum lade_axis)instr->axis))
    parts_bind(ex, program, instr->param, collective);
}

static void boundary_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                          struct lade_collective *collective)
{
  const struct lade_operand *operand = &program->operands[instr->first_operand];
  const bool is_send = instr->kind == LADE_INSTR_SEND;
  const enum lade_dtype dtype = ex->graph->tensors[is_send ? operand->reads.tensor : operand->makes.tensor].dtype;
  void *data = executor_address(ex, program, operand->buffer, operand->offset);
  *collective = (struct lade_collective){.kind = is_send ? LADE_SEND : LADE_RECV, .dtype = dtype,
                                         .peer = instr->peer, .n = operand->bytes / lade_dtype_bytes(dtype),
                                         .src = is_send ? data : NULL, .dst = is_send ? NULL : data};
}

/* Bind an instruction that is one kernel. */
static void kernel_bind(lade_executor *ex, const struct lade_program *program, const struct lade_instr *instr,
                        struct kernel_call *call)
{
  switch (instr->kind) {
  case LADE_INSTR_COMPUTE:
    compute_bind(ex, program, instr, call);
    break;
  case LADE_INSTR_GRAD_SUMSQ:
    sumsq_bind(ex, program, instr, call);
    break;
  case LADE_INSTR_CLIP:
    clip_bind(ex, program, instr, call);
    break;
  case LADE_INSTR_UPDATE:
    update_bind(ex, program, instr, call);
    break;
  case LADE_INSTR_ADD:
    add_bind(ex, program, instr, call);
    break;
  case LADE_INSTR_SUM:
    sum_bind(ex, program, instr, call);
    break;
  default:
    cast_bind(ex, program, instr, call);
    break;
  }
}

static int instr_bind(lade_executor *ex, struct bound_program *bound, int at)
{
  const struct lade_program *program = bound->program;
  const struct lade_instr *instr = &program->instrs[at];
  struct kernel_call *call = &bound->calls[at];
  call->executor = ex;
  if (instr->is_streamed)
    return stream_bind(ex, program, instr, &bound->streams[at]);
  switch (instr->kind) {
  case LADE_INSTR_COPY:
    copy_bind(ex, program, instr, &bound->copies[at]);
    break;
  case LADE_INSTR_READ:
  case LADE_INSTR_WRITE:
    io_bind(ex, bound, at);
    break;
  case LADE_INSTR_COLLECTIVE:
    collective_bind(ex, program, instr, &bound->collectives[at]);
    break;
  case LADE_INSTR_SEND:
  case LADE_INSTR_RECV:
    boundary_bind(ex, program, instr, &bound->collectives[at]);
    break;
  default:
    kernel_bind(ex, program, instr, call);
    break;
  }
  return 0;
}

int bound_init(lade_executor *ex, const struct lade_program *program, struct bound_program *ret_bound)
{
  size_t n = (size_t)program->n_instrs + 1;
  struct bound_program *b = ret_bound;
  *b = (struct bound_program){.program = program};
  b->calls = aligned_alloc(64, n * sizeof(*b->calls));
  b->ios = calloc(n, sizeof(*b->ios));
  b->streams = calloc(n, sizeof(*b->streams));
  b->copies = calloc(n, sizeof(*b->copies));
  b->comms = calloc(n, sizeof(*b->comms));
  b->collectives = calloc(n, sizeof(*b->collectives));
  b->counts = calloc(n, sizeof(*b->counts));
  b->spans = calloc(n, sizeof(*b->spans));
  b->before = calloc(n, sizeof(*b->before));
  if (!b->calls || !b->ios || !b->streams || !b->copies || !b->comms || !b->collectives || !b->counts || !b->spans ||
      !b->before)
    return -ENOMEM;
  int32_t last[LADE_N_QUEUES];
  for (int q = 0; q < LADE_N_QUEUES; q++)
    last[q] = -1;
  memset(b->calls, 0, n * sizeof(*b->calls));
  int status = 0;
  for (int i = 0; i < program->n_instrs && !status; i++) {
    const int queue = program->instrs[i].queue;
    b->before[i] = last[queue];
    last[queue] = i;
    b->copies[i].ret_span = b->comms[i].ret_span = &b->spans[i];
    b->comms[i].list = (struct lade_comm_list){&b->collectives[i], lade_program_group_end(program, i) - i};
    if (!ex->is_dry)
      status = instr_bind(ex, b, i);
    else if (program->instrs[i].kind == LADE_INSTR_COPY)
      copy_bind(ex, program, &program->instrs[i], &b->copies[i]);
  }
  if (!status)
    status = streams_bind(b);
  LADE_ASSERT(!LADE_CHECK_FULL || status || bound_program_is_valid(ex, b));
  return status;
}

void bound_finish(struct bound_program *bound)
{
  streams_finish(bound);
  free(bound->calls);
  free(bound->ios);
  free(bound->streams);
  free(bound->copies);
  free(bound->comms);
  free(bound->collectives);
  free(bound->counts);
  free(bound->spans);
  free(bound->before);
  *bound = (struct bound_program){0};
}
