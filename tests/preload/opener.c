/* SPDX-License-Identifier: Apache-2.0 */
/* A library that opens another one in its directory, which the loader finds by this library's search path alone. */
#include <dlfcn.h>
#include <stddef.h>

#include "tests/fakes/cuda_driver/fake_driver.h"

EXPORT void *opener_open(void);
EXPORT void *opener_next(void);
EXPORT void *guest(void);

void *opener_open(void)
{
  return dlopen("libguest.so", RTLD_NOW);
}

/* Find the next function called guest after this library's own: there is none. */
void *opener_next(void)
{
  return dlsym(RTLD_NEXT, "guest");
}

void *guest(void)
{
  return NULL;
}
