/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening the kernels of a GPU: its functions are loaded, its products and its attention chosen.
 *
 * A library or an attention that is missing or wrong here is left out and noted; the table then has plain kernels.
 */
#include "kernels/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/cuda/launch_internal.h"
#include "kernels/cuda/matmul/matmul_cublaslt.h"

/* Get the names of all functions for which a GPU has code: wgmma is of sm_90 alone. */
static void symbols_get(int capability, struct lade_cuda_symbol ret_wanted[LADE_CUDA_N_PLACES])
{
  for (int i = 0; i < LADE_CUDA_N_PLACES; i++) {
    const char *file = lade_cuda_function_file(i);
    bool has_code = capability == 90 || !strstr(file, "wgmma");
    ret_wanted[i] = (struct lade_cuda_symbol){file, has_code ? lade_cuda_function_name(i) : NULL};
  }
}

/*
 * Compare the toolkit that built the kernels in @folder with the driver. A driver runs code of its own major version
 * and of those before (CUDA Compatibility, "Minor Version Compatibility"). -ENODEV if it is too old. A folder without
 * a note of its toolkit is not checked.
 */
static int toolkit_check(const lade_device *device, const char *folder, struct lade_error *error)
{
  char path[PATH_MAX];
  int major = 0, minor = 0;
  const int version = lade_cuda_get_version(device);
  FILE *file = snprintf(path, sizeof(path), "%s/toolkit", folder) < PATH_MAX ? fopen(path, "r") : NULL;
  const bool is_known = file && fscanf(file, "%d.%d", &major, &minor) == 2;
  if (file)
    fclose(file);
  if (!is_known || version / 1000 >= major)
    return 0;
  return lade_error_set(error, -ENODEV, "the driver, of CUDA %d.%d, is too old for the kernels in %s, of toolkit "
                        "%d.%d; install a newer driver, or build with a CUDA %d toolkit",
                        version / 1000, version % 1000 / 10, folder, major, minor, version / 1000);
}

/* Use cuBLASLt for products if it exists, unless the plain ones are requested. */
static int products_open(lade_cuda_kernels *kernels, lade_device *device, struct lade_error *error)
{
  struct lade_kernels *table = &kernels->table;
  struct lade_error why = {0};
  const char *wish = getenv("LADE_MATMUL");
  if (wish && strcmp(wish, "plain") == 0)
    return 0;
  int status = lade_cublaslt_open(device, &why, &table->cublaslt);
  if (status == -ENOENT || status == -ENOSYS) {
    lade_error_set(&kernels->note, status, "%s; matrix products are plain kernels, without tensor cores", why.text);
    return 0;
  }
  if (status)
    return lade_error_set(error, status, "%s", why.text);
  table->library = lade_cublaslt_name(table->cublaslt);
  wish = getenv("LADE_MATMUL_CHOICES");
  if (wish && *wish && !strstr(table->library, " choices "))
    lade_error_set(&kernels->note, -ENOENT, "%s; %s has no choices for this library, GPU and driver", table->library,
                   wish);
  table->variant[LADE_K_MATMUL] = "cublaslt";
  return 0;
}

int lade_cuda_kernels_open(lade_device *device, const char *folder, struct lade_error *error,
                           lade_cuda_kernels **ret_kernels)
{
  struct lade_cuda_symbol wanted[LADE_CUDA_N_PLACES];
  symbols_get(lade_cuda_get_capability(device), wanted);
  lade_cuda_kernels *kernels = calloc(1, sizeof(*kernels));
  if (!kernels)
    return lade_error_set(error, -ENOMEM, "no memory for the GPU's kernels");
  kernels->device = device;
  char found[PATH_MAX];
  lade_cuda_kernels_init(&kernels->table);
  if (!folder) {
    lade_cuda_folder_find(found);
    folder = found;
  }
  int status = toolkit_check(device, folder, error);
  if (!status)
    status = lade_cuda_functions_open(device, folder, wanted, LADE_CUDA_N_PLACES, error, &kernels->functions);
  if (!status)
    status = products_open(kernels, device, error);
  if (!status)
    status = lade_cuda_attention_open(kernels, device, &kernels->table, &kernels->attention_note, error);
  if (status) {
    lade_cuda_kernels_close(kernels);
    return status;
  }
  lade_cuda_mark_memory(device, LADE_CUDA_KERNELS);
  *ret_kernels = kernels;
  return 0;
}

void lade_cuda_kernels_close(lade_cuda_kernels *kernels)
{
  if (!kernels)
    return;
  lade_cublaslt_close(kernels->table.cublaslt);
  lade_cuda_functions_close(kernels->functions);
  free(kernels);
}

void lade_cuda_kernels_get(const lade_cuda_kernels *kernels, struct lade_kernels *ret_table)
{
  *ret_table = kernels->table;
}

const char *lade_cuda_kernels_note(const lade_cuda_kernels *kernels)
{
  return kernels->note.text;
}

const char *lade_cuda_kernels_attention_note(const lade_cuda_kernels *kernels)
{
  return kernels->attention_note.text;
}
