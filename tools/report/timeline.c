/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timelines, in the JSON array form of the Trace Event Format: a complete event ("X") for each instruction with its
 * start and length in microseconds. Instructions of zero length are left out because viewers draw them as noise. Events
 * are written as they are made, so a program of a million instructions needs no tree.
 */
#include "tools/report/timeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/options.h"

enum { PROCESS_PREDICTED = 1, PROCESS_MEASURED = 2 };

/* Return the first value that the instruction makes, or else reads; -1: none. */
static int tensor_of(const struct lade_program *program, const struct lade_instr *instr)
{
  const struct lade_operand *operands = &program->operands[instr->first_operand];
  for (int i = 0; i < instr->n_operands; i++) {
    if ((operands[i].access & LADE_MAKES) && operands[i].makes.tensor >= 0)
      return operands[i].makes.tensor;
  }
  for (int i = 0; i < instr->n_operands; i++) {
    if ((operands[i].access & LADE_READS) && operands[i].reads.tensor >= 0)
      return operands[i].reads.tensor;
  }
  return -1;
}

static uint64_t bytes_of(const struct lade_program *program, const struct lade_instr *instr)
{
  bool is_move = instr->kind == LADE_INSTR_COPY || instr->kind == LADE_INSTR_READ || instr->kind == LADE_INSTR_WRITE;
  return is_move && instr->n_operands ? program->operands[instr->first_operand].bytes : 0;
}

/* Write the name of an op or tensor: letters, digits, dots and underscores, so nothing needs escaping. */
static void name_write(FILE *file, const struct lade_program *program, const struct lade_instr *instr)
{
  char name[LADE_NAME_BYTES + 16];
  int tensor = tensor_of(program, instr);
  const char *label = instr->kind == LADE_INSTR_COMPUTE ? lade_op_kind_name(program->graph->ops[instr->op].kind)
                                                       : lade_instr_kind_name((enum lade_instr_kind)instr->kind);
  fprintf(file, "%s%s %s", instr->is_recompute ? "again: " : "", label,
          tensor < 0 ? "" : lade_value_name(program->graph, tensor, name));
}

static void event_write(FILE *file, const struct lade_program *program, int i, int process, int64_t start_ns,
                        int64_t end_ns)
{
  const struct lade_instr *instr = &program->instrs[i];
  if (end_ns <= start_ns)
    return;
  fprintf(file, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"", process, instr->queue,
          (double)start_ns / 1e3, (double)(end_ns - start_ns) / 1e3);
  name_write(file, program, instr);
  fprintf(file, "\",\"args\":{\"instruction\":%d,\"microbatch\":%d,\"predicted_us\":%.3f,\"bytes\":%llu}}", i,
          instr->microbatch, (double)instr->predicted_ns / 1e3, (unsigned long long)bytes_of(program, instr));
}

static void process_write(FILE *file, int process, const char *name, bool is_first)
{
  fprintf(file, "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}",
          is_first ? "" : ",", process, name);
  for (int queue = 0; queue < LADE_N_QUEUES; queue++)
    fprintf(file, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
            process, queue, lade_queue_name((enum lade_queue_id)queue));
}

static int predicted_write(FILE *file, const struct lade_session_info *info)
{
  struct lade_program *program = info->plan->train;
  int64_t(*spans)[2] = calloc((size_t)program->n_instrs + 1, sizeof(*spans));
  int status = spans ? lade_program_simulate(program, info->prices, spans) : -ENOMEM;
  process_write(file, PROCESS_PREDICTED, "predicted", true);
  for (int i = 0; i < program->n_instrs && !status; i++)
    event_write(file, program, i, PROCESS_PREDICTED, spans[i][0], spans[i][1]);
  free(spans);
  return status;
}

static void measured_write(FILE *file, const struct lade_session_info *info)
{
  const struct lade_program *program = info->plan->train;
  const struct lade_span *spans = info->executor ? lade_executor_spans(info->executor) : NULL;
  int64_t first_ns = INT64_MAX;
  if (!spans)
    return;
  for (int i = 0; i < program->n_instrs; i++)
    first_ns = spans[i].end_ns > 0 && spans[i].start_ns < first_ns ? spans[i].start_ns : first_ns;
  process_write(file, PROCESS_MEASURED, "measured", false);
  for (int i = 0; i < program->n_instrs; i++)
    event_write(file, program, i, PROCESS_MEASURED, spans[i].start_ns - first_ns, spans[i].end_ns - first_ns);
}

int timeline_write(const char *path, const struct lade_session_info *info, struct lade_error *error)
{
  FILE *file = NULL;
  int status = output_open("timeline", path, false, error, &file);
  if (status)
    return status;
  fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", file);
  status = predicted_write(file, info);
  measured_write(file, info);
  fputs("\n]}\n", file);
  const int close_status = output_close("timeline", path, file, status ? NULL : error);
  if (status)
    return lade_error_set(error, status, "--timeline %s: it could not be written: %s", path, strerror(-status));
  return close_status;
}
