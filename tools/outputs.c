/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run will write, looked at before it begins: a run of hours must not end at a timeline that could never be
 * written, nor a log take the place of the text to train on. Nothing is created and nothing is opened here, so that a
 * refusal for another reason leaves no trace; what changes between now and then is an error then.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/options.h"
#include "tools/verbs.h"

/* The directory that @path is in; NULL when the path is too long. */
static const char *parent_of(const char *path, char parent[PATH_MAX])
{
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/')
    n--;
  while (n > 0 && path[n - 1] != '/')
    n--;
  if (n >= PATH_MAX)
    return NULL;
  snprintf(parent, PATH_MAX, "%.*s", n ? (int)n : 1, n ? path : ".");
  return parent;
}

static int place_check(const char *path, bool is_directory)
{
  struct stat st;
  char parent[PATH_MAX];
  if (stat(path, &st) == 0) {
    if (is_directory != (bool)S_ISDIR(st.st_mode))
      return is_directory ? -ENOTDIR : -EISDIR;
    return faccessat(AT_FDCWD, path, is_directory ? W_OK | X_OK : W_OK, AT_EACCESS) ? -errno : 0;
  }
  if (errno != ENOENT)
    return -errno;
  if (!parent_of(path, parent))
    return -ENAMETOOLONG;
  return faccessat(AT_FDCWD, parent, W_OK | X_OK, AT_EACCESS) ? -errno : 0;
}

static int output_check(const char *option, const char *path, bool is_directory, struct lade_error *error)
{
  char parent[PATH_MAX];
  int status = path ? place_check(path, is_directory) : 0;
  if (status == -ENOENT && parent_of(path, parent))
    return lade_error_set(error, status, "--%s %s: No such file or directory: create %s first", option, path, parent);
  if (status == -ENOTDIR && is_directory)
    return lade_error_set(error, status, "--%s %s: Not a directory: name one, or one to be made", option, path);
  return status ? lade_error_set(error, status, "--%s %s: %s", option, path, strerror(-status)) : 0;
}

/* May a file be written without destroying one that is read? */
static int inputs_spare(const char *option, const char *path, const struct option_list *inputs,
                        struct lade_error *error)
{
  struct stat output, input;
  if (!path || stat(path, &output) || !S_ISREG(output.st_mode))
    return 0;
  for (int i = 0; i < inputs->n; i++) {
    if (stat(inputs->items[i], &input) == 0 && input.st_dev == output.st_dev && input.st_ino == output.st_ino)
      return lade_error_set(error, -EINVAL, "--%s %s would overwrite the data; name another file", option, path);
  }
  return 0;
}

int outputs_check(const struct options *options, struct lade_error *error)
{
  const struct {
    const char *option, *path;
    bool is_directory;
  } outputs[] = {{"log", options->log, false}, {"timeline", options->timeline, false}, {"save", options->save, true},
                 {"html", options->html, false}, {"report", options->report, false}};
  const char *traces[] = {options->trace};
  const struct option_list trace = {traces, options->trace ? 1 : 0, 1};
  int status = 0;
  for (size_t i = 0; i < LADE_COUNT(outputs) && !status; i++) {
    status = output_check(outputs[i].option, outputs[i].path, outputs[i].is_directory, error);
    if (!status)
      status = inputs_spare(outputs[i].option, outputs[i].path, &options->data, error);
    if (!status)
      status = inputs_spare(outputs[i].option, outputs[i].path, &options->valid, error);
    if (!status)
      status = inputs_spare(outputs[i].option, outputs[i].path, &trace, error);
  }
  return status;
}
