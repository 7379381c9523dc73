/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade doctor`: lists the features of this machine that Lade can use, found by using them. It opens and writes a store
 * to test io_uring and O_DIRECT, and starts threads. It asks the kernel about huge pages and NUMA, and the driver about
 * a GPU.
 *
 * A finding is good, or a note (Lade runs without it, slower or with less space), or missing: then the command exits 7.
 * Every finding that is not good names its fix.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/file.h"
#include "device/cuda.h"
#include "kernels/cuda.h"
#include "kernels/kernels.h"
#include "machine/probe.h"
#include "offload/store.h"
#include "tools/cli/options.h"
#include "tools/job/subprocess.h"
#include "tools/report/node_links.h"
#include "tools/report/report.h"
#include "tools/cli/terminal.h"
#include "tools/cli/verbs.h"

enum finding_state { FINDING_GOOD, FINDING_NOTE, FINDING_MISSING };

struct finding {
  const char *name;
  enum finding_state state;
  char text[256], fix[256]; /* fix is empty for good findings */
};

#define MAX_FINDINGS 24 /* more than the checks below add */

struct report {
  struct finding findings[MAX_FINDINGS];
  int n;
};

static void finding_add(struct report *report, const char *name, enum finding_state state, const char *fix,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));

static void finding_add(struct report *report, const char *name, enum finding_state state, const char *fix,
                        const char *format, ...)
{
  LADE_ASSERT(report->n < MAX_FINDINGS);
  struct finding *finding = &report->findings[report->n++];
  va_list args;
  va_start(args, format);
  vsnprintf(finding->text, sizeof(finding->text), format, args);
  va_end(args);
  snprintf(finding->fix, sizeof(finding->fix), "%s", fix ? fix : "");
  finding->name = name;
  finding->state = state;
}

/* Return the first line of a kernel's file, or "". */
static char *line_load(const char *path, char *line, int line_bytes)
{
  FILE *file = fopen(path, "re");
  line[0] = 0;
  if (file) {
    if (!fgets(line, line_bytes, file))
      line[0] = 0;
    fclose(file);
  }
  line[strcspn(line, "\n")] = 0;
  return line;
}

/* ---- processor ---- */

static void cpu_check(struct report *report)
{
  char name[128];
  struct lade_cpu cpu = lade_cpu_get();
  struct lade_kernels kernels;
  lade_cpu_name(name, sizeof(name));
  lade_kernels_init(&kernels, &cpu);
  const char *bf16 = cpu.is_bf16_dot_slow ? " AVX-512-BF16 (slower than FMA, not used)" : " AVX-512-BF16";
  finding_add(report, "cpu", FINDING_GOOD, NULL, "%s:%s%s%s%s%s", name, cpu.has_avx2 ? " AVX2" : "",
              cpu.has_avx512 ? " AVX-512" : "", cpu.has_avx512_bf16 ? bf16 : "", cpu.has_amx_bf16 ? " AMX-BF16" : "",
              cpu.has_avx2 ? "" : " no vector extension that Lade knows");
  const char *matmul = kernels.variant[LADE_K_MATMUL];
  bool is_plain = strcmp(matmul, "plain") == 0;
  finding_add(report, "matmul", is_plain ? FINDING_NOTE : FINDING_GOOD,
              is_plain ? "fast kernels need an x86-64 with AVX2; on others expect a tenth of the speed" : NULL,
              "%s kernels", matmul);
  bool has_onednn = strcmp(matmul, "onednn") == 0;
  finding_add(report, "oneDNN", FINDING_GOOD, NULL, "%s", has_onednn ? "used for matmul" : "not used: own kernels");
}

static void threads_check(struct report *report, int64_t n_threads)
{
  int n = n_threads ? (int)n_threads : lade_cpu_count();
  lade_pool *pool = NULL;
  int status = lade_pool_create(n, &pool);
  lade_pool_destroy(pool);
  if (status)
    finding_add(report, "threads", FINDING_MISSING, "raise `ulimit -u` or the container's pids limit",
                "%d threads could not be started: %s", n, strerror(-status));
  else
    finding_add(report, "threads", FINDING_GOOD, NULL, "%d (CPU affinity and the cgroup's quota allow %d)", n,
                lade_cpu_count());
}

/* Report the rates of the drive of --store: of its first gigabytes, and of long runs. */
static void drive_rates_add(struct report *report, const struct options *options,
                            const struct lade_machine_store *drive)
{
  char lasting[96] = "not known before a long run or lade doctor --probe --store DIR";
  if (!options->session.store)
    return;
  if (lade_drive_is_lasting(drive))
    snprintf(lasting, sizeof(lasting), "read %.2f GB/s, write %.2f, half of each %.2f",
             lade_drive_bytes_per_s(drive, 1) / 1e9, lade_drive_bytes_per_s(drive, 0) / 1e9,
             lade_drive_bytes_per_s(drive, 0.5) / 1e9);
  if (drive->read_bytes_per_s > 0)
    finding_add(report, "drive", FINDING_GOOD, NULL, "first gigabytes: read %.2f GB/s, write %.2f, half of each %.2f; "
                "in long runs: %s", drive->read_bytes_per_s / 1e9, drive->write_bytes_per_s / 1e9,
                drive->total_bytes_per_s / 1e9, lasting);
  else
    finding_add(report, "drive", FINDING_NOTE, "lade doctor --probe --store DIR measures it, and the first run does",
                "%s: not measured yet", options->session.store);
}

/* Report the rates behind predictions and the speed of light: those that are kept, or with --probe new ones. */
static void rates_check(struct report *report, const struct options *options)
{
  struct lade_cpu cpu = lade_cpu_get();
  struct lade_kernels kernels;
  struct lade_cost cost;
  struct lade_error error = {0};
  lade_pool *pool = NULL;
  lade_kernels_init(&kernels, &cpu);
  int status = lade_pool_create(options->n_threads ? (int)options->n_threads : lade_cpu_count(), &pool);
  const struct lade_store_params store = {.struct_size = sizeof(store), .dir = options->session.store,
                                          .allow_tmpfs = options->session.allow_tmpfs};
  const struct lade_probe_params params = {.struct_size = sizeof(params), .kernels = &kernels, .pool = pool,
                                           .store = options->session.store ? &store : NULL, .is_renewed = true};
  if (!status && options->has_probe)
    status = lade_probe(&params, &error, &cost);
  else if (!status)
    status = lade_probe_recall(&params, &cost) ? 0 : -ENOENT;
  if (!status) {
    finding_add(report, "rates", FINDING_GOOD, NULL, "%.1f Gflop/s in fp32 products, %.1f in bf16, the best seen; "
                "memory %.1f GB/s, AdamW %.1f GB/s", cost.machine.matmul_flops_per_s[LADE_F32] / 1e9,
                cost.machine.matmul_flops_per_s[LADE_BF16] / 1e9, cost.machine.device_bytes_per_s / 1e9,
                cost.machine.host_bytes_per_s / 1e9);
    drive_rates_add(report, options, &cost.machine.store);
    lade_cost_finish(&cost);
  } else {
    finding_add(report, "rates", options->has_probe ? FINDING_MISSING : FINDING_NOTE,
                "lade doctor --probe measures them, and the first run does", "%s",
                error.text[0] ? error.text : "not measured yet with this number of threads");
  }
  lade_pool_destroy(pool);
}

/* ---- memory ---- */

static void memory_check(struct report *report)
{
  char text[32];
  struct lade_memory memory;
  struct lade_error error = {0};
  if (lade_memory_get("", &error, &memory)) {
    finding_add(report, "memory", FINDING_MISSING, "mount /proc", "%s", error.text);
    return;
  }
  bool is_small = memory.bytes < (256 << 20);
  finding_add(report, "memory", is_small ? FINDING_NOTE : FINDING_GOOD,
              is_small ? "end other processes, or raise this limit" : NULL, "%s that this process may use, by %s",
              lade_size_format(memory.bytes, text, sizeof(text)), memory.source);
}

static void memlock_check(struct report *report)
{
  struct rlimit limit = {0};
  char text[32] = "unlimited";
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur != RLIM_INFINITY)
    lade_size_format(limit.rlim_cur, text, sizeof(text));
  bool is_small = limit.rlim_cur < (64 << 10); /* the store registers nothing; old kernels count the ring itself */
  finding_add(report, "memlock", is_small ? FINDING_NOTE : FINDING_GOOD,
              is_small ? "`ulimit -l 8192`, or memlock in /etc/security/limits.conf: kernels before 5.12 refuse "
                         "io_uring" : NULL, "%s may be locked", text);
}

static void huge_pages_check(struct report *report)
{
  char modes[128];
  line_load("/sys/kernel/mm/transparent_hugepage/enabled", modes, sizeof(modes));
  bool is_off = !modes[0] || strstr(modes, "[never]");
  finding_add(report, "huge pages", is_off ? FINDING_NOTE : FINDING_GOOD,
              is_off ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" : NULL,
              "%s for the memory that the device and staging are made of", is_off ? "off" : "on");
}

static void numa_check(struct report *report)
{
  char nodes[128];
  line_load("/sys/devices/system/node/online", nodes, sizeof(nodes));
  bool is_many = strpbrk(nodes, ",-") != NULL;
  finding_add(report, "NUMA", is_many ? FINDING_NOTE : FINDING_GOOD,
              is_many ? "bind a run to one node: numactl --cpunodebind=0 --membind=0 lade ..." : NULL, "%s %s",
              is_many ? "nodes" : "one node:", nodes[0] ? nodes : "unknown");
}

/* ---- drive ---- */

/* Open a store in @dir with @engine, and close it again. */
static int store_try(const struct options *options, const char *dir, enum lade_store_engine engine,
                     struct lade_error *error, struct lade_store_info *ret_info)
{
  struct lade_store_params params = {.struct_size = sizeof(params), .dir = dir, .engine = engine,
                                     .allow_tmpfs = options->session.allow_tmpfs};
  lade_store *store = NULL;
  int status = lade_store_open(&params, error, &store);
  if (status)
    return status;
  lade_store_get_info(store, ret_info);
  lade_store_close(store);
  return 0;
}

/* Check the store. Without --store the working directory is tried, and a failure there is a note. */
static void store_check(struct report *report, const struct options *options)
{
  const char *dir = options->session.store ? options->session.store : ".";
  enum finding_state bad = options->session.store ? FINDING_MISSING : FINDING_NOTE;
  struct lade_error error = {0};
  struct lade_store_info info = {0};
  uint64_t room_bytes;
  char free_bytes[32];
  if (lade_store_room(dir, &room_bytes, NULL, &error) == 0)
    finding_add(report, "store room", FINDING_GOOD, NULL, "%s: %s free", dir,
                lade_size_format(room_bytes, free_bytes, sizeof(free_bytes)));
  int status = store_try(options, dir, LADE_STORE_POSIX, &error, &info);
  if (status)
    finding_add(report, "O_DIRECT", bad, "name a directory on a local ext4, xfs or btrfs drive with --store", "%s",
                error.text[0] ? error.text : strerror(-status));
  else
    finding_add(report, "O_DIRECT", FINDING_GOOD, NULL, "%s: works", dir);
  error.text[0] = 0;
  int uring_status = status ? status : store_try(options, dir, LADE_STORE_URING, &error, &info);
  if (uring_status && !status)
    finding_add(report, "io_uring", FINDING_NOTE,
                "sysctl kernel.io_uring_disabled=0; in a container allow it in the seccomp profile; threads serve "
                "instead", "%s", error.text[0] ? error.text : strerror(-uring_status));
  else if (!status)
    finding_add(report, "io_uring", FINDING_GOOD, NULL, "works");
}

/* ---- others ---- */

/* Report which library or kernel multiplies matrices on the GPU. */
static void products_check(struct report *report, const lade_cuda_kernels *kernels)
{
  struct lade_kernels table;
  const char *note = lade_cuda_kernels_note(kernels);
  lade_cuda_kernels_get(kernels, &table);
  const char *fix = NULL;
  if (*note)
    fix = table.library ? "bench-gpu --choices FILE measures products here; runs are right without it"
                        : "libcublas of CUDA 12 or 13, where the loader finds it, multiplies on tensor cores";
  finding_add(report, "GPU matmul", *note ? FINDING_NOTE : FINDING_GOOD, fix, "%s",
              *note ? note : table.library ? table.library : "plain kernels, as LADE_MATMUL says");
}

/* Report which library or kernel computes attention on the GPU. */
static void attention_check(struct report *report, const lade_cuda_kernels *kernels)
{
  struct lade_kernels table;
  const char *note = lade_cuda_kernels_attention_note(kernels);
  lade_cuda_kernels_get(kernels, &table);
  finding_add(report, "GPU attention", *note ? FINDING_NOTE : FINDING_GOOD,
              *note ? "runs are right without it, and slower" : NULL, "forward %s, backward %s%s%s",
              table.variant[LADE_K_ATTENTION_FWD], table.variant[LADE_K_ATTENTION_BWD], *note ? "; " : "", note);
}

/* Check the GPU. An unusable GPU is missing if --device names it; otherwise a note, because the host trains. */
static void gpu_check(struct report *report, const struct options *options)
{
  bool is_wanted = options->device >= DEVICE_CUDA;
  const struct lade_cuda_device_params params = {.struct_size = sizeof(params),
                                                 .ordinal = is_wanted ? options->device - DEVICE_CUDA : 0};
  struct lade_error error = {0};
  struct lade_device_info info;
  struct lade_cuda_memory memory;
  lade_device *device = NULL;
  lade_cuda_kernels *kernels = NULL;
  char total[32], free_bytes[32];
  int status = lade_device_open_cuda(&params, &error, &device);
  if (!status)
    status = lade_cuda_kernels_open(device, NULL, &error, &kernels);
  if (!status)
    status = lade_cuda_get_memory(device, &memory);
  if (!status) {
    lade_device_get_info(device, &info);
    finding_add(report, "GPU", FINDING_GOOD, NULL, "%s, %s, of which %s are free; --device cuda:%d trains on it",
                info.name, lade_size_format(memory.total_bytes, total, sizeof(total)),
                lade_size_format(memory.free_bytes, free_bytes, sizeof(free_bytes)), params.ordinal);
    products_check(report, kernels);
    attention_check(report, kernels);
  } else {
    finding_add(report, "GPU", is_wanted ? FINDING_MISSING : FINDING_GOOD,
                is_wanted ? "nvidia-smi lists the GPUs of the machine; without --device cuda the host trains" : NULL,
                "%s; %s", error.text, is_wanted ? "--device requests one" : "the host trains");
  }
  lade_cuda_kernels_close(kernels);
  lade_device_close(device);
}

static void mpi_check(struct report *report)
{
  if (subprocess_exists("mpirun"))
    finding_add(report, "MPI", FINDING_GOOD, NULL, "mpirun is here: `lade launch -n N -- train ...` shares a model "
                "over N ranks");
  else
    finding_add(report, "MPI", FINDING_NOTE, "apt-get install openmpi-bin libopenmpi-dev, and build anew",
                "no mpirun here, so one rank");
}

/* ---- links ---- */

static void links_check(struct report *report)
{
  struct node_links links;
  node_links_find("", &links);
  const int n_ports = links.n_infiniband + links.n_efa;
  if (!n_ports && !links.n_nvswitches) {
    finding_add(report, "links", FINDING_GOOD, NULL, "no NVSwitch, InfiniBand or EFA device: ranks meet in memory and "
                "over TCP");
    return;
  }
  const bool is_blind = n_ports && links.n_nvswitches && !links.has_gpudirect;
  finding_add(report, "links", is_blind ? FINDING_NOTE : FINDING_GOOD,
              is_blind ? "modprobe nvidia_peermem, so that the network reaches GPU memory without a copy" : NULL,
              "%d InfiniBand and %d EFA devices%s%s%s%s, %d NVSwitches, GPUDirect RDMA %s", links.n_infiniband,
              links.n_efa, links.first[0] ? ", first " : "", links.first, links.rate[0] ? " at " : "", links.rate,
              links.n_nvswitches, links.has_gpudirect ? "ready" : "not ready");
}

/* ---- results ---- */

static const char *const state_names[] = {"ok", "note", "missing"};

static void report_print(const struct report *report)
{
  static const char *const colors[] = {COLOR_GOOD, COLOR_WARN, COLOR_BAD};
  for (int i = 0; i < report->n; i++) {
    const struct finding *finding = &report->findings[i];
    printf("%s%-8s%s %-11s ", terminal_color(stdout, colors[finding->state]), state_names[finding->state],
           terminal_color(stdout, COLOR_END), finding->name);
    text_put(stdout, finding->text, 0);
    printf("%s", finding->fix[0] ? "\n                     fix: " : "");
    text_put(stdout, finding->fix, 0);
    putchar('\n');
  }
}

static int report_dump(const struct report *report, bool is_ok)
{
  json_t *findings = json_array();
  for (int i = 0; i < report->n; i++) {
    const struct finding *finding = &report->findings[i];
    json_t *fix = finding->fix[0] ? json_string(finding->fix) : json_null();
    json_array_append_new(findings, json_pack("{s:s, s:s, s:s, s:o}", "name", finding->name, "state",
                                              state_names[finding->state], "text", finding->text, "fix", fix));
  }
  return json_print(json_pack("{s:i, s:b, s:o}", "schema_version", REPORT_SCHEMA_VERSION, "ok", is_ok, "findings",
                              findings));
}

int doctor_main(int argc, char **argv)
{
  struct options options;
  struct report report = {.n = 0};
  int code = options_read(VERB_DOCTOR, argc, argv, &options);
  if (code == OPTIONS_GO) {
    cpu_check(&report);
    threads_check(&report, options.n_threads);
    rates_check(&report, &options);
    memory_check(&report);
    memlock_check(&report);
    huge_pages_check(&report);
    numa_check(&report);
    store_check(&report, &options);
    gpu_check(&report, &options);
    mpi_check(&report);
    links_check(&report);
    code = LADE_EXIT_DONE;
    for (int i = 0; i < report.n; i++)
      code = report.findings[i].state == FINDING_MISSING ? LADE_EXIT_MISSING : code;
    if (!options.is_json)
      report_print(&report);
    else if (report_dump(&report, code == LADE_EXIT_DONE))
      code = LADE_EXIT_OUT_OF_MEMORY;
  }
  options_finish(&options);
  return code;
}
