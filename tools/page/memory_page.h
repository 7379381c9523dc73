/* SPDX-License-Identifier: Apache-2.0 */
/* A trace as one self-contained page: memory over its calls and over time, and the holders of the peak. */
#ifndef LADE_MEMORY_PAGE_H
#define LADE_MEMORY_PAGE_H

#include "tools/page/memory_plot.h"

/*
 * Write one HTML page with inline drawings and no external references to @path, replacing it: live bytes over the
 * calls, stacked by call site or owner where the trace has them, under the bytes that each policy reserved; live bytes
 * of each queue over time; the holders at the peak. -ENOMEM, or errors of writing.
 */
int memory_page_write(const struct memory_plot *plot, const char *path, struct lade_error *error);

#endif
