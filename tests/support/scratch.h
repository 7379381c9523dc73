/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch directories, and the one that a test has for itself while it runs. */
#ifndef LADE_TESTS_SCRATCH_H
#define LADE_TESTS_SCRATCH_H

#include <stdbool.h>

#define SCRATCH_BYTES 256
#define SCRATCH_PATH_BYTES 512

/*
 * A fresh directory in the working directory, into @path (SCRATCH_BYTES); if @is_memory and there is one, in a file
 * system in memory, for tests of many saves that a drive would take long to sync.
 */
void scratch_make(char *path, bool is_memory);
/* With all that is in it. */
void scratch_remove(const char *path);

/*
 * Lay a file system of @size ("256k") in memory over directory @path, for this process and its children alone: for a
 * child that is to meet a full disk. The process has one thread. False where mount namespaces are forbidden.
 */
bool scratch_disk_mount(const char *path, const char *size);

/* The test's own, and cmocka's set-up and tear-down of it. */
extern char scratch[SCRATCH_BYTES];
int scratch_setup(void **state);
int scratch_setup_in_memory(void **state);
int scratch_teardown(void **state);

/* The path of @name in the test's own; it stays until the eighth call after this. */
const char *in_scratch(const char *name);

#endif
