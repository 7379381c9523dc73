/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of a Python that runs one function of the package lade. The program text below is its -c: it leaves
 * the current directory out of the search for modules, so that a file there cannot take a module's place. A missing
 * package is one line and exit code 7.
 */
#include "tools/job/python.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/job/subprocess.h"

/* From build/lade in a clone to its package. */
#define PACKAGE_BESIDE "../python"

static const char program[] =
    "import sys\n"
    "sys.path[:] = [place for place in sys.path if place]\n"
    "package, module, verb, *words = sys.argv[1:]\n"
    "sys.path[:0] = [package] if package else []\n"
    "def end(text):\n"
    "    print('lade ' + verb + ': ' + text, file=sys.stderr)\n"
    "    sys.exit(7)\n"
    "if sys.version_info < (3, 10):\n"
    "    end(sys.executable + ' is older than Python 3.10: LADE_PYTHON=PYTHON names a newer one')\n"
    "try:\n"
    "    main = __import__(module, fromlist=['main']).main\n"
    "except ModuleNotFoundError as fault:\n"
    "    if fault.name.split('.')[0] != 'lade':\n"
    "        raise\n"
    "    end('the Python package lade is missing in ' + sys.executable + ': pip install it from a clone of Lade, or '\n"
    "        'LADE_PYTHON=PYTHON names a Python that has it')\n"
    "sys.exit(main(*words))\n";

/* Write the directory of this command into @ret_directory; "" if it is unknown. */
static void directory_get(char ret_directory[PATH_MAX])
{
  ssize_t n = readlink("/proc/self/exe", ret_directory, PATH_MAX - 1);
  ret_directory[LADE_MAX(n, 0)] = 0;
  char *slash = strrchr(ret_directory, '/');
  if (slash)
    *slash = 0;
}

static int python_find(struct python_command *command, const char *directory, struct lade_error *error)
{
  const char *named = getenv("LADE_PYTHON");
  char beside[PATH_MAX + 16];
  snprintf(beside, sizeof(beside), "%s/python3", directory);
  const char *found = named && named[0] ? named : directory[0] && subprocess_exists(beside) ? beside : "python3";
  if (!subprocess_exists(found))
    return lade_error_set(error, -ENOSYS, "%s%.200s cannot be run: install Python 3.10 or newer; LADE_PYTHON=PYTHON "
                          "names one", named && named[0] ? "LADE_PYTHON: " : "", found);
  if (snprintf(command->python, PATH_MAX, "%s", found) >= PATH_MAX)
    return lade_error_set(error, -ENAMETOOLONG, "LADE_PYTHON: %.64s...: path too long", found);
  return 0;
}

static void package_find(struct python_command *command, const char *directory)
{
  char candidate[PATH_MAX + 64];
  command->package[0] = 0;
  snprintf(candidate, sizeof(candidate), "%s/" PACKAGE_BESIDE "/lade/data/__init__.py", directory);
  if (!directory[0] || access(candidate, R_OK))
    return;
  snprintf(candidate, sizeof(candidate), "%s/" PACKAGE_BESIDE, directory);
  if (!realpath(candidate, command->package))
    command->package[0] = 0;
}

int python_command_make(const char *module, const char *verb, struct lade_error *error,
                        struct python_command *ret_command, const char *ret_words[PYTHON_WORDS])
{
  char directory[PATH_MAX];
  directory_get(directory);
  int status = python_find(ret_command, directory, error);
  if (status)
    return status;
  package_find(ret_command, directory);
  const char *words[PYTHON_WORDS] = {ret_command->python, "-c", program, ret_command->package, module, verb, NULL};
  memcpy(ret_words, words, sizeof(words));
  return 0;
}
