/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for uring.c where liburing is absent: there is no such engine. */
#include <stddef.h>

#include "offload/engine.h"

const struct store_engine_ops *const store_engine_uring = NULL;
