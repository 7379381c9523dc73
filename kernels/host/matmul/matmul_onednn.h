/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the core and the oneDNN plug-in (liblade-onednn.so, matmul_onednn_plugin.c). The plug-in holds the only
 * reference to libdnnl and to the OpenMP runtime that it loads; the core opens the plug-in on request.
 */
#ifndef LADE_ONEDNN_H
#define LADE_ONEDNN_H

#include "kernels/kernels.h"

/* Some rows of a product; args->m is their number. */
struct lade_onednn_block {
  struct lade_matmul_args args;
  int64_t a_stride; /* elements between rows of a as it is stored: a block of TN is columns of it */
};

/* Prepare blocks of this shape (pointers unused), and keep the result. -ENOTSUP, -ENOMEM. Any thread. */
typedef int lade_onednn_prepare_fn(const struct lade_onednn_block *block);

/* Compute one block on the calling thread alone, without accumulation. Errors as above; any thread. */
typedef int lade_onednn_run_fn(const struct lade_onednn_block *block);

#define LADE_ONEDNN_PREPARE "lade_onednn_prepare"
#define LADE_ONEDNN_RUN "lade_onednn_run"

#endif
