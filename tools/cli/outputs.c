/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of a run's outputs before it begins: a run of hours must not end at a timeline that could never be written,
 * and a log must not replace the training text. This file creates nothing and opens no file for writing, so that a
 * refusal for another reason leaves no trace. A change between the check and the write is an error at the write.
 *
 * One table has every option that names a file. Each output is compared with all inputs and all other outputs, by
 * device and inode number, so that links are resolved. A file that does not exist yet is compared by its folder's
 * numbers and its name. In a folder of checkpoints only Lade's own names and a model's count, because a log next to
 * them is usual.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "machine/machine.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"

#define LINKS_MAX 40 /* the limit of Linux */

/* Return the directory of @path; NULL if the path is too long. */
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

/* True if @path is a link of another user than this one and root: that user decides which file is written. */
static bool is_foreign_link(const char *path)
{
  struct stat st;
  return lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && st.st_uid != geteuid() && st.st_uid != 0;
}

static int output_check(const char *option, const char *path, bool is_directory, struct lade_error *error)
{
  char parent[PATH_MAX];
  if (path && !is_directory && is_foreign_link(path))
    return lade_error_set(error, -EPERM, "--%s %s: a link of another user: name another file", option, path);
  int status = path ? place_check(path, is_directory) : 0;
  if (status == -ENOENT && parent_of(path, parent))
    return lade_error_set(error, status, "--%s %s: No such file or directory: create %s first", option, path, parent);
  if (status == -ENOTDIR && is_directory)
    return lade_error_set(error, status, "--%s %s: Not a directory: name a directory, or a new name", option, path);
  return status ? lade_error_set(error, status, "--%s %s: %s", option, path, strerror(-status)) : 0;
}

/* ---- files that are read, or written twice ---- */

/* Identity of a path's file: device and inode number; for a missing file its folder's numbers and its name. */
struct file_id {
  dev_t device;
  ino_t number;
  const char *name; /* NULL: the file exists */
  char path[PATH_MAX];
};

/* Resolve a link to a file that does not exist yet, as open(2) with O_CREAT does. */
static void links_follow(char path[PATH_MAX])
{
  char to[PATH_MAX], parent[PATH_MAX];
  for (int i = 0; i < LINKS_MAX; i++) {
    const ssize_t n = readlink(path, to, sizeof(to) - 1);
    if (n <= 0 || !parent_of(path, parent))
      return;
    to[n] = 0;
    const int length = to[0] == '/' ? snprintf(path, PATH_MAX, "%s", to)
                                    : snprintf(path, PATH_MAX, "%s/%.*s", parent, PATH_MAX / 2, to);
    if (length >= PATH_MAX)
      return;
  }
}

/* Identify the file of @path. False if no file can be replaced there: a device, a pipe, or a name in no folder. */
static bool file_identify(const char *path, struct file_id *ret_id)
{
  struct stat st;
  char parent[PATH_MAX];
  if (stat(path, &st) == 0) {
    *ret_id = (struct file_id){.device = st.st_dev, .number = st.st_ino};
    return S_ISREG(st.st_mode) || S_ISDIR(st.st_mode);
  }
  if (errno != ENOENT || snprintf(ret_id->path, PATH_MAX, "%s", path) >= PATH_MAX)
    return false;
  links_follow(ret_id->path);
  for (size_t n = strlen(ret_id->path); n > 1 && ret_id->path[n - 1] == '/'; n--)
    ret_id->path[n - 1] = 0;
  if (!parent_of(ret_id->path, parent) || stat(parent, &st))
    return false;
  const char *slash = strrchr(ret_id->path, '/');
  ret_id->device = st.st_dev;
  ret_id->number = st.st_ino;
  ret_id->name = slash ? slash + 1 : ret_id->path;
  return true;
}

static bool is_same(const struct file_id *a, const struct file_id *b)
{
  return a->device == b->device && a->number == b->number && !a->name == !b->name &&
         (!a->name || strcmp(a->name, b->name) == 0);
}

/* A file that a run reads or writes. */
struct named_file {
  const char *option, *path;
};

/* Identify the file of the input @other; "-" of --graph is the file that standard input was redirected from. */
static bool input_identify(const struct named_file *other, struct file_id *ret_id)
{
  struct stat st;
  if (strcmp(other->option, "graph") != 0 || strcmp(other->path, "-") != 0)
    return file_identify(other->path, ret_id);
  if (fstat(STDIN_FILENO, &st))
    return false;
  *ret_id = (struct file_id){.device = st.st_dev, .number = st.st_ino};
  return S_ISREG(st.st_mode);
}

/* Refuse the output @file with identity @id if @other is the same file. */
static int pair_check(const struct named_file *file, const struct file_id *id, const struct named_file *other,
                      bool is_output, struct lade_error *error)
{
  struct file_id other_id;
  if (!input_identify(other, &other_id) || !is_same(id, &other_id))
    return 0;
  return lade_error_set(error, -EINVAL, "--%s %.300s would overwrite %s--%s %.300s; name another file", file->option,
                        file->path, is_output ? "" : "the input ", other->option, other->path);
}

/* ---- folders ---- */

/* True if @name, directly in a folder of --save, --resume, --init or --store, is Lade's own or a model's. */
static bool is_folders_own(const char *name)
{
  static const char *const own[] = {"lade.conf", ".lade.lock", "config.json", "state.json", "*.safetensors",
                                    "*.safetensors.index.json", "lade-durable*", "step-*"};
  for (size_t i = 0; i < LADE_COUNT(own); i++) {
    if (fnmatch(own[i], name, 0) == 0)
      return true;
  }
  return false;
}

/*
 * True if a file of @folder has the identity @id. Of the folder itself only known names count, of the checkpoints in it
 * all files.
 */
static bool folder_has(int parent, const char *folder, const struct file_id *id, bool is_checkpoint)
{
  const int fd = openat(parent, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  bool has = false;
  if (fd >= 0 && !dir)
    close(fd);
  for (const struct dirent *entry; dir && !has && (entry = readdir(dir));) {
    struct stat st;
    const bool counts = is_checkpoint || is_folders_own(entry->d_name);
    if (!counts || fstatat(fd, entry->d_name, &st, 0))
      continue;
    if (S_ISREG(st.st_mode))
      has = st.st_dev == id->device && st.st_ino == id->number;
    else if (S_ISDIR(st.st_mode) && !is_checkpoint)
      has = folder_has(fd, entry->d_name, id, true);
  }
  if (dir)
    closedir(dir);
  return has;
}

/* Refuse the output @file with identity @id if it would be one of Lade's files in @folder. */
static int folder_check(const struct named_file *file, const struct file_id *id, const struct named_file *folder,
                        struct lade_error *error)
{
  struct stat st;
  if (stat(folder->path, &st) || !S_ISDIR(st.st_mode))
    return 0;
  const bool is_new_there = id->name && st.st_dev == id->device && st.st_ino == id->number;
  if (is_new_there ? !is_folders_own(id->name) : id->name || !folder_has(AT_FDCWD, folder->path, id, false))
    return 0;
  return lade_error_set(error, -EINVAL, "--%s %.300s would overwrite a file of --%s %.300s; name another file",
                        file->option, file->path, folder->option, folder->path);
}

/* ---- the table ---- */

enum role {
  ROLE_INPUT,
  ROLE_OUTPUT,
  ROLE_FOLDER, /* a folder to read, or a file */
  ROLE_STORE,  /* folders separated by commas */
  ROLE_SAVE,   /* a folder to write */
};

/* Every option that names a file or a folder with files. Options that a verb takes and ignores are left out. */
static const struct {
  const char *option;
  enum role role;
} table[] = {{"data", ROLE_INPUT}, {"valid", ROLE_INPUT}, {"trace", ROLE_INPUT}, {"config", ROLE_INPUT},
             {"model", ROLE_INPUT}, {"machine", ROLE_INPUT}, {"residency", ROLE_INPUT}, {"init", ROLE_FOLDER},
             {"resume", ROLE_FOLDER}, {"checkpoint", ROLE_FOLDER}, {"store", ROLE_STORE}, {"save", ROLE_SAVE},
             {"graph", ROLE_INPUT}, {"log", ROLE_OUTPUT}, {"timeline", ROLE_OUTPUT}, {"html", ROLE_OUTPUT},
             {"graph-out", ROLE_OUTPUT},
             {"report", ROLE_OUTPUT}, {"instructions", ROLE_OUTPUT}, {"svg", ROLE_OUTPUT}};

/* True if @text names a file: false for a preset's name or another keyword of the option. */
static bool is_file_name(const char *option, const char *text)
{
  const size_t n = strlen(text);
  struct lade_machine machine;
  if (strcmp(option, "model") == 0)
    return strchr(text, '/') || (n > 5 && strcmp(text + n - 5, ".json") == 0);
  if (strcmp(option, "machine") == 0)
    return lade_machine_preset(text, NULL, &machine) != 0;
  return true;
}

/* Return the state of the option in row @i if this verb uses it and it has a value; else NULL. */
static const struct option_state *row_state(const struct options *options, size_t i)
{
  const struct option *option = option_find(options->verb, table[i].option, strlen(table[i].option));
  const struct option_state *state = &options->states[option_index(option)];
  const bool has_file = state->texts.n || (state->text && is_file_name(table[i].option, state->text));
  return (option->verbs & options->verb) && has_file ? state : NULL;
}

/* Compare @path of row @i with the output @file. */
static int path_check(const struct named_file *file, const struct file_id *id, size_t i, const char *path,
                      struct lade_error *error)
{
  const struct named_file other = {table[i].option, path};
  const bool is_output = table[i].role == ROLE_OUTPUT || table[i].role == ROLE_SAVE;
  int status = pair_check(file, id, &other, is_output, error);
  if (!status && table[i].role != ROLE_INPUT && table[i].role != ROLE_OUTPUT)
    status = folder_check(file, id, &other, error);
  return status;
}

/* Compare each folder of --store @text with the output @file. */
static int stores_check(const struct named_file *file, const struct file_id *id, size_t i, const char *text,
                        struct lade_error *error)
{
  int status = 0;
  for (const char *at = text; *at && !status;) {
    char path[PATH_MAX];
    size_t n = 0;
    for (; *at && (*at != ',' || at[1] == ',') && n < sizeof(path) - 1; at++) {
      path[n++] = *at;
      at += *at == ',';
    }
    path[n] = 0;
    status = path_check(file, id, i, path, error);
    at += strcspn(at, ",");
    at += *at == ',';
  }
  return status;
}

/* Refuse the output of row @own if writing it would destroy an input or another output. */
static int output_spares(const struct options *options, size_t own, const char *path, struct lade_error *error)
{
  const struct named_file file = {table[own].option, path};
  struct file_id id;
  int status = 0;
  if (!file_identify(path, &id))
    return 0;
  for (size_t i = 0; i < LADE_COUNT(table) && !status; i++) {
    const struct option_state *state = row_state(options, i);
    if (i == own || !state)
      continue;
    for (int k = 0; k < state->texts.n && !status; k++)
      status = path_check(&file, &id, i, state->texts.items[k], error);
    if (!status && table[i].role == ROLE_STORE)
      status = stores_check(&file, &id, i, state->text, error);
    else if (!status && !state->texts.n)
      status = path_check(&file, &id, i, state->text, error);
  }
  return status;
}

int outputs_check(const struct options *options, struct lade_error *error)
{
  int status = 0;
  for (size_t i = 0; i < LADE_COUNT(table) && !status; i++) {
    const struct option_state *state = row_state(options, i);
    const bool is_directory = table[i].role == ROLE_SAVE;
    if (!state || (!is_directory && table[i].role != ROLE_OUTPUT))
      continue;
    status = output_check(table[i].option, state->text, is_directory, error);
    if (!status && !is_directory)
      status = output_spares(options, i, state->text, error);
  }
  return status;
}

/* ---- opening ---- */

int output_open(const char *option, const char *path, bool appends, struct lade_error *error, FILE **ret_file)
{
  struct stat st;
  const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | (appends ? O_APPEND : O_TRUNC), 0666);
  int status = fd < 0 ? -errno : 0;
  if (status == -ENXIO && stat(path, &st) == 0 && S_ISFIFO(st.st_mode))
    return lade_error_set(error, -EINVAL, "--%s %s: a fifo without a reader: start its reader first, or name a file",
                          option, path);
  if (!status && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK))
    status = -errno;
  *ret_file = status ? NULL : fdopen(fd, appends ? "a" : "w");
  if (!status && !*ret_file)
    status = -errno;
  if (status && fd >= 0)
    close(fd);
  return status ? lade_error_set(error, status, "--%s %s: %s", option, path, strerror(-status)) : 0;
}

int output_close(const char *option, const char *path, FILE *file, struct lade_error *error)
{
  bool is_bad = ferror(file); /* an earlier write failed; its reason is known only if the next one fails too */
  int reason = 0;
  if (fflush(file)) {
    reason = errno;
    is_bad = true;
  }
  if (fclose(file)) {
    reason = reason ? reason : errno;
    is_bad = true;
  }
  return is_bad ? lade_error_set(error, -EIO, "--%s %s: it could not be written, and is incomplete: %s", option, path,
                                 strerror(reason ? reason : EIO))
                : 0;
}
