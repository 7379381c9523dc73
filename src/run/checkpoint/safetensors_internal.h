/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of reader and writer of safetensors: the format's names and limits. */
#ifndef LADE_SAFETENSORS_INTERNAL_H
#define LADE_SAFETENSORS_INTERNAL_H

#define SAFETENSORS_MAX_HEADER_BYTES 100000000 /* the format's own limit */
#define SAFETENSORS_METADATA "__metadata__"

struct safetensors_type {
  const char *name;
  int dtype; /* enum lade_dtype or -1 */
  int bytes;
};

/* Ends with a NULL name. */
extern const struct safetensors_type safetensors_types[];

#endif
