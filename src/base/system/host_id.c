/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identify this machine. Its GPUs, drives and memory are shared by all its containers, and host names are not: a
 * container has its own host name, and two machines of a cluster may have the same. The kernel's boot identity is
 * random at every start, and the same in all containers, because they share the kernel.
 *
 * Where /proc does not show it, the host name with the identity of the installation (/etc/machine-id) is used. Copied
 * images share the identity, and containers of one machine differ in the host name. The combination therefore rather
 * gives one machine two numbers than two machines one number. The first error is the safe one: a process that is
 * thought to be on another machine is not looked up by process number, and not asked for shared memory.
 */
#include "base/host_id.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 192

/* Append the contents of @path to @text, which holds @n bytes. Return the bytes that @text holds then. */
static size_t file_append(const char *path, char *text, size_t n)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n_read = fd >= 0 ? read(fd, text + n, TEXT_BYTES - n) : 0;
  if (fd >= 0)
    close(fd);
  return n + (size_t)(n_read > 0 ? n_read : 0);
}

/* Hash @text by FNV-1a. */
static uint64_t text_hash(const char *text, size_t n)
{
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < n; i++)
    hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3;
  return hash;
}

uint64_t lade_host_id(void)
{
  char text[TEXT_BYTES] = "";
  size_t n = file_append("/proc/sys/kernel/random/boot_id", text, 0);
  if (n)
    return text_hash(text, n);
  gethostname(text, 64);
  return text_hash(text, file_append("/etc/machine-id", text, strnlen(text, 64)));
}
