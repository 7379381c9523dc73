/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces uring.c in builds without liburing: there is no such engine. */
#include <stddef.h>

#include "offload/store/engine.h"

const struct store_engine_ops *const store_engine_uring = NULL;
