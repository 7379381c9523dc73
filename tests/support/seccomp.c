/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One comparison per call, then the answer; the machine's architecture is not checked, because the test is a native
 * program.
 */
#include "tests/support/seccomp.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_CALLS 32

bool seccomp_refuse(const int *calls, int n, int refusal)
{
  struct sock_filter code[MAX_CALLS + 3];
  unsigned answer = refusal ? SECCOMP_RET_ERRNO | (unsigned)refusal : SECCOMP_RET_KILL_PROCESS;
  int at = 0;
  if (n > MAX_CALLS)
    return false;
  code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < n; i++) /* for all but the last one, jump past the remaining comparisons and the allowing end */
    code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], (unsigned char)(n - i), 0);
  code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
  struct sock_fprog program = {.len = (unsigned short)at, .filter = code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    return false;
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}
