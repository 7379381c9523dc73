/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading, printing and writing the records of a run. A record is a file of fixed form (preload/ledger.h), complete at
 * any moment: a killed process leaves its last figures, and a running process shows its current ones.
 */
#include "tools/verbs/run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"

#define SHOWN_MAX 10 /* processes with a table of their own; a build or a test suite has hundreds */

/* ---- reading ---- */

enum record_kind { RECORD, RECORD_EMPTY, RECORD_NONE };

static enum record_kind record_read(int directory, const char *name, struct lade_ledger_record *record)
{
  struct stat st;
  const int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  /* the command may create files of any kind there */
  const bool is_file = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  const ssize_t n = is_file ? read(fd, record, sizeof(*record)) : -1;
  if (fd >= 0)
    close(fd);
  record->program[sizeof(record->program) - 1] = 0;
  if (n == 0)
    return RECORD_EMPTY;
  return n == (ssize_t)sizeof(*record) && record->version == LADE_LEDGER_RECORD_VERSION ? RECORD : RECORD_NONE;
}

static int records_order(const void *a, const void *b)
{
  const struct lade_ledger_record *left = a, *right = b;
  return (left->pid > right->pid) - (left->pid < right->pid);
}

int run_report_read(const char *directory, struct run_report *report)
{
  struct lade_ledger_record record;
  DIR *dir = opendir(directory);
  int status = dir ? 0 : -errno;
  for (const struct dirent *entry; !status && (entry = readdir(dir));) {
    const enum record_kind kind = record_read(dirfd(dir), entry->d_name, &record);
    report->n_unrecorded += kind == RECORD_EMPTY;
    if (kind == RECORD && !LADE_PUSH(&report->records, record))
      status = -ENOMEM;
  }
  if (dir)
    closedir(dir);
  if (report->records.n)
    qsort(report->records.items, (size_t)report->records.n, sizeof(record), records_order);
  return status;
}

void run_report_finish(struct run_report *report)
{
  LADE_ARRAY_FREE(&report->records);
}

/* True if the process asked for memory in this account. */
static bool was_asked(const struct lade_ledger_account *account)
{
  bool has_any = account->n_refused > 0;
  for (int i = 0; i < LADE_LEDGER_N_KINDS; i++)
    has_any |= account->kinds[i].n_taken > 0;
  return has_any;
}

/* ---- text ---- */

static void kinds_print(const struct lade_ledger_account *account)
{
  char peak[16], now[16];
  bool has_head = false;
  for (int i = 0; i < LADE_LEDGER_N_KINDS; i++) {
    const struct lade_ledger_sums *sums = &account->kinds[i];
    if (!sums->n_taken)
      continue;
    if (!has_head)
      fprintf(stderr, "  %-12s %12s %12s %12s %12s\n", "", "at most", "at the end", "taken", "given back");
    has_head = true;
    fprintf(stderr, "  %-12s %12s %12s %12llu %12llu\n", lade_ledger_kind_name((enum lade_ledger_kind)i),
            lade_size_format(sums->peak_bytes, peak, sizeof(peak)), lade_size_format(sums->bytes, now, sizeof(now)),
            (unsigned long long)sums->n_taken, (unsigned long long)sums->n_given);
  }
}

static void account_print(const struct lade_ledger_record *record, int i)
{
  const struct lade_ledger_account *account = &record->accounts[i];
  char peak[16], total[16], budget[16], refused[16], program[8 * sizeof(record->program)];
  text_escape(record->program, program, sizeof(program));
  if (i == LADE_LEDGER_HOST)
    fprintf(stderr, "lade run: %s (%d) on the host:\n", program, record->pid);
  else if (account->budget_bytes == UINT64_MAX)
    fprintf(stderr, "lade run: %s (%d) on cuda:%d: at most %s of %s, no budget\n", program, record->pid, i,
            lade_size_format(account->bounded.peak_bytes, peak, sizeof(peak)),
            lade_size_format(account->total_bytes, total, sizeof(total)));
  else
    fprintf(stderr, "lade run: %s (%d) on cuda:%d: at most %s of %s, budget %s\n", program, record->pid, i,
            lade_size_format(account->bounded.peak_bytes, peak, sizeof(peak)),
            lade_size_format(account->total_bytes, total, sizeof(total)),
            lade_size_format(account->budget_bytes, budget, sizeof(budget)));
  if (account->n_refused)
    fprintf(stderr, "  %llu requests refused over the budget, the largest %s\n",
            (unsigned long long)account->n_refused,
            lade_size_format(account->refused_bytes, refused, sizeof(refused)));
  kinds_print(account);
}

/* The bytes that a process held and was refused, over all accounts in which it asked for memory. */
struct holding {
  const struct lade_ledger_record *record;
  uint64_t peak_bytes, n_refused; /* the peak of its largest account */
  int n_asked;
};

static struct holding holding_of(const struct lade_ledger_record *record)
{
  struct holding holding = {.record = record};
  for (int i = 0; i <= LADE_LEDGER_HOST; i++) {
    const struct lade_ledger_account *account = &record->accounts[i];
    holding.n_asked += was_asked(account);
    holding.n_refused += account->n_refused;
    holding.peak_bytes = LADE_MAX(holding.peak_bytes, account->bounded.peak_bytes);
  }
  return holding;
}

/* Compare holdings: the largest first, equal ones in their order. */
static int holdings_order(const void *a, const void *b)
{
  const struct holding *left = a, *right = b;
  if (left->peak_bytes != right->peak_bytes)
    return left->peak_bytes < right->peak_bytes ? 1 : -1;
  return (left->record > right->record) - (left->record < right->record);
}

/* Print the holdings past SHOWN_MAX in one line. */
static void rest_print(const struct holding *rest, int n)
{
  char peak[16];
  uint64_t n_refused = 0;
  for (int i = 0; i < n; i++)
    n_refused += rest[i].n_refused;
  fprintf(stderr, "lade run: %d more process%s, at most %s each, %llu requests refused; --report has them all\n", n,
          n > 1 ? "es" : "", lade_size_format(rest[0].peak_bytes, peak, sizeof(peak)), (unsigned long long)n_refused);
}

int run_report_print(const struct run_report *report)
{
  struct holding *holdings = calloc((size_t)report->records.n + 1, sizeof(*holdings));
  const struct lade_ledger_record *idle = NULL;
  int n = 0, n_idle = 0;
  if (!holdings)
    return -ENOMEM;
  for (int i = 0; i < report->records.n; i++) {
    holdings[n] = holding_of(&report->records.items[i]);
    if (holdings[n].n_asked)
      n++;
    else if (!n_idle++)
      idle = &report->records.items[i];
  }
  if (n > SHOWN_MAX)
    qsort(holdings, (size_t)n, sizeof(*holdings), holdings_order);
  for (int i = 0; i < LADE_MIN(n, SHOWN_MAX); i++)
    for (int j = 0; j <= LADE_LEDGER_HOST; j++)
      if (was_asked(&holdings[i].record->accounts[j]))
        account_print(holdings[i].record, j);
  if (n > SHOWN_MAX)
    rest_print(holdings + SHOWN_MAX, n - SHOWN_MAX);
  if (n_idle == 1) {
    fputs("lade run: ", stderr);
    text_put(stderr, idle->program, 0);
    fprintf(stderr, " (%d) started the driver and took no memory\n", idle->pid);
  }
  if (n_idle > 1)
    fprintf(stderr, "lade run: %d processes started the driver and took no memory\n", n_idle);
  free(holdings);
  return 0;
}

/* ---- JSON ---- */

/* Return outside text as JSON. In text that is not UTF-8, bytes above 127 are replaced. NULL becomes null. */
static json_t *text_json(const char *text)
{
  if (!text)
    return json_null();
  json_t *string = json_string(text);
  char *plain = string ? NULL : strdup(text);
  for (char *at = plain; at && *at; at++)
    *at = (unsigned char)*at > 127 ? '?' : *at;
  string = plain ? json_string(plain) : string;
  free(plain);
  return string;
}

static json_t *kinds_json(const struct lade_ledger_account *account)
{
  json_t *kinds = json_object();
  for (int i = 0; i < LADE_LEDGER_N_KINDS; i++) {
    const struct lade_ledger_sums *sums = &account->kinds[i];
    if (sums->n_taken)
      json_object_set_new(kinds, lade_ledger_kind_name((enum lade_ledger_kind)i),
                          json_pack("{s:I, s:I, s:I, s:I}", "peak_bytes", (json_int_t)sums->peak_bytes, "bytes",
                                    (json_int_t)sums->bytes, "taken", (json_int_t)sums->n_taken, "given_back",
                                    (json_int_t)sums->n_given));
  }
  return kinds;
}

static json_t *device_json(const struct lade_ledger_account *account, int device)
{
  char name[16];
  snprintf(name, sizeof(name), "cuda:%d", device);
  json_t *budget = account->budget_bytes == UINT64_MAX ? json_null() : json_integer((json_int_t)account->budget_bytes);
  /* A program may ask for more bytes than a JSON integer holds here. */
  uint64_t largest = LADE_MIN(account->refused_bytes, (uint64_t)INT64_MAX);
  json_t *refused = json_pack("{s:I, s:I}", "count", (json_int_t)account->n_refused, "largest_bytes",
                              (json_int_t)largest);
  return json_pack("{s:s, s:I, s:o, s:I, s:I, s:o, s:o}", "device", name, "total_bytes",
                   (json_int_t)account->total_bytes, "budget_bytes", budget, "peak_bytes",
                   (json_int_t)account->bounded.peak_bytes, "bytes", (json_int_t)account->bounded.bytes, "refused",
                   refused, "kinds", kinds_json(account));
}

static json_t *process_json(const struct lade_ledger_record *record)
{
  json_t *devices = json_array();
  for (int i = 0; i < LADE_LEDGER_DEVICES; i++)
    if (record->accounts[i].total_bytes || was_asked(&record->accounts[i]))
      json_array_append_new(devices, device_json(&record->accounts[i], i));
  return json_pack("{s:i, s:o, s:o, s:{s:o}}", "pid", record->pid, "program", text_json(record->program), "devices",
                   devices, "host", "kinds", kinds_json(&record->accounts[LADE_LEDGER_HOST]));
}

static json_t *report_json(const struct run_report *report, const struct run_outcome *outcome)
{
  json_t *command = json_array(), *processes = json_array();
  for (char *const *word = outcome->command; *word; word++)
    json_array_append_new(command, text_json(*word));
  for (int i = 0; i < report->records.n; i++)
    json_array_append_new(processes, process_json(&report->records.items[i]));
  return json_pack("{s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "schema_version", REPORT_SCHEMA_VERSION,
                   "unrecorded_processes", report->n_unrecorded, "command", command,
                   "exit_code", outcome->signal ? json_null() : json_integer(outcome->exit_code), "signal",
                   outcome->signal ? json_integer(outcome->signal) : json_null(), "budget",
                   text_json(outcome->budget), "driver", text_json(outcome->driver), "processes", processes);
}

int run_report_write(const struct run_report *report, const struct run_outcome *outcome, const char *path,
                     struct lade_error *error)
{
  json_t *object = report_json(report, outcome);
  char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
  json_decref(object);
  if (!text)
    return lade_error_set(error, -ENOMEM, "no memory for the report");
  FILE *file = NULL;
  int status = output_open("report", path, false, error, &file);
  if (status) {
    free(text);
    return status;
  }
  fputs(text, file);
  fputc('\n', file);
  free(text);
  return output_close("report", path, file, error);
}
