/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the folder of the GPU's machine code: near the file that contains this code, the command or the shared library.
 * Paths are relative to that file's folder, so that a tree may be moved as a whole.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "kernels/cuda/launch.h"

#define SOME_FILE "adamw.fatbin" /* any of them */

/* In the build's tree; next to an installed library; from an installed command; from folders of the build's tree. */
static const char *const places[] = {"kernels", "lade", LADE_CUDA_KERNELS_INSTALLED, "../kernels", "../../kernels"};

/* True if there is machine code at one of the places near @file. */
static bool folder_try(const char *file, char ret_folder[PATH_MAX])
{
  char self[PATH_MAX], path[2 * PATH_MAX];
  if (!realpath(file, self))
    return false;
  *strrchr(self, '/') = 0;
  for (size_t i = 0; i < LADE_COUNT(places); i++) {
    snprintf(path, sizeof(path), "%s/%s/" SOME_FILE, self, places[i]);
    if (access(path, R_OK) == 0)
      return snprintf(ret_folder, PATH_MAX, "%s/%s", self, places[i]) < PATH_MAX;
  }
  return false;
}

void lade_cuda_folder_find(char ret_folder[PATH_MAX])
{
  const char *named = getenv("LADE_CUDA_KERNELS");
  Dl_info own;
  if (!named && folder_try("/proc/self/exe", ret_folder))
    return;
  if (!named && dladdr(places, &own) && own.dli_fname && folder_try(own.dli_fname, ret_folder))
    return;
  snprintf(ret_folder, PATH_MAX, "%s", named ? named : "kernels");
}
