/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch directories, and the one that each test has while it runs. */
#ifndef LADE_TESTS_SCRATCH_H
#define LADE_TESTS_SCRATCH_H

#include <stdbool.h>

#define SCRATCH_BYTES 256
#define SCRATCH_PATH_BYTES 512

/*
 * Make a fresh directory in the working directory, its name in @path (SCRATCH_BYTES). With @is_memory it is in a file
 * system in memory if there is one, for tests of many saves that a drive would sync slowly.
 */
void scratch_make(char *path, bool is_memory);
/* Remove a directory with its contents. */
void scratch_remove(const char *path);

/*
 * Mount a file system of @size ("256k") in memory over directory @path, to test a full disk in a child. This process
 * and its children alone see it. pre: the process has one thread. False if mount namespaces are forbidden.
 */
bool scratch_disk_mount(const char *path, const char *size);

/* The test's own directory, with cmocka's set-up and tear-down for it. */
extern char scratch[SCRATCH_BYTES];
int scratch_setup(void **state);
int scratch_setup_in_memory(void **state);
int scratch_teardown(void **state);

/* Return the path of @name in the test's own directory, valid until the eighth call after this. */
const char *in_scratch(const char *name);

#endif
