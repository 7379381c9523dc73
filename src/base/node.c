/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which machine is this? What a machine has once (GPUs, drives, memory) is shared by all its containers, and names are
 * not: a container has a host name of its own, and two machines of a cluster may have one. The kernel's boot identity
 * is random at every start and the same in all containers, which share the kernel.
 *
 * Where /proc does not show it there is the host name with the identity that was given at installation. Images that
 * were copied share the second and containers do not share the first, so the two together rather tell one machine
 * apart from itself than take two for one: who is thought to be elsewhere is neither looked at by process number nor
 * asked for memory.
 */
#include "base/node.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 192

/* What @path has, at the end of @text, which holds @n bytes. Returns how many it holds then. */
static size_t file_append(const char *path, char *text, size_t n)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n_read = fd >= 0 ? read(fd, text + n, TEXT_BYTES - n) : 0;
  if (fd >= 0)
    close(fd);
  return n + (size_t)(n_read > 0 ? n_read : 0);
}

/* FNV-1a. */
static uint64_t text_hash(const char *text, size_t n)
{
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < n; i++)
    hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3;
  return hash;
}

uint64_t lade_node_key(void)
{
  char text[TEXT_BYTES] = "";
  size_t n = file_append("/proc/sys/kernel/random/boot_id", text, 0);
  if (n)
    return text_hash(text, n);
  gethostname(text, 64);
  return text_hash(text, file_append("/etc/machine-id", text, strnlen(text, 64)));
}
