/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capacities and rates of a machine: all facts that a plan needs about one device, its host and the host's drive.
 *
 * Rates are those that a well-written program sustains, not those of a data sheet. A measured machine (probe.h) has
 * them from measurements. A preset has data-sheet figures times the factors in presets.c. So predictions on a preset
 * and on a measurement mean the same.
 *
 * A machine is a plain value without pointers; copying it copies it. A rate of 0 means unknown where the field says so,
 * and is refused elsewhere.
 */
#ifndef LADE_MACHINE_H
#define LADE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "lade/types.h"

#define LADE_MACHINE_NAME_BYTES 96

#define LADE_DRIVE_BURST_BYTES (UINT64_C(8) << 30) /* moved by a run that measures lasting rates (burst_bytes below) */

struct lade_machine_store {
  uint64_t bytes;             /* capacity; 0: no drive, and the rates are ignored */
  double read_bytes_per_s;
  double write_bytes_per_s;
  double total_bytes_per_s;   /* of reads and writes together, half of each; 0: no separate limit */
  /* The same with a quarter and with three quarters of the bytes read; 0: derived from the three rates. */
  double total_mostly_writes_bytes_per_s, total_mostly_reads_bytes_per_s;
  /*
   * Rates in the transfers of a long run: reads, writes, and half of each; 0: unknown. A drive may serve its first
   * gigabytes from a cache or a credit, and the rates above are those of its first ones. Each lasting rate replaces the
   * one above it; other mixes and unknown ones are scaled by the nearest known two. The latency is that of transfers
   * beside the work of a step; it replaces latency_ns if a rate is known.
   */
  double lasting_read_bytes_per_s, lasting_write_bytes_per_s, lasting_bytes_per_s, lasting_latency_ns;
  /*
   * Bytes that the probe moved before the transfers of its lasting rates. A run that moves as many keeps rates
   * of its own. 0: not probed, and LADE_DRIVE_BURST_BYTES.
   */
  uint64_t burst_bytes;
  /*
   * Bytes moved by the run or the measurement that told the lasting rates, at most LADE_DRIVE_BURST_BYTES. 0: as
   * burst_bytes.
   */
  uint64_t known_bytes;
  double latency_ns;          /* of one transfer */
  /*
   * The drive's preferred requests: the longest request and their number in flight; the bytes of a window of a streamed
   * update and the number of windows with room (program.h). 0: unknown, and the reader has a default.
   */
  uint64_t piece_bytes, window_bytes;
  int n_pieces, n_windows;
};

/*
 * Constants of the device's kernels, for prices by shape (cost.c). No multiprocessors: unknown, and prices are plain
 * rooflines.
 */
struct lade_kernel_model {
  int n_sms;                    /* multiprocessors: a product's tiles run in waves of as many */
  double product_flops_per_s;   /* sustained by a deep product whose tiles fill all waves, in 16-bit types */
  double product_depth;         /* length of the summed dimension at which a product reaches half of that rate */
  double attention_forward;     /* share of product_flops_per_s of fused attention over long sequences */
  double attention_backward;
  double attention_depth;       /* tokens of a sequence at which causal attention reaches half of that share */
  double eager_attention_forward; /* the same of the attention that PyTorch's ops call; 0: attention_forward */
  double eager_attention_backward;
  double score_forward_bytes;   /* moved per score of attention that is not fused; 0: it is always fused */
  double score_backward_bytes;
  double logit_bytes;           /* moved per logit, in both halves, by a loss that is not fused; 0: it is fused */
  double rated_watts;           /* power limit at which product_flops_per_s is sustained; 0: unknown */
  double power_watts;           /* the device's own limit, at most @rated_watts; 0: @rated_watts */
  double host_op_ns;            /* of the host, to launch one kernel from PyTorch; 0: less than any kernel takes */
};

struct lade_machine {
  char name[LADE_MACHINE_NAME_BYTES];
  int n_cores;           /* of the host: as many as the pool may use */
  bool is_unified;       /* device memory is host memory, and all queues share the cores */
  uint64_t device_bytes; /* capacity of the device */
  uint64_t host_bytes;   /* capacity of the host */
  /* Sustained rate of a large matrix product by element type; 0: that type cannot be computed here, or is unknown. */
  double matmul_flops_per_s[LADE_N_DTYPES];
  double device_bytes_per_s; /* memory bandwidth of the device */
  double launch_ns;          /* from one piece of work to the next on a queue */
  struct lade_link to_host, to_device;
  bool is_duplex;            /* both links carry their rate at once */
  double host_bytes_per_s;   /* memory bandwidth for updates by the CPU */
  struct lade_machine_store store;
  struct lade_kernel_model kernels;
};

/* Get a preset by name. -ENOENT with the list of names in @error. Any thread. */
int lade_machine_preset(const char *name, struct lade_error *error, struct lade_machine *ret_machine);

/* Return the name of preset @i, NULL past the end. Any thread. */
const char *lade_machine_preset_name(int i);

/*
 * Read a machine from a JSON file as docs/machines.md describes. -ENOENT and the like for the file; -EBADMSG if it is
 * no JSON object; -EINVAL with the field that is missing, unknown, of another type or out of range. Any thread. Blocks.
 */
int lade_machine_load(const char *path, struct lade_error *error, struct lade_machine *ret_machine);

/* As lade_machine_load, from a parsed JSON value; @where begins the message. Any thread. */
struct json_t;
int lade_machine_from_json(const struct json_t *object, const char *where, struct lade_error *error,
                           struct lade_machine *ret_machine);

/* Return the JSON object of @machine; the caller releases its reference. NULL: out of memory. Any thread. */
struct json_t *lade_machine_to_json(const struct lade_machine *machine);

/* Write @machine to @path, whole or not at all. -ENOMEM, or an error of the file system. Any thread. Blocks. */
int lade_machine_save(const struct lade_machine *machine, const char *path, struct lade_error *error);

/* Check that every field is within its range and consistent with the others: -EINVAL with the field. Any thread. */
int lade_machine_check(const struct lade_machine *machine, const char *where, struct lade_error *error);

/* Return the share of @store that each of @n devices has while all use it: its bytes and rates over @n. Any thread. */
struct lade_machine_store lade_machine_store_share(const struct lade_machine_store *store, int64_t n);

/*
 * Return the machine that @name names: a preset, or else a file, as --machine takes it. Errors of both. If there is no
 * such file either, the message lists the presets, unless @name has a dot or a slash and so means a file.
 */
int lade_machine_get(const char *name, struct lade_error *error, struct lade_machine *ret_machine);

/*
 * Return the rate, when @share of the bytes are read, and the latency at which transfers are predicted: those of long
 * runs, where they are known. Any thread.
 */
double lade_drive_bytes_per_s(const struct lade_machine_store *store, double share);
bool lade_drive_is_lasting(const struct lade_machine_store *store); /* those of long runs are known */
double lade_drive_latency_ns(const struct lade_machine_store *store);

/* True if the device's products of @dtype have the slope of GELU as an epilogue: cuBLASLt's, in 16 bits. Any thread. */
static inline bool lade_machine_fuses_gelu(const struct lade_machine *machine, enum lade_dtype dtype)
{
  return !machine->is_unified && lade_dtype_bytes(dtype) == 2;
}

#endif
